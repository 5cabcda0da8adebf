// The page of routes: asks for the document and shows it. The key is the one of the page at /ui/.

import { Failure, ask, key, onKeyWanted } from "./api.js";
import { el, setText } from "./dom.js";
import { resolve, schemaView } from "./schema.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const find = (id) => document.getElementById(id);
const main = find("main");

/** A command that asks a route. */
function command(path, method, body, isOpen) {
  const root = new URL("../", document.baseURI).href.replace(/\/$/, "");
  const lines = [`curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}'${root}${path}'`];
  if (!isOpen && key.isSet()) lines.push("-H \"Authorization: Bearer $KEY\"");
  if (body !== undefined) {
    const text = JSON.stringify(body).replace(/'/g, "'\\''");
    lines.push("-H 'Content-Type: application/json'", `-d '${text}'`);
  }
  return lines.join(" \\\n  ");
}

/** The contents of a body or of an answer. */
function contents(api, content) {
  return Object.entries(content ?? {}).map(([type, { schema }]) =>
    el("div", {}, el("small", {}, type), schema && schemaView(api, schema)));
}

function parameters(api, list) {
  if (list.length === 0) return null;
  const properties = Object.fromEntries(list.map((one) => [one.name, { description: one.description, ...one.schema }]));
  const required = list.filter((one) => one.required).map((one) => one.name);
  return [el("h3", {}, "Parameters"), schemaView(api, { properties, required })];
}

function answers(api, responses) {
  const rows = Object.entries(responses).map(([status, sent]) => {
    const answer = resolve(api, sent);
    const shown = Number(status) < 400 ? contents(api, answer.content) : null;
    return el("div", {}, el("dt", {}, el("code", {}, status)), el("dd", {}, answer.description, shown));
  });
  return [el("h3", {}, "Answers"), el("dl", {}, rows)];
}

/** What stands below a route's line; made when it is opened. */
function detail(api, path, method, route, shared) {
  const body = route.requestBody?.content;
  const schema = Object.values(body ?? {})[0]?.schema;
  const example = schema && resolve(api, schema).example;
  const isOpen = route.security?.length === 0;
  const own = [...shared, ...(route.parameters ?? [])].map((one) => resolve(api, one));
  return el("div", {},
    route.description && el("p", {}, route.description),
    el("p", { class: "faint" }, isOpen ? "Needs no key." : "Needs a key, where the server has keys."),
    el("pre", { tabindex: "0", role: "region", "aria-label": "A command" }, command(path, method, example, isOpen)),
    parameters(api, own),
    body && [el("h3", {}, "Body"), contents(api, body)],
    answers(api, route.responses));
}

function routeView(api, path, method, route, shared) {
  const view = el("details", { class: "route", id: route.operationId },
    el("summary", {},
      el("span", { class: `method ${method}` }, method.toUpperCase()),
      el("span", { class: "path" }, path),
      el("span", { class: "faint" }, route.summary)));
  view.addEventListener("toggle", () => {
    if (view.open && view.children.length === 1) view.append(detail(api, path, method, route, shared));
  });
  return view;
}

/** Every route of a document: its view, its tag, and the text that a search looks at. */
function routes(api) {
  return Object.entries(api.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({
      view: routeView(api, path, method, item[method], item.parameters ?? []),
      tag: item[method].tags?.[0],
      text: `${method} ${path} ${item[method].summary}`.toLowerCase(),
    })));
}

/** Opens the route that the address names. */
function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named instanceof HTMLDetailsElement) {
    named.open = true;
    named.scrollIntoView();
  }
}

function show(api) {
  setText(find("about"), `${api.info.version}, OpenAPI ${api.openapi}`);
  const all = routes(api);
  const sections = api.tags.map((tag) => ({
    tag,
    node: el("section", { id: tag.name, "aria-labelledby": `${tag.name}-title`, tabindex: "-1" },
      el("h2", { id: `${tag.name}-title` }, tag.name[0].toUpperCase() + tag.name.slice(1)),
      el("p", { class: "faint" }, tag.description),
      all.filter((route) => route.tag === tag.name).map((route) => route.view)),
  }));
  const search = el("input", { type: "search", autocomplete: "off" });
  const inWords = (number) => (number === 1 ? "1 route" : `${number} routes`);
  const count = el("p", { class: "faint", role: "status" }, inWords(all.length));
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/);
    const isShown = (route) => words.every((word) => route.text.includes(word));
    all.forEach((route) => { route.view.hidden = !isShown(route); });
    sections.forEach(({ tag, node }) => {
      node.hidden = !all.some((route) => route.tag === tag.name && !route.view.hidden);
    });
    setText(count, inWords(all.filter((route) => !route.view.hidden).length));
  });
  find("tags").replaceChildren(...sections.map(({ tag }) => el("a", { href: `#${tag.name}` }, tag.name)));
  main.replaceChildren(
    el("p", { class: "hint" }, api.info.description),
    el("label", { class: "search" }, el("span", { class: "faint" }, "Search routes"), search),
    count,
    ...sections.map(({ node }) => node));
  openNamed();
}

async function load() {
  try {
    show(await ask("openapi.json"));
  } catch (error) {
    const message = error instanceof Failure ? error.message : "the server does not answer";
    setText(find("about"), message);
    main.replaceChildren(el("p", { class: "bad", role: "alert" }, message));
  }
  find("forget").hidden = !key.isSet();
}

const dialog = find("key-dialog");
onKeyWanted((message) => {
  setText(find("key-message"), key.isSet() ? message : "This server asks for an API key.");
  if (!dialog.open) dialog.showModal();
  find("key-input").focus();
});
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = find("key-input").value.trim();
  if (!value) return;
  key.set(value);
  find("key-input").value = "";
  dialog.close();
  load();
});
find("forget").addEventListener("click", () => {
  key.forget();
  load();
});
addEventListener("hashchange", openNamed);
load();
