// The first view: what the server does now and did in the last five minutes.

import { TimeChart, decades, distribution } from "./chart.js";
import { el, setText } from "./dom.js";
import { NOTHING, axisDuration, duration, percent, short } from "./format.js";

/** Seconds over which the rates next to the charts are averaged. */
const RATE_S = 5;

const LATENCIES = [
  ["first_token", "First token", "arrival to first token"],
  ["inter_token", "Between tokens", "one token to the next of a sequence"],
  ["end_to_end", "Whole request", "arrival to end"],
  ["step", "Engine step", "one forward pass of the batch, with sampling"],
];

export class LiveView {
  constructor(store) {
    this.store = store;
    this.figures = {};
    const figure = (name, label, hint) => {
      const value = el("b", {}, NOTHING);
      const note = el("small", {});
      this.figures[name] = { value, note };
      return el("div", { class: "figure", title: hint }, el("span", {}, label), value, note);
    };
    this.charts = {
      tokens: new TimeChart({
        title: "Tokens", unit: "a second", least: 10,
        series: [{ name: "generated", kind: "area", style: 1 }, { name: "prompt", kind: "line", style: 2 }],
      }),
      requests: new TimeChart({
        title: "Requests", unit: "at once", least: 4,
        series: [{ name: "running", kind: "area", style: 1 }, { name: "waiting", kind: "line", style: 3 }],
      }),
      step: new TimeChart({
        title: "Step time", unit: "of each second", least: 1, format: duration,
        axis: axisDuration,
        series: [{ name: "mean", kind: "line", style: 1 }, { name: "longest", kind: "dots", style: 2 }],
      }),
      cache: new TimeChart({
        title: "KV cache", unit: "share", most: 1, format: percent,
        series: [{ name: "blocks in use", kind: "area", style: 1 },
          { name: "prefix tokens found", kind: "dots", style: 2 }],
      }),
    };
    this.latencies = LATENCIES.map(([name, label, hint]) => {
      const cells = ["p50_ms", "p90_ms", "p99_ms", "max_ms", "count"].map(() => el("td", { class: "number" }));
      const strip = distribution(label);
      const row = el("tr", {}, el("th", { scope: "row", title: hint }, label), cells,
        el("td", { class: "wide" }, strip.node));
      return { name, cells, strip, row };
    });
    this.node = el("div", { class: "live" },
      el("section", { class: "figures", "aria-label": "Now" },
        figure("generated", "Generated", `tokens a second, mean of the last ${RATE_S} s`),
        figure("prompt", "Prompt", `prompt tokens computed a second, mean of the last ${RATE_S} s`),
        figure("running", "Running", "sequences that own a device row"),
        figure("waiting", "Waiting", "requests that wait for a row"),
        figure("kv", "KV cache", "share of KV blocks in use"),
        figure("prefix", "Prefix cache", "share of looked-up prompt tokens found, last five minutes"),
        figure("ended", "Ended", "requests that ended in the last five minutes")),
      el("section", { class: "charts", "aria-label": "Last five minutes" },
        Object.values(this.charts).map((chart) => chart.node)),
      el("section", {},
        el("h2", {}, "Latency ", el("small", {}, "last five minutes; figures are within 5 %")),
        el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Latency" },
          el("table", { class: "latency" },
            el("thead", {}, el("tr", {}, el("td", {}),
              ["p50", "p90", "p99", "longest", "count"].map((head) =>
                el("th", { scope: "col", class: "number" }, head)),
              el("th", { scope: "col", class: "wide" }, "distribution, ▾ at p50 and p99"))),
            el("tbody", {}, this.latencies.map(({ row }) => row),
              el("tr", { class: "scale" }, el("td", { colspan: "6" }), el("td", { class: "wide" }, decades())))))),
      this.quiet = el("p", { class: "hint", hidden: true },
        "No request has run in the last five minutes. Send one from the playground, or to /v1/chat/completions."));
  }

  update() {
    const { latest, first, columns, span } = this.store;
    if (!latest) return;
    const { figures, stats } = latest;
    const recent = (name) => columns[name].slice(-RATE_S).reduce((sum, value) => sum + value, 0) / RATE_S;
    const total = (name) => columns[name].reduce((sum, value) => sum + value, 0);
    this.show("generated", short(recent("generation_tokens")), "tok/s");
    this.show("prompt", short(recent("prompt_tokens")), "tok/s");
    this.show("running", short(stats.num_running), `of ${latest.max_num_seqs}`);
    this.show("waiting", short(stats.num_waiting), total("preempted") > 0 ? `${total("preempted")} preempted` : "");
    this.show("kv", percent(stats.kv_cache_usage), "");
    const queries = total("prefix_queries");
    this.show("prefix", queries > 0 ? percent(total("prefix_hits") / queries) : NOTHING, "found");
    const failed = total("failed");
    this.show("ended", short(total("finished")), failed > 0 ? `${failed} failed` : "");
    this.figures.ended.note.className = failed > 0 ? "bad" : "";
    this.figures.waiting.value.className = stats.num_waiting > 0 ? "warm" : "";
    const found = columns.prefix_queries.map((asked, at) => asked > 0 ? columns.prefix_hits[at] / asked : null);
    this.charts.tokens.update(first, [columns.generation_tokens, columns.prompt_tokens], span);
    this.charts.requests.update(first, [columns.running, columns.waiting], span);
    this.charts.step.update(first, [columns.step_ms, columns.max_step_ms], span);
    this.charts.cache.update(first, [columns.kv_usage, found], span);
    for (const { name, cells, strip } of this.latencies) {
      const one = figures[name];
      const texts = [one.p50_ms, one.p90_ms, one.p99_ms, one.count > 0 ? one.max_ms : null].map(duration);
      [...texts, short(one.count)].forEach((text, at) => setText(cells[at], text));
      strip.update(one);
    }
    this.quiet.hidden = figures.step.count > 0;
  }

  show(name, value, note) {
    setText(this.figures[name].value, value);
    setText(this.figures[name].note, note);
  }
}
