// Builds elements. Text goes in as text only: nothing here, or in any other file of the page, parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element with attributes (`onclick` and the like add listeners) and children. */
export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Sets an element's text, and leaves it alone where it has it: a selection in it stays. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A labelled field: the label's text stands before the control. */
export function field(label, control, hint) {
  return el("label", { class: "field", title: hint }, el("span", {}, label), control);
}

/** A table with a caption for readers of the screen; cells are texts or nodes. */
export function table(caption, heads, rows) {
  const cell = (tag, scope) => (content, index) =>
    el(tag, { scope, class: heads[index]?.number ? "number" : null }, content ?? "");
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, heads.map((head, index) => cell("th", "col")(head.text, index)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((content, index) => cell("td")(content, index)))))));
}
