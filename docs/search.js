// The search takes a dash in front of a word for "without"; here it is the beginning of an option that is looked for.
const field = document.querySelector("input[name=query]");
const { get, set } = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
Object.defineProperty(field, "value", { get: () => get.call(field).replace(/(^|\s)-+(?=\w)/g, "$1"), set });
