// Charts over time and distributions, as SVG: axes with units, a readout under the pointer or the arrow keys.

import { el, svg } from "./dom.js";
import { axisDuration, clock, duration, niceCeiling, short } from "./format.js";

const HEIGHT = 132;
const LEFT = 50;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

/**
 * A chart of the last minutes, one value a second. `series`: {name, kind: "area" | "line" | "dots", style: 1…4}.
 * `format` writes a value, `axis` one of the scale; `least` is the smallest upper end of the scale, `most` a fixed one.
 */
export class TimeChart {
  constructor({ title, unit, series, format = short, axis = format, least = 1, most }) {
    Object.assign(this, { title, series, format, axis, least, most });
    this.cursor = null;
    this.readout = el("output", { class: "readout" });
    this.plot = svg("svg", { class: "plot", tabindex: "0", role: "img", height: HEIGHT });
    this.node = el("figure", { class: "chart" },
      el("figcaption", {}, el("strong", {}, title), el("span", { class: "unit" }, unit), this.readout),
      this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.move(null));
    this.plot.addEventListener("blur", () => this.move(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  /** Shows columns (one array a series) whose first value is of the second `first`. */
  update(first, columns, span) {
    Object.assign(this, { first, columns, span });
    this.draw();
  }

  get length() {
    return this.columns?.[0]?.length ?? 0;
  }

  point(event) {
    const box = this.plot.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / Math.max(1, box.width - LEFT - RIGHT);
    const index = Math.round(share * (this.span - 1)) - (this.span - this.length);
    this.move(Math.min(Math.max(index, 0), this.length - 1));
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || this.length === 0) return;
    event.preventDefault();
    const from = this.cursor ?? this.length - 1;
    this.move(Math.min(Math.max(from + steps[event.key], 0), this.length - 1));
    this.readout.setAttribute("aria-live", "polite");
  }

  move(index) {
    this.cursor = index;
    if (index === null) this.readout.removeAttribute("aria-live");
    this.draw();
  }

  draw() {
    const width = this.plot.clientWidth || this.node.clientWidth;
    if (!width || !this.columns) return;
    const top = Math.max(this.least, ...this.columns.flat().filter((value) => value !== null));
    const most = this.most ?? niceCeiling(top);
    const x = (index) => LEFT + ((index + this.span - this.length) / (this.span - 1)) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - Math.min(value, most) / most) * (HEIGHT - TOP - BOTTOM);
    this.plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const parts = this.axes(width, most, y);
    this.series.forEach((one, index) => parts.push(...shape(one, this.columns[index], x, y)));
    if (this.cursor !== null && this.cursor < this.length) {
      const at = x(this.cursor);
      parts.push(svg("line", { class: "cursor", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    this.plot.replaceChildren(...parts);
    this.read();
  }

  axes(width, most, y) {
    const parts = [];
    for (const value of [0, most / 2, most]) {
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
      parts.push(svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" },
        this.axis(value)));
    }
    const minutes = Math.round(this.span / 60);
    for (let minute = 0; minute <= minutes; minute += 1) {
      const at = LEFT + (minute / minutes) * (width - LEFT - RIGHT);
      const text = minute === minutes ? "now" : `−${minutes - minute} min`;
      const anchor = minute === 0 ? "start" : minute === minutes ? "end" : "middle";
      parts.push(svg("line", { class: "mark", x1: at, x2: at, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }));
      if (width > 420 || minute === 0 || minute === minutes) {
        parts.push(svg("text", { class: "tick", x: at, y: HEIGHT - 4, "text-anchor": anchor }, text));
      }
    }
    return parts;
  }

  /** The values under the cursor, or the last ones, next to the title. */
  read() {
    const index = Math.min(this.cursor ?? this.length - 1, this.length - 1);
    const values = this.series.map((one, at) => ({ ...one, value: this.columns[at][index] }));
    const when = this.cursor === null ? "" : clock((this.first + index) * 1000);
    const texts = values.map((one) => el("span", { class: `key s${one.style}` },
      `${one.name} `, el("b", {}, this.format(one.value))));
    this.readout.replaceChildren(when && el("time", {}, when), ...texts);
    const words = values.map((one) => `${one.name} ${this.format(one.value)}`).join(", ");
    this.plot.setAttribute("aria-label", `${this.title}: ${words}. Arrow keys read other seconds.`);
  }
}

function shape(one, values, x, y) {
  if (one.kind === "dots") {
    const dots = values.map((value, index) => value === null ? "" : `M${x(index).toFixed(1)} ${y(value).toFixed(1)}h0`);
    return [svg("path", { class: `dots s${one.style}`, d: dots.join("") })];
  }
  let line = "";
  let pen = "M";
  values.forEach((value, index) => {
    if (value === null) {
      pen = "M";
      return;
    }
    line += `${pen}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  const parts = [svg("path", { class: `line s${one.style}`, d: line })];
  if (one.kind === "area" && values.length > 0) {
    const under = `${line}L${x(values.length - 1).toFixed(1)} ${y(0)}L${x(0).toFixed(1)} ${y(0)}Z`;
    parts.unshift(svg("path", { class: `area s${one.style}`, d: under }));
  }
  return parts;
}

const DECADES = [0.1, 1, 10, 100, 1000, 10_000, 100_000];

function place(ms, width) {
  const share = Math.log10(Math.max(ms, DECADES[0]) / DECADES[0]) / Math.log10(DECADES.at(-1) / DECADES[0]);
  return Math.min(share, 1) * width;
}

/** A strip with the distribution of durations: {buckets: [[ms, count]…], p50_ms, p99_ms} on a scale of decades. */
export function distribution(label) {
  const node = svg("svg", { class: "strip", role: "img", "aria-label": label, height: 26 });
  return {
    node,
    update(figures) {
      const width = node.clientWidth || 200;
      node.setAttribute("viewBox", `0 0 ${width} 26`);
      const most = Math.max(1, ...figures.buckets.map(([, count]) => count));
      const parts = DECADES.map((ms) => {
        const at = place(ms, width);
        return svg("line", { class: "grid", x1: at, x2: at, y1: 0, y2: 26 });
      });
      const bar = Math.max(1.5, width / 160);
      for (const [ms, count] of figures.buckets) {
        const height = Math.max(2, (count / most) * 22);
        parts.push(svg("rect", { class: "count", x: place(ms, width) - bar / 2, y: 24 - height, width: bar, height }));
      }
      for (const ms of [figures.p50_ms, figures.p99_ms]) {
        if (ms === null) continue;
        const at = place(ms, width);
        parts.push(svg("path", { class: "quantile", d: `M${at - 4} 0h8l-4 5z` }));
      }
      parts.push(svg("line", { class: "mark", x1: 0, x2: width, y1: 24.5, y2: 24.5 }));
      node.replaceChildren(...parts);
      const range = figures.count === 0 ? "none in five minutes"
        : `half within ${duration(figures.p50_ms)}, 99 of 100 within ${duration(figures.p99_ms)}`;
      node.setAttribute("aria-label", `${label}: ${range}`);
    },
  };
}

/** The scale below the strips. */
export function decades() {
  const node = svg("svg", { class: "strip", height: 16, "aria-hidden": "true" });
  new ResizeObserver(() => {
    const width = node.clientWidth;
    if (!width) return;
    node.setAttribute("viewBox", `0 0 ${width} 16`);
    const shown = DECADES.filter((_, index) => width > 260 || index % 2 === 1);
    node.replaceChildren(...shown.map((ms) => {
      const at = place(ms, width);
      const anchor = ms === DECADES[0] ? "start" : ms === DECADES.at(-1) ? "end" : "middle";
      return svg("text", { class: "tick", x: at, y: 12, "text-anchor": anchor }, axisDuration(ms));
    }));
  }).observe(node);
  return node;
}
