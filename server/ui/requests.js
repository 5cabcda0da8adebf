// The request log: the last requests, and the timeline of one.

import { el, setText, svg } from "./dom.js";
import { NOTHING, axisDuration, clock, duration, niceCeiling, short } from "./format.js";

/** Phases of a request in order, each with the time at which it ends. */
const PHASES = [
  ["read", "read", "body read, text turned into tokens", "submitted_ms"],
  ["queue", "queue", "waits for a device row", "admitted_ms"],
  ["prefill", "prefill", "prompt computed, up to the first token", "first_token_ms"],
  ["decode", "decode", "first token to last", "ended_ms"],
  ["send", "send", "the rest of the answer goes to the client", "answered_ms"],
];

/** What is not known yet. */
const OPEN = ["open", "open", "queue, prefill and decode are told at the end"];

/**
 * The phases of a request that it went through: [name, start, end] in milliseconds. The engine tells them when it ends;
 * until then all after `read` is `open`, which ends now.
 */
export function phases(request, nowMs) {
  const { submitted_ms: submitted, ended_ms: ended } = request;
  const end = request.answered_ms ?? Math.max(0, nowMs - request.arrival_unix_ms);
  const isKnown = ended !== null && request.answered_ms !== null;
  const ends = isKnown
    ? { queue: request.admitted_ms ?? ended, prefill: request.first_token_ms ?? ended, decode: ended, send: end }
    : { open: end };
  ends.read = submitted ?? end;
  const found = [];
  let start = 0;
  for (const name of ["read", "queue", "prefill", "decode", "send", "open"]) {
    const until = ends[name] ?? start;
    if (until > start) found.push([name, start, until]);
    start = Math.max(start, until);
  }
  return found;
}

function bar(request, nowMs, length) {
  const marks = phases(request, nowMs);
  const whole = length ?? Math.max(0.001, ...marks.map(([, , end]) => end));
  return svg("svg", { class: "bar-line", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    marks.map(([name, start, end]) => svg("rect", {
      class: `phase ${name}`, x: (start / whole) * 1000, width: Math.max(2, ((end - start) / whole) * 1000), height: 10,
    })));
}

export function outcome(request) {
  if (request.answered_ms === null) return request.submitted_ms === null ? "reading" : "running";
  if (request.finish === "refused") return `refused ${request.status}`;
  return request.finish ?? "ended";
}

function isBad(request) {
  return request.finish === "error" || request.finish === "refused";
}

const span = (from, to) => (from === null || to === null ? null : to - from);

export class RequestsView {
  constructor(store) {
    this.store = store;
    this.rows = new Map();
    this.filter = el("input", { type: "search", placeholder: "id, model, client, route, outcome",
      oninput: () => this.update() });
    this.body = el("tbody", {});
    this.empty = el("p", { class: "hint" });
    this.heading = el("h2", {});
    this.facts = el("div", {});
    this.detail = el("section", { class: "detail", hidden: true, "aria-label": "One request", tabindex: "-1" },
      el("header", {}, this.heading, el("a", { href: "#requests", class: "close" }, "Close")), this.facts);
    this.node = el("div", { class: "requests" },
      el("div", { class: "bar" },
        el("label", { class: "field" }, el("span", {}, "Filter"), this.filter),
        el("ul", { class: "legend" }, PHASES.map(([name, label, hint]) =>
          el("li", { title: hint }, el("i", { class: `phase ${name}` }), label)))),
      this.detail,
      el("div", { class: "scroll" },
        el("table", { class: "log" },
          el("caption", { class: "unseen" }, "Requests, newest first"),
          el("thead", {}, el("tr", {}, [["Arrival"], ["Request", "some"], ["Model", "most"], ["Client", "some"],
            ["Prompt", "number few"], ["Out", "number"], ["First", "number some"], ["Total", "number"],
            ["Timeline", "line"], ["End"]].map(([head, kind]) => el("th", { scope: "col", class: kind }, head)))),
          this.body)),
      this.empty);
  }

  /** Shows the request of this number above the list; none: hides it. */
  select(number) {
    const changed = number !== this.selected;
    this.selected = number;
    this.update();
    if (changed && number && !this.detail.hidden) this.detail.focus({ preventScroll: false });
  }

  update() {
    const words = this.filter.value.trim().toLowerCase();
    const now = this.store.nowMs();
    const all = [...this.store.requests.values()].reverse();
    const shown = all.filter((request) => words === "" || [request.id, request.model, request.client, request.route,
      outcome(request)].some((text) => (text ?? "").toLowerCase().includes(words)));
    const rows = shown.map((request) => this.row(request, now));
    const focused = document.activeElement;
    if (rows.length !== this.body.children.length || rows.some((row, at) => row !== this.body.children[at])) {
      this.body.replaceChildren(...rows);
      if (this.body.contains(focused)) focused.focus({ preventScroll: true });
    }
    const known = new Set(this.store.requests.keys());
    for (const number of this.rows.keys()) if (!known.has(number)) this.rows.delete(number);
    setText(this.empty, all.length === 0 ? "No request yet. The last 256 are kept, without their texts."
      : shown.length === 0 ? "No request matches the filter." : "");
    this.showDetail(now);
  }

  row(request, now) {
    let known = this.rows.get(request.number);
    const version = request.answered_ms === null ? `${request.revision}/${now}` : String(request.revision);
    const isSelected = request.number === this.selected;
    if (known?.version === version && known.isSelected === isSelected) return known.row;
    if (!known) {
      const link = el("a", { href: `#requests/${request.number}` });
      known = { row: el("tr", {}, el("td", {}, link)), link };
      this.rows.set(request.number, known);
    }
    Object.assign(known, { version, isSelected });
    known.row.className = [isSelected && "selected", isBad(request) && "bad"].filter(Boolean).join(" ");
    setText(known.link, clock(request.arrival_unix_ms));
    known.link.setAttribute("aria-label", `${known.link.textContent}, request ${request.number}, ${outcome(request)}`);
    const total = request.answered_ms ?? now - request.arrival_unix_ms;
    const cell = (kind, content) => el("td", { class: kind }, content);
    // The link stays where it is, with the focus on it.
    while (known.row.children.length > 1) known.row.lastChild.remove();
    known.row.append(
      cell("some id", request.id ?? NOTHING), cell("most", request.model ?? NOTHING),
      cell("some", request.client ?? NOTHING), cell("number few", short(request.prompt_tokens)),
      cell("number", short(request.generation_tokens)), cell("number some", duration(request.first_token_ms)),
      cell("number", duration(total)), cell("line", bar(request, now)), cell("end", outcome(request)));
    return known.row;
  }

  showDetail(now) {
    const request = this.store.requests.get(this.selected);
    this.detail.hidden = this.selected === null || this.selected === undefined;
    if (this.detail.hidden) return;
    setText(this.heading, `Request ${this.selected}`);
    const version = request && `${request.number}/${request.revision}/${request.answered_ms === null ? now : ""}`;
    if (version && version === this.version) return;
    this.version = version;
    if (!request) {
      const words = `Request ${this.selected} is not in the log, which keeps the last 256.`;
      this.facts.replaceChildren(el("p", { class: "hint" }, words));
      return;
    }
    const marks = phases(request, now);
    const whole = niceCeiling(Math.max(0.01, ...marks.map(([, , end]) => end)));
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => el("span", {}, axisDuration(share * whole)));
    const lengths = marks.map(([name, start, end]) => {
      const [, label, hint] = PHASES.find(([other]) => other === name) ?? OPEN;
      return el("tr", { title: hint }, el("th", { scope: "row" }, el("i", { class: `phase ${name}` }), label),
        el("td", { class: "number" }, duration(end - start)), el("td", { class: "number" }, `from ${duration(start)}`),
        el("td", { class: "faint some" }, hint));
    });
    const decode = span(request.first_token_ms, request.ended_ms);
    const rate = decode > 0 && request.num_sequences === 1 ? (request.generation_tokens - 1) / (decode / 1000) : null;
    const facts = [
      ["id", request.id], ["route", request.route], ["model", request.model], ["client", request.client],
      ["arrival", clock(request.arrival_unix_ms)], ["end", outcome(request)],
      ["prompt", `${request.prompt_tokens} tokens, ${request.cached_tokens} from the prefix cache`],
      ["generated", `${request.generation_tokens} tokens${rate ? `, ${short(rate)} a second` : ""}`],
      ["sequences", request.num_sequences > 1 ? `${request.num_ended} of ${request.num_sequences} ended` : null],
      ["preemptions", request.num_preemptions || null], ["answer", request.is_stream ? "streamed" : "whole"],
      ["note", request.detail],
    ].filter(([, value]) => value !== null && value !== undefined);
    this.facts.replaceChildren(
      el("div", {
        class: "timeline", role: "img",
        "aria-label": marks.map(([name, start, end]) => `${name} ${duration(end - start)}`).join(", "),
      }, bar(request, now, whole), el("div", { class: "ticks" }, ticks)),
      el("div", { class: "columns" },
        el("table", { class: "phases" }, el("tbody", {}, lengths)),
        el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]))));
  }
}
