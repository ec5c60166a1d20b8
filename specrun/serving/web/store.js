// Conversations and settings, kept in this browser.
//
// A conversation is {id, changed, system, messages}; a message is {role, content}, of the assistant also with
// `reasoning` and with a `note` that says why it is not whole.
const PREFIX = "specrun.conversation.";
const SETTINGS = "specrun.settings";

/** All conversations, the latest first. What is there and is none is left alone. */
export function conversations() {
  const found = [];
  for (const key of keys()) {
    const value = parsed(key);
    if (Array.isArray(value?.messages)) found.push(value);
  }
  return found.sort((a, b) => b.changed - a.changed);
}

export const conversation = (id) => conversations().find((one) => one.id === id);

/** Keep a conversation. Returns what the user has to know about it, or null. */
export function keep(one) {
  const gone = [];
  for (;;) {
    try {
      localStorage.setItem(PREFIX + one.id, JSON.stringify(one));
      return gone.length ? `The browser's storage was full, so the oldest went: ${gone.join(", ")}` : null;
    } catch (error) {
      const oldest = error.name === "QuotaExceededError" && conversations().filter(({ id }) => id !== one.id).pop();
      if (!oldest) return `This browser does not keep the conversation (${error.message})`;
      gone.push(`“${title(oldest)}”`);
      forget(oldest.id);
    }
  }
}

export function forget(id) {
  localStorage.removeItem(PREFIX + id);
}

export const settings = () => parsed(SETTINGS) ?? {};

export function keepSettings(values) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(values));
  } catch {
    // They hold for this page only, as its conversation does, which says so.
  }
}

/** The beginning of the first message. */
export function title(one) {
  const text = one.messages[0]?.content.trim().replace(/\s+/g, " ") ?? "";
  return text.length > 60 ? text.slice(0, 59) + "…" : text;
}

function keys() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  } catch {
    return []; // a browser that is told to keep nothing
  }
}

function parsed(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}
