/** A button that copies a text. text: returns it. */
export function copyButton(text, label) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "copy", textContent: "Copy", ariaLabel: label });
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // On a page that came over plain HTTP from another machine, browsers only have the older way.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "unseen";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
