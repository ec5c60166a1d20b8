// Colours code by its language, where highlight.js knows it.
import hljs from "./vendor/highlight.js";

/** The code as nodes whose text is exactly the code. info: what stands behind the fence; its first word is the language. */
export function highlighted(code, info) {
  const language = /^[\w+#.-]*/.exec(info)[0];
  const nodes = document.createDocumentFragment();
  if (hljs.getLanguage(language)) {
    // Its tree and not its HTML: no text of an answer is ever read as HTML.
    const { _emitter: emitter } = hljs.highlight(code, { language, ignoreIllegals: true });
    emitter.root.children.forEach((child) => grow(nodes, child));
    if (nodes.textContent === code) return nodes;
  }
  nodes.replaceChildren(code);
  return nodes;
}

function grow(parent, node) {
  if (typeof node === "string") return void parent.append(node);
  const span = parent.appendChild(document.createElement("span"));
  if (node.scope) span.className = `hl-${node.scope.split(".")[0]}`;
  node.children.forEach((child) => grow(span, child));
}
