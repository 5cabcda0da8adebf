// A chat with one model, or the same message to two of them or to two sets of parameters, next to each other.

import { ask } from "./api.js";
import { el, field, setText } from "./dom.js";
import { Lane } from "./lane.js";
import { legend } from "./tokens.js";

const EXAMPLE = [{
  type: "function",
  function: {
    name: "weather",
    description: "The weather of a city now",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
}];

export class PlaygroundView {
  constructor() {
    const changed = () => this.update();
    this.lanes = [new Lane("A", changed), new Lane("B", changed)];
    this.lanes[1].node.hidden = true;
    this.compare = el("input", { type: "checkbox", onchange: () => this.arrange() });
    this.logprobs = el("input", { type: "checkbox", onchange: () => { this.legend.hidden = !this.logprobs.checked; } });
    this.legend = legend();
    this.legend.hidden = true;
    this.system = el("textarea", { rows: 2, placeholder: "none" });
    this.tools = el("textarea", { rows: 4, spellcheck: "false", placeholder: "none; a JSON list of tools" });
    this.input = el("textarea", {
      rows: 2, placeholder: "Message", "aria-label": "Message", enterkeyhint: "send",
      onkeydown: (event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        this.submit();
      },
    });
    this.button = el("button", { class: "primary" }, "Send");
    this.stopButton = el("button", { type: "button", disabled: true, onclick: () => this.stop() }, "Stop");
    this.clearButton = el("button", { type: "button", onclick: () => this.clear() }, "Clear");
    this.error = el("p", { class: "error", role: "alert", hidden: true });
    this.node = el("div", {
      class: "playground",
      onkeydown: (event) => event.key === "Escape" && this.stop(),
    },
    el("div", { class: "bar" },
      el("label", { class: "check" }, this.compare, "Two side by side"),
      el("label", { class: "check" }, this.logprobs, "Probabilities"),
      this.legend),
    el("details", { class: "shared" }, el("summary", {}, "System prompt and tools"),
      field("System prompt", this.system),
      field("Tools", this.tools),
      el("button", {
        type: "button", onclick: () => { this.tools.value = JSON.stringify(EXAMPLE, null, 2); },
      }, "Insert an example")),
    el("div", { class: "lanes" }, this.lanes.map((lane) => lane.node)),
    this.error,
    el("form", { class: "composer", onsubmit: (event) => { event.preventDefault(); this.submit(); } },
      this.input, el("div", { class: "buttons" }, this.button, this.stopButton, this.clearButton)),
    el("p", { class: "hint" }, "Enter sends, Shift+Enter begins a line, Escape stops. A reload clears all."));
  }

  /** Asks for the models that are served, adapters included. */
  async refresh() {
    try {
      const { data } = await ask("v1/models");
      this.lanes.forEach((lane) => lane.setModels(data.map(({ id }) => id)));
      this.say(null);
    } catch (error) {
      this.say(error.message);
    }
  }

  get active() {
    return this.lanes.filter((lane) => !lane.node.hidden);
  }

  arrange() {
    this.lanes[1].node.hidden = !this.compare.checked;
    this.node.classList.toggle("two", this.compare.checked);
  }

  say(message) {
    this.error.hidden = !message;
    setText(this.error, message ?? "");
  }

  shared() {
    const fields = this.logprobs.checked ? { logprobs: true, top_logprobs: 5 } : {};
    if (this.tools.value.trim() === "") return fields;
    let tools;
    try {
      tools = JSON.parse(this.tools.value);
    } catch (error) {
      throw new Error(`Tools: ${error.message}`);
    }
    if (!Array.isArray(tools)) throw new Error("Tools: give a list, [{\"type\": \"function\", …}]");
    return { ...fields, tools };
  }

  submit() {
    const content = this.input.value;
    if (content.trim() === "" || this.active.some((lane) => lane.isRunning)) return;
    try {
      const shared = this.shared();
      this.active.forEach((lane) => lane.parameters());
      this.say(null);
      this.input.value = "";
      this.active.forEach((lane) => lane.send({ role: "user", content }, shared, this.system.value.trim()));
    } catch (error) {
      this.say(error.message);
    }
  }

  stop() {
    this.lanes.forEach((lane) => lane.stop());
  }

  clear() {
    this.lanes.forEach((lane) => lane.clear());
    this.input.focus();
  }

  update() {
    const running = this.lanes.some((lane) => lane.isRunning);
    this.button.disabled = running;
    this.stopButton.disabled = !running;
  }
}
