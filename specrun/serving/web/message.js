// What stands in the list of messages.
import { copyButton } from "./copy.js";
import { Markdown } from "./markdown.js";

const LEAST_PAUSE_MS = 30; // between two drawings of an answer that grows
const SHARE = 4; // a pause is at least so many times as long as drawing took

export function userMessage(text) {
  return element("article", "message user", text);
}

export function errorLine(text) {
  const line = element("p", "message error", text);
  line.role = "alert";
  return line;
}

/** An answer, which may still be written. Its message is {content, reasoning, note}; `changed` shows what it is now. */
export class Answer {
  constructor(message, drawn) {
    this.message = message;
    this.drawn = drawn;
    this.element = element("article", "message assistant");
    this.thinking = element("details", "thinking");
    this.thinking.append(element("summary", "", "Thinking"), element("div", ""));
    this.body = element("div", "markdown");
    this.note = element("p", "hint");
    this.element.append(this.thinking, this.body, this.note, copyButton(() => message.content, "Copy answer"));
    this.markdown = new Markdown(this.body);
    this.pause = LEAST_PAUSE_MS;
  }

  /** Show it soon: a long answer is drawn less often. */
  changed() {
    this.timer ??= setTimeout(() => this.show(), this.pause);
  }

  /** Show it now. isWritten: whether it grows no more. */
  show(isWritten = false) {
    clearTimeout(this.timer);
    this.timer = undefined;
    const start = performance.now();
    const { content, reasoning, note } = this.message;
    const [summary, thought] = this.thinking.children;
    this.thinking.hidden = !reasoning;
    summary.textContent = isWritten || content ? "Thought" : "Thinking …";
    if (thought.textContent !== reasoning) thought.textContent = reasoning;
    this.markdown.show(content);
    this.note.textContent = note ?? "";
    this.element.classList.toggle("growing", !isWritten);
    this.element.ariaBusy = String(!isWritten);
    this.element.lastChild.hidden = !isWritten || !content;
    this.drawn();
    this.pause = Math.max(LEAST_PAUSE_MS, SHARE * (performance.now() - start));
  }
}

function element(tag, className, text = "") {
  return Object.assign(document.createElement(tag), { className, textContent: text });
}
