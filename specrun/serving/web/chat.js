// The page: a conversation, the list of others, settings.
import { Answer, errorLine, userMessage } from "./message.js";
import * as server from "./server.js";
import * as store from "./store.js";
import { treeDrawing } from "./tree.js";

const $ = (id) => document.getElementById(id);
const NUMBERS = ["max_tokens", "temperature", "seed"];
const NEAR_END = 100; // pixels from the end at which the list follows what is written

let current = null; // the conversation that is shown
let running = null; // what stops its answer, while that is being written
let follows = true; // whether the list stays at its end while it grows
let lastProblem = null; // with keeping conversations

function begun() {
  const id = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
  return { id, changed: Date.now(), system: store.settings().system ?? "", messages: [] };
}

/** Show a conversation; without one, a new one. */
function show(one = begun()) {
  running?.abort();
  current = one;
  location.hash = one.messages.length ? one.id : "";
  $("system").value = one.system;
  $("last").hidden = true;
  $("messages").replaceChildren();
  follows = true;
  for (const message of one.messages) add(message).show?.(true);
  list();
}

/** Put a message at the end of the list. Returns the Answer, or the element of what the user wrote. */
function add(message) {
  const shown = message.role === "user" ? userMessage(message.content) : new Answer(message, followEnd);
  $("messages").append(shown.element ?? shown);
  followEnd();
  return shown;
}

function say(text) {
  $("messages").append(errorLine(text));
  followEnd();
}

function followEnd() {
  if (follows) $("messages").scrollTop = $("messages").scrollHeight;
}

function keep(one) {
  if (one.isForgotten) return;
  one.changed = Date.now();
  const problem = store.keep(one);
  if (problem && problem !== lastProblem) say(problem);
  lastProblem = problem;
  if (one === current) history.replaceState(null, "", `#${one.id}`);
  list();
}

function list() {
  const items = store.conversations().map((one) => {
    const item = document.createElement("li"), open = document.createElement("button"), remove = open.cloneNode();
    const title = store.title(one);
    Object.assign(open, { type: "button", className: "open", textContent: title, title: new Date(one.changed).toLocaleString() });
    if (one.id === current.id) open.ariaCurrent = "true";
    open.addEventListener("click", () => {
      $("history").hidePopover();
      if (one.id !== current.id) show(store.conversation(one.id));
    });
    Object.assign(remove, { type: "button", className: "remove", textContent: "×", ariaLabel: `Delete “${title}”` });
    remove.addEventListener("click", () => {
      if (!confirm(`Delete “${title}”?`)) return;
      store.forget(one.id);
      if (one.id !== current.id) return list();
      current.isForgotten = true; // an answer that is being written keeps it no more
      show();
    });
    item.append(open, remove);
    return item;
  });
  $("conversations").replaceChildren(...items);
}

/** What is asked: answers that stayed empty are left out, together with their questions. */
function request(one) {
  const isAnswered = (i) => i >= one.messages.length || one.messages[i].content;
  const messages = one.messages
    .filter(({ role }, i) => isAnswered(role === "user" ? i + 1 : i))
    .map(({ role, content }) => ({ role, content }));
  if (one.system.trim()) messages.unshift({ role: "system", content: one.system });
  const numbers = NUMBERS.filter((name) => $(name).value !== "").map((name) => [name, Number($(name).value)]);
  return { messages, ...Object.fromEntries(numbers) };
}

async function ask(text) {
  const one = current, message = { role: "assistant", content: "", reasoning: "" };
  const question = { role: "user", content: text };
  one.messages.push(question);
  follows = true;
  const asked = add(question), body = request(one), answer = add(message);
  one.messages.push(message);
  const stop = new AbortController();
  running = stop;
  busy(true);
  answer.show();
  keep(one);
  let error = null;
  try {
    for await (const event of server.answer(body, $("key").value, stop.signal)) {
      const choice = event.choices[0];
      message.reasoning += choice?.delta?.reasoning_content ?? "";
      message.content += choice?.delta?.content ?? "";
      if (choice?.finish_reason === "length") message.note = "It ends here because it has the maximum length.";
      answer.changed();
      if (one === current && event.timings) showNumbers(event.timings);
      if (one === current && event.last_tree) $("tree").replaceChildren(treeDrawing(event.last_tree));
    }
  } catch (caught) {
    if (caught.name === "AbortError") message.note = "Stopped.";
    else error = caught;
  }
  if (error) message.note = error.message;
  if (message.content || message.reasoning) {
    answer.show(true);
    keep(one);
  } else {
    takeBack(one, text, [asked, answer.element]);
    if (error) told(error);
  }
  if (running === stop) {
    running = null;
    busy(false);
  }
}

/** Nothing was written: the question goes back to where it was typed. */
function takeBack(one, text, elements) {
  one.messages.splice(-2);
  if (one.messages.length) keep(one);
  else store.forget(one.id);
  elements.forEach((element) => element.remove());
  if (one === current && !$("text").value) $("text").value = text;
  list();
}

function told(error) {
  if (error.status === 401) $("key-label").hidden = false;
  say(error.message);
}

function busy(isBusy) {
  $("stop").hidden = !isBusy;
  $("send").hidden = isBusy;
}

function showNumbers(t) {
  $("last").hidden = false;
  $("numbers").textContent =
    `${t.predicted_n} tokens, ${t.predicted_per_second.toFixed(1)} a second, ` +
    `${t.tokens_per_pass.toFixed(2)} tokens a pass (${t.draft_n_accepted} of ${t.draft_n} drafted tokens accepted), ` +
    `${t.cache_n} of ${t.cache_n + t.prompt_n} tokens of the prompt from the cache`;
}

async function showModel() {
  try {
    $("model").textContent = document.title = await server.modelName($("key").value);
    $("key-label").hidden = true;
    for (const line of $("messages").querySelectorAll(".error")) line.remove();
  } catch (error) {
    told(error);
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value;
  if (running || !text.trim()) return;
  $("text").value = "";
  ask(text);
});
$("text").addEventListener("keydown", (event) => {
  const isSend = event.key === "Enter" && !event.shiftKey && !event.isComposing;
  if (!isSend || matchMedia("(pointer: coarse)").matches) return; // a phone's keyboard has no other way to begin a line
  event.preventDefault();
  $("form").requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => {
  $("history").hidePopover();
  show();
  $("text").focus();
});
$("messages").addEventListener("scroll", ({ target }) => {
  follows = target.scrollHeight - target.scrollTop - target.clientHeight < NEAR_END;
});
$("system").addEventListener("change", () => {
  current.system = $("system").value;
  if (current.messages.length && !running) keep(current);
});
$("settings").addEventListener("change", () => {
  store.keepSettings(Object.fromEntries(["system", ...NUMBERS].map((name) => [name, $(name).value])));
});
$("key").addEventListener("change", showModel);
addEventListener("hashchange", () => {
  const id = location.hash.slice(1);
  if (id !== current.id && (id || current.messages.length)) show(store.conversation(id));
});
addEventListener("storage", list);
addEventListener("pagehide", () => {
  if (!running) return;
  current.messages.at(-1).note = "Stopped.";
  store.keep(current);
});

const settings = store.settings();
for (const name of NUMBERS) $(name).value = settings[name] ?? "";
show(store.conversation(location.hash.slice(1)));
showModel();
if (!matchMedia("(pointer: coarse)").matches) $("text").focus();
