// The page: its views, the key, and one question a second to the server while somebody looks.

import { Failure, ask, key, onKeyWanted } from "./api.js";
import { setText } from "./dom.js";
import { clock, duration } from "./format.js";
import { LiveView } from "./live.js";
import { PlaygroundView } from "./playground.js";
import { RequestsView } from "./requests.js";
import { SystemView } from "./system.js";

const POLL_MS = 1000;
const SYSTEM_MS = 10_000;
const MAX_REQUESTS = 256;

/** What the server has told so far. */
const store = {
  latest: null,
  /** The first second of the columns. */
  first: 0,
  columns: {},
  span: 300,
  revision: 0,
  requests: new Map(),
  /** The server's clock less this one's. */
  skewMs: 0,
  nowMs: () => Date.now() + store.skewMs,

  take(answer) {
    const { figures } = answer;
    store.latest = answer;
    store.span = figures.kept_seconds;
    const skewMs = answer.now * 1000 - Date.now();
    // The server tells whole seconds; less than two are no difference.
    store.skewMs = Math.abs(skewMs) > 2000 ? skewMs : 0;
    const isGap = figures.first_second !== store.first + store.length;
    for (const [name, values] of Object.entries(figures.series)) {
      const before = isGap ? [] : store.columns[name] ?? [];
      store.columns[name] = [...before, ...values].slice(-store.span);
    }
    store.first = figures.first_second + figures.series.steps.length - store.length;
    store.revision = answer.revision;
    for (const request of answer.requests) store.requests.set(request.number, request);
    if (answer.requests.length > 0) {
      const sorted = [...store.requests].sort(([a], [b]) => a - b);
      store.requests = new Map(sorted.slice(-MAX_REQUESTS));
    }
  },

  get length() {
    return store.columns.steps?.length ?? 0;
  },
};

const find = (id) => document.getElementById(id);
const views = {
  live: new LiveView(store),
  playground: new PlaygroundView(),
  requests: new RequestsView(store),
  system: new SystemView(),
};
let shown = null;
let lastSystem = 0;
let lastAnswer = null;
let timer = null;
let asking = false;

function state(name, text) {
  const node = find("state");
  node.className = `state ${name}`;
  setText(node, text);
}

function showHeader() {
  const { latest } = store;
  if (!latest) return;
  setText(find("model"), latest.model);
  document.title = `${latest.model} · Halyard`;
  setText(find("about"), `Halyard ${latest.version}, up ${duration((latest.now - latest.started) * 1000)}`);
  const busy = latest.stats.num_running + latest.stats.num_waiting > 0;
  if (latest.health) state("bad", `engine stopped: ${latest.health}`);
  else if (latest.draining) state("warm", "draining");
  else state(busy ? "busy" : "good", busy ? "serving" : "idle");
}

async function poll() {
  if (asking || document.hidden) return;
  asking = true;
  clearTimeout(timer);
  try {
    const after = store.length > 0 ? `after=${store.first + store.length - 1}&` : "";
    let answer = await ask(`ui/data?${after}revision=${store.revision}`);
    if (store.latest && answer.started !== store.latest.started) {
      // Another server under the same address: nothing of the old one counts.
      Object.assign(store, { columns: {}, revision: 0, requests: new Map() });
      answer = await ask("ui/data");
    }
    store.take(answer);
    lastAnswer = Date.now();
    find("main").classList.remove("stale");
    showHeader();
    views[shown].update?.();
    if (shown === "system" && Date.now() - lastSystem > SYSTEM_MS) refreshSystem();
  } catch (error) {
    find("main").classList.add("stale");
    if (error instanceof Failure && error.status === 401) state("warm", "key needed");
    else state("bad", lastAnswer ? `no answer since ${clock(lastAnswer)}` : `no answer: ${error.message}`);
  }
  asking = false;
  timer = setTimeout(poll, POLL_MS);
}

function refreshSystem() {
  lastSystem = Date.now();
  views.system.refresh();
}

/** Shows the view of the address: #live, #playground, #requests, #requests/12, #system. */
function route() {
  const [name, detail] = location.hash.slice(1).split("/");
  const next = name in views ? name : "live";
  for (const link of document.querySelectorAll("nav a")) {
    const isCurrent = link.hash === `#${next}`;
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (shown !== next) find("main").replaceChildren(views[next].node);
  const changed = shown !== next;
  shown = next;
  if (next === "requests") views.requests.select(detail ? Number(detail) : null);
  if (changed && next === "system") refreshSystem();
  if (changed && next === "playground") views.playground.refresh();
  if (store.latest) views[next].update?.();
}

const dialog = find("key-dialog");

function openDialog(message) {
  if (dialog.open) return;
  setText(find("key-message"), message);
  dialog.showModal();
  find("key-input").focus();
}

onKeyWanted((message) => openDialog(key.isSet() ? message : "This server asks for an API key."));
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = find("key-input").value.trim();
  if (value === "") return;
  key.set(value);
  find("key-input").value = "";
  find("forget").hidden = false;
  dialog.close();
  poll();
  if (shown === "system") refreshSystem();
  if (shown === "playground") views.playground.refresh();
});
find("forget").hidden = !key.isSet();
find("forget").addEventListener("click", () => {
  key.forget();
  location.reload();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  find("main").focus();
});
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => document.hidden || poll());
route();
poll();
