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

/** The phases of a request that it has reached: [name, start, end] in milliseconds; an open one ends `now`. */
export function phases(request, nowMs) {
  const found = [];
  let start = 0;
  const end = request.answered_ms ?? Math.max(0, nowMs - request.arrival_unix_ms);
  for (const [name, , , field] of PHASES) {
    const until = request[field];
    if (until === null) {
      // What comes last of those that it reached goes on until it ends; later ones were never reached.
      const later = PHASES.slice(PHASES.findIndex(([other]) => other === name) + 1, -1)
        .some(([, , , other]) => request[other] !== null);
      if (later) continue;
      if (end > start) found.push([name, start, end]);
      return found;
    }
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
  if (request.answered_ms === null) {
    if (request.first_token_ms !== null || request.generation_tokens > 0) return "running";
    return request.submitted_ms === null ? "reading" : "queued or prefill";
  }
  if (request.finish === "refused") return `refused ${request.status}`;
  return request.finish ?? "not recorded";
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
    this.detail = el("section", { class: "detail", hidden: true, "aria-label": "One request", tabindex: "-1" });
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
      known = { row: el("tr", {}), link: el("a", { href: `#requests/${request.number}` }) };
      this.rows.set(request.number, known);
    }
    Object.assign(known, { version, isSelected });
    known.row.className = [isSelected && "selected", isBad(request) && "bad"].filter(Boolean).join(" ");
    setText(known.link, clock(request.arrival_unix_ms));
    known.link.setAttribute("aria-label", `Request ${request.number}, ${outcome(request)}`);
    const total = request.answered_ms ?? now - request.arrival_unix_ms;
    const cell = (kind, content) => el("td", { class: kind }, content);
    known.row.replaceChildren(
      cell("", known.link), cell("some id", request.id ?? NOTHING), cell("most", request.model ?? NOTHING),
      cell("some", request.client ?? NOTHING), cell("number few", short(request.prompt_tokens)),
      cell("number", short(request.generation_tokens)), cell("number some", duration(request.first_token_ms)),
      cell("number", duration(total)), cell("line", bar(request, now)), cell("end", outcome(request)));
    return known.row;
  }

  showDetail(now) {
    const request = this.store.requests.get(this.selected);
    this.detail.hidden = this.selected === null || this.selected === undefined;
    if (this.detail.hidden) return;
    if (!request) {
      const words = `Request ${this.selected} is not in the log, which keeps the last 256.`;
      this.detail.replaceChildren(el("p", { class: "hint" }, words));
      return;
    }
    const marks = phases(request, now);
    const whole = niceCeiling(Math.max(0.01, ...marks.map(([, , end]) => end)));
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => el("span", {}, axisDuration(share * whole)));
    const lengths = marks.map(([name, start, end]) => {
      const [, label, hint] = PHASES.find(([other]) => other === name);
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
    const close = el("a", { href: "#requests", class: "close" }, "Close");
    this.detail.replaceChildren(
      el("header", {}, el("h2", {}, `Request ${request.number}`), close),
      el("div", {
        class: "timeline", role: "img",
        "aria-label": marks.map(([name, start, end]) => `${name} ${duration(end - start)}`).join(", "),
      }, bar(request, now, whole), el("div", { class: "ticks" }, ticks)),
      el("div", { class: "columns" },
        el("table", { class: "phases" }, el("tbody", {}, lengths)),
        el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]))));
  }
}
