// What serves: the model, its platform and devices, plugins with the stages of their loading, stat loggers, adapters.

import { ask } from "./api.js";
import { el, table } from "./dom.js";
import { bytes, short } from "./format.js";

/** States of plugins, in the order in which they are shown. */
const STATES = { in_use: "in use", refused: "refused", shadowed: "shadowed", not_used: "not used" };
const word = (kind) => String(kind ?? "unknown").replaceAll("-", " ").replace("io ", "IO ").replace("lora", "LoRA");

export class SystemView {
  constructor() {
    this.hint = el("p", { class: "hint" }, "Asking the server…");
    this.node = el("div", { class: "system" }, this.hint);
    this.sections = new Map();
    this.open = new Set();
  }

  /** Asks the server and shows the answer. */
  async refresh() {
    try {
      const facts = await ask("ui/system");
      this.hint.hidden = true;
      this.show("model", facts.model, model);
      this.show("devices", { model: facts.model, devices: facts.devices }, devices);
      this.show("plugins", facts.plugins, (plugins) => this.plugins(plugins));
      this.show("loggers", facts.stat_loggers, loggers);
      this.show("adapters", { model: facts.model, adapters: facts.adapters }, adapters);
    } catch (error) {
      this.hint.hidden = false;
      this.hint.textContent = error.message;
    }
  }

  /** Shows a section. One that has not changed stays as it is, with the focus and the selection in it. */
  show(name, facts, build) {
    const text = JSON.stringify(facts);
    const known = this.sections.get(name);
    if (known?.text === text) return;
    const node = build(facts);
    if (known) known.node.replaceWith(node);
    else this.node.append(node);
    this.sections.set(name, { text, node });
  }

  plugins(plugins) {
    const order = Object.keys(STATES);
    const sorted = [...plugins].sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state));
    const items = sorted.map((plugin) => {
      const id = `${plugin.kind}/${plugin.name}/${plugin.path}`;
      const stages = el("ol", { class: "stages" }, plugin.stages.map((stage) =>
        el("li", { class: stage.passed ? "" : "bad" },
          el("b", {}, `${stage.passed ? "✓" : "✗"} ${String(stage.stage).toLowerCase()}`), ` ${stage.detail}`)));
      const last = {
        in_use: "Loaded and in use by this server.",
        not_used: "Its code was not run for this page: `halyard plugins why NAME` goes on with the later stages.",
      }[plugin.state];
      return el("details", {
        class: `plugin ${plugin.state}`, open: this.open.has(id),
        ontoggle: (event) => this.open[event.target.open ? "add" : "delete"](id),
      },
      el("summary", {},
        el("span", { class: "state" }, STATES[plugin.state]), el("b", {}, plugin.name),
        el("span", { class: "faint" }, `${word(plugin.kind)} ${plugin.version ?? ""}`),
        el("span", { class: "why" }, plugin.reason ?? plugin.about ?? "")),
      stages, last && el("p", { class: "faint" }, last));
    });
    return el("section", {}, el("h2", {}, "Plugins ", el("small", {}, "on the search path; unfold for the stages")),
      items.length > 0 ? items : el("p", { class: "hint" }, "No plugin file is on the search path."));
  }
}

function model(model) {
  const facts = [
    ["served as", model.names.join(", ")], ["from", model.path],
    ["architecture", `${model.architecture}, ${bytes(model.weight_bytes)}, ${model.dtype}`],
    ["context", `${short(model.max_model_len)} tokens`],
    ["batch", `${model.max_num_seqs} sequences, ${model.max_num_batched_tokens} tokens a step`],
    ["KV cache", `${bytes(model.kv_cache_bytes)}: ${model.num_blocks} blocks of ${model.block_size} tokens, ` +
      `${model.kv_cache_dtype}`],
    ["prefix cache", model.prefix_caching ? "on" : "off"], ["attention", model.attention_backend],
    ["chat template", model.has_chat_template ? "yes" : "none: the playground needs one"],
  ];
  return el("section", {}, el("h2", {}, "Model"),
    el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    model.notes.length > 0 && el("ul", { class: "notes" }, model.notes.map((note) => el("li", {}, note))));
}

function devices({ model, devices }) {
  const rows = devices.map((device, rank) => [
    String(rank), device.name, device.detail,
    `${bytes(device.total_memory_bytes)}${device.unified_memory ? ", shared with the host" : ""}`,
    String(device.num_compute_units || ""), device.capabilities.join(", "),
  ]);
  return el("section", {}, el("h2", {}, "Platform ", el("small", {}, model.platform)),
    table("Devices", [{ text: "Rank" }, { text: "Device" }, { text: "Detail" }, { text: "Memory" },
      { text: "Units", number: true }, { text: "Capabilities" }], rows));
}

function loggers(sinks) {
  const rows = sinks.map((sink) => [
    el("b", {}, sink.name), el("span", { class: sink.state === "active" ? "" : "bad" },
      sink.state + (sink.retry_in_s ? `, again in ${sink.retry_in_s.toFixed(0)} s` : "")),
    short(sink.delivered), short(sink.dropped), short(sink.pending), sink.isolation,
    sink.last_error ?? (sink.path ? "" : "part of the program"),
  ]);
  return el("section", {}, el("h2", {}, "Stat loggers ", el("small", {}, "records since the start")),
    table("Stat loggers", [{ text: "Name" }, { text: "State" }, { text: "Delivered", number: true },
      { text: "Dropped", number: true }, { text: "Pending", number: true }, { text: "Runs in a" },
      { text: "Last error" }], rows));
}

function adapters({ adapters, model }) {
  const rows = adapters.map((adapter) => [
    el("b", {}, adapter.name), String(adapter.residency).toLowerCase(), String(adapter.rank), bytes(adapter.bytes),
    short(adapter.num_running), short(adapter.num_waiting), short(adapter.requests_total),
    short(adapter.device_loads_total),
  ]);
  const none = model.max_loras > 0 ? "No adapter is loaded." : "This server runs without LoRA (--enable-lora).";
  return el("section", {}, el("h2", {}, "Adapters"),
    rows.length === 0 ? el("p", { class: "hint" }, none) : table("Adapters", [
      { text: "Name" }, { text: "Is on" }, { text: "Rank", number: true }, { text: "Size", number: true },
      { text: "Running", number: true }, { text: "Waiting", number: true }, { text: "Sequences", number: true },
      { text: "Loads", number: true }], rows));
}
