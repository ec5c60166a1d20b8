// Shows an answer's Markdown as elements, so that every visible character that is no marking is there, as text.
//
// Elements are made one by one and text is only ever put into text nodes, so nothing of an answer can run. What
// Markdown would swallow (HTML, definitions of references, character entities) is no marking here, and numbers of lists
// and addresses of links are shown as they are written. A block that lacks a character all the same, as a table whose
// row has too many cells, is shown as it was written.
import MarkdownIt from "./vendor/markdown-it.js";
import { highlighted } from "./code.js";
import { copyButton } from "./copy.js";

const LINK = /^(https?:|mailto:)/i;
const MARKING = /[\s\0\\`*_~#>+\-=|[\]:]/u; // all that Markdown's own marking is made of, and what cannot be seen
const HAS_DIRECTION = new Set(["p", "li", "th", "td", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote"]);

const parser = new MarkdownIt({ html: false, linkify: true });
parser.disable(["html_block", "html_inline", "reference", "entity", "autolink", "image"]);
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
parser.validateLink = (address) => LINK.test(address);
parser.normalizeLink = parser.normalizeLinkText = (address) => address;

/** A text of Markdown in an element. `show` draws only the blocks that differ from the last time. */
export class Markdown {
  constructor(element) {
    this.element = element;
    this.sources = [];
  }

  show(text) {
    const blocks = split(text.replace(/\r\n?/g, "\n").replaceAll("\0", "\uFFFD"));
    blocks.forEach(({ source, tokens }, i) => {
      if (source === this.sources[i]) return;
      const block = drawn(source, tokens), old = this.element.children[i];
      if (old) old.replaceWith(block);
      else this.element.append(block);
    });
    while (this.element.children.length > blocks.length) this.element.lastChild.remove();
    this.sources = blocks.map((block) => block.source);
  }
}

/** The outermost blocks of a text: what is written there, without a gap between them, and the parser's tokens. */
function split(text) {
  const lines = text.split("\n"), blocks = [];
  let tokens = [], depth = 0, from = 0;
  for (const token of parser.parse(text, {})) {
    tokens.push(token);
    depth += token.nesting;
    if (depth) continue;
    const to = tokens[0].map[1];
    blocks.push({ source: lines.slice(from, to).join("\n"), tokens });
    [tokens, from] = [[], to];
  }
  const rest = lines.slice(from).join("\n");
  if (blocks.length) blocks.at(-1).source += "\n" + rest;
  else if (rest.trim()) blocks.push({ source: rest, tokens });
  return blocks;
}

/** The element of a block. */
function drawn(source, tokens) {
  const root = document.createDocumentFragment();
  let place = root, shown = "", number = "";
  const links = [];
  const open = (tag, className = "") => {
    place = place.appendChild(document.createElement(tag));
    if (className) place.className = className;
    if (HAS_DIRECTION.has(tag)) place.dir = "auto";
    return place;
  };
  const close = () => (place = place.parentNode);
  const write = (text) => {
    shown += text;
    place.append(text);
  };
  const leaf = (tag, text, className) => {
    open(tag, className);
    write(text);
    close();
  };

  /** Write the number of the list's item that has just begun. */
  const count = () => {
    if (!number) return;
    leaf("span", number, "number");
    place.append(" ");
    number = "";
  };

  const draw = (token) => {
    if (token.type !== "paragraph_open") count(); // else it stands in the paragraph
    if (token.hidden) return; // the paragraph of a list without blank lines
    if (token.nesting < 0) {
      close();
      if (token.type === "link_close") {
        const { address, title, from } = links.pop();
        if (shown.slice(from) !== address) leaf("span", ` (${address}${title && ` "${title}"`})`, "address");
      }
    } else if (token.nesting > 0) {
      const element = open(token.type === "link_open" && !token.attrGet("href") ? "span" : token.tag);
      if (token.type === "link_open") {
        const address = token.attrGet("href");
        if (address) Object.assign(element, { href: address, target: "_blank", rel: "noopener noreferrer" });
        links.push({ address, title: token.attrGet("title") ?? "", from: shown.length });
      } else if (token.type === "list_item_open" && token.info) {
        number = token.info + token.markup;
      } else if (token.attrGet("style")) {
        element.style.textAlign = token.attrGet("style").replace("text-align:", "");
      } else if (token.type === "paragraph_open") {
        count();
      }
    } else if (token.type === "inline") {
      token.children.forEach(draw);
    } else if (token.type === "fence" || token.type === "code_block") {
      drawCode(token.content, token.info.trim());
    } else if (token.tag === "br" || token.tag === "hr" || token.type === "softbreak") {
      open(token.tag || "br");
      close();
    } else if (token.tag) {
      leaf(token.tag, token.content);
    } else {
      write(token.content);
    }
  };

  const drawCode = (code, info) => {
    open("figure");
    open("figcaption");
    leaf("span", info);
    place.append(copyButton(() => code, "Copy code"));
    close();
    open("pre");
    open("code").append(highlighted(code, info));
    shown += code;
    close();
    close();
    close();
  };

  tokens.forEach(draw);
  return root.firstChild && isWhole(source, shown) ? root.firstChild : asWritten(source);
}

/** Whether all characters of a source that are no marking are among those that are shown, in their order. */
function isWhole(source, shown) {
  let at = 0;
  for (const character of source) {
    if (MARKING.test(character)) continue;
    at = shown.indexOf(character, at) + character.length;
    if (at < character.length) return false;
  }
  return true;
}

function asWritten(source) {
  const element = document.createElement("p");
  Object.assign(element, { className: "source", dir: "auto", textContent: source.replace(/^\n+|\s+$/g, "") });
  return element;
}
