// Schemas of an OpenAPI document as lists of fields.

import { el } from "./dom.js";

/** What a reference stands for; anything else stands for itself. */
export function resolve(document, node) {
  let found = node;
  for (let steps = 0; found?.$ref && steps < 16; steps += 1) {
    const names = found.$ref.slice(2).split("/").map((name) => name.replace(/~1/g, "/").replace(/~0/g, "~"));
    found = names.reduce((at, name) => at?.[name], document);
  }
  return found ?? {};
}

/** The name of a referenced schema. */
const nameOf = (node) => node?.$ref?.split("/").pop();

/** A schema's type in words. */
function kind(document, node) {
  const schema = resolve(document, node);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.map((choice) => kind(document, choice)).join(" or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (!schema.type) return nameOf(node) ?? "anything";
  const types = [schema.type].flat().map((type) =>
    type === "array" && schema.items ? `list of ${kind(document, schema.items)}` : type);
  return types.join(" or ");
}

/** A schema's bounds in words. */
function bounds(schema) {
  const words = [
    ["minimum", "from"], ["exclusiveMinimum", "above"], ["maximum", "to"], ["exclusiveMaximum", "below"],
    ["minLength", "at least this long:"], ["maxLength", "at most this long:"],
    ["minItems", "entries at least:"], ["maxItems", "entries at most:"],
    ["pattern", "of the form"], ["default", "unless sent"],
  ];
  return words.filter(([name]) => name in schema).map(([name, word]) => `${word} ${schema[name]}`).join(", ");
}

/** The fields of a schema and of all that it joins, by name: schema, whether it must be sent. The first one counts. */
function fields(document, node, found = new Map()) {
  const schema = resolve(document, node);
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    if (!found.has(name)) found.set(name, { field, isNeeded: (schema.required ?? []).includes(name) });
  }
  (schema.allOf ?? []).forEach((part) => fields(document, part, found));
  return found;
}

/** What lies within a field: an object's fields, those of a list's entries, or of a choice. */
function within(document, node) {
  const schema = resolve(document, node);
  const choices = schema.anyOf ?? schema.oneOf ?? [];
  const parts = [node, schema.items, ...choices.flatMap((part) => [part, resolve(document, part).items])];
  return parts.filter(Boolean).find((part) => fields(document, part).size > 0);
}

/** A schema as a list of its fields; `seen`: schemas around it, which are not shown again. */
export function schemaView(document, node, seen = []) {
  const name = nameOf(node);
  if (seen.includes(name) || seen.length > 8) return null;
  const around = [...seen, name ?? ""];
  const rows = [...fields(document, node)].map(([field, { field: inner, isNeeded }]) => {
    const schema = resolve(document, inner);
    const more = within(document, inner);
    const facts = [kind(document, inner), bounds(schema), isNeeded && "required"];
    return el("div", { class: schema.deprecated ? "old" : null },
      el("dt", {}, el("code", {}, field), " ", el("small", {}, facts.filter(Boolean).join("; "))),
      el("dd", {}, schema.description ?? "", more && schemaView(document, more, around)));
  });
  return rows.length > 0 ? el("dl", {}, rows) : el("p", { class: "faint" }, kind(document, node));
}
