// Draws a token tree; what was accepted stands out.
const SVG = "http://www.w3.org/2000/svg";

/** tree: {tokens, parents, path}, of which `path` has the nodes that were accepted. */
export function treeDrawing(tree) {
  const width = 110, height = 18, place = [];
  let row = 0;
  const children = tree.tokens.map(() => []);
  tree.parents.forEach((parent, node) => { if (parent >= 0) children[parent].push(node); });
  const lay = (node, depth) => {
    for (const child of children[node]) lay(child, depth + 1);
    const rows = children[node].map((child) => place[child].row);
    place[node] = { depth, row: rows.length ? rows[0] : row++ };
  };
  lay(0, 0);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("width", (Math.max(...place.map((p) => p.depth)) + 1) * width);
  svg.setAttribute("height", row * height + 6);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `The last token tree: ${tree.tokens.length} nodes`);
  const kept = new Set(tree.path);
  tree.tokens.forEach((token, node) => {
    const x = place[node].depth * width, y = place[node].row * height + 14;
    const className = kept.has(node) ? "kept" : "";
    if (tree.parents[node] >= 0) {
      const from = place[tree.parents[node]];
      const path = svg.appendChild(document.createElementNS(SVG, "path"));
      const fromX = from.depth * width + 84, fromY = from.row * height + 10;
      path.setAttribute("d", `M${fromX},${fromY} C${fromX + 14},${fromY} ${x - 20},${y - 4} ${x - 4},${y - 4}`);
      path.setAttribute("class", className);
    }
    const text = svg.appendChild(document.createElementNS(SVG, "text"));
    text.setAttribute("x", x);
    text.setAttribute("y", y);
    text.setAttribute("class", className);
    const shown = JSON.stringify(token).slice(1, -1);
    text.textContent = shown.length > 11 ? shown.slice(0, 10) + "…" : shown.replaceAll(" ", "␣");
  });
  return svg;
}
