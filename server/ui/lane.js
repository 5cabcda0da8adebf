// One conversation of the playground: a model, its parameters, the messages. Sends them, shows the answer as it comes.

import { stream } from "./api.js";
import { el, field, setText } from "./dom.js";
import { duration, short } from "./format.js";
import { TokenText } from "./tokens.js";

const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.1 }],
  ["top_p", "Top p", { min: 0, max: 1, step: 0.05 }],
  ["max_tokens", "Max tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { step: 1 }],
];

export class Lane {
  constructor(name, changed) {
    this.changed = changed;
    this.messages = [];
    /** A frame that will follow the text. */
    this.frame = null;
    /** The height of the log as the last frame showed it. */
    this.height = 0;
    this.model = el("select", {});
    this.inputs = Object.fromEntries(NUMBERS.map(([key, , limits]) =>
      [key, el("input", { type: "number", inputmode: "decimal", placeholder: "default", ...limits })]));
    this.more = el("textarea", { rows: 2, placeholder: '{"top_k": 20}', spellcheck: "false" });
    this.log = el("div", { class: "messages", role: "log", "aria-label": `Conversation ${name}` });
    const numbers = NUMBERS.map(([key, label]) => field(label, this.inputs[key]));
    this.node = el("section", { class: "lane", "aria-label": `Lane ${name}` },
      el("div", { class: "settings" }, field("Model", this.model),
        el("details", { class: "parameters" }, el("summary", {}, "Parameters"),
          el("div", { class: "fields" }, numbers),
          field("More, as JSON", this.more, "Any field of /v1/chat/completions"))),
      this.log);
  }

  setModels(names) {
    const chosen = this.model.value;
    this.model.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    if (names.includes(chosen)) this.model.value = chosen;
  }

  get isRunning() {
    return Boolean(this.abort);
  }

  stop() {
    this.abort?.abort();
  }

  clear() {
    this.stop();
    this.messages = [];
    this.log.replaceChildren();
  }

  /** The fields that this lane adds to a request; throws words for one that cannot be sent. */
  parameters() {
    const found = { model: this.model.value };
    for (const [key, label] of NUMBERS) {
      const { value, validity } = this.inputs[key];
      if (!validity.valid) throw new Error(`${label}: ${this.inputs[key].validationMessage}`);
      if (value !== "") found[key] = Number(value);
    }
    if (this.more.value.trim() === "") return found;
    let more;
    try {
      more = JSON.parse(this.more.value);
    } catch (error) {
      throw new Error(`More, as JSON: ${error.message}`);
    }
    if (typeof more !== "object" || more === null || Array.isArray(more)) {
      throw new Error("More, as JSON: give an object such as {\"top_k\": 20}");
    }
    return { ...found, ...more };
  }

  /** Adds a message and has it answered. `shared`: fields of all lanes; `system`: a system prompt, or "". */
  async send(message, shared, system) {
    this.messages.push(...[message].flat());
    for (const one of [message].flat()) {
      this.log.append(el("div", { class: `message ${one.role}` }, el("span", { class: "role" }, one.role),
        el("div", { class: "text" }, one.content)));
    }
    await this.answer(shared, system);
  }

  async answer(shared, system) {
    const view = new AnswerView();
    this.log.append(view.node);
    this.toEnd();
    this.abort = new AbortController();
    this.changed();
    const begin = performance.now();
    try {
      const messages = system === "" ? this.messages : [{ role: "system", content: system }, ...this.messages];
      const body = {
        ...this.parameters(), ...shared, messages, stream: true, stream_options: { include_usage: true },
      };
      for await (const event of stream("v1/chat/completions", { body, signal: this.abort.signal })) {
        view.take(event, performance.now() - begin);
        this.follow();
      }
      view.end(performance.now() - begin);
    } catch (error) {
      view.fail(error.name === "AbortError" ? "stopped" : error.message);
    }
    this.abort = null;
    this.messages.push(view.message());
    if (view.calls.length > 0) this.askForResults(view, shared, system);
    this.toEnd();
    this.changed();
  }

  /** Fields for the results of tool calls, which go back to the model. */
  askForResults(view, shared, system) {
    const inputs = view.calls.map((call) => el("input", { type: "text", "aria-label": `Result of ${call.name}` }));
    const form = el("form", {
      class: "results",
      onsubmit: (event) => {
        event.preventDefault();
        form.remove();
        const results = view.calls.map((call, index) =>
          ({ role: "tool", tool_call_id: call.id, content: inputs[index].value }));
        this.send(results, shared, system);
      },
    },
    view.calls.map((call, index) => field(`Result of ${call.name}`, inputs[index])),
    el("button", {}, "Send results"));
    view.node.append(form);
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
    this.height = this.log.scrollHeight;
  }

  /** Goes with the text, unless somebody has scrolled up. Once a frame, as each time lays out the whole text. */
  follow() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      const wasAtEnd = this.height - this.log.scrollTop - this.log.clientHeight < 40;
      if (wasAtEnd) this.toEnd();
      else this.height = this.log.scrollHeight;
    });
  }
}

/** An answer while it comes: reasoning folded, text, tool calls, and a line of figures. */
class AnswerView {
  constructor() {
    this.content = "";
    this.reasoning = "";
    this.calls = [];
    this.finish = null;
    this.first = null;
    this.text = new TokenText();
    this.thoughts = el("div", { class: "text" });
    this.thinking = el("details", { class: "reasoning", hidden: true }, el("summary", {}, "Reasoning"), this.thoughts);
    this.tools = el("div", {});
    this.line = el("p", { class: "figures-line" }, "…");
    this.node = el("div", { class: "message assistant", "aria-busy": "true" },
      el("span", { class: "role" }, "assistant"), this.thinking, this.text.node, this.tools, this.line);
  }

  take(event, ms) {
    this.usage = event.usage ?? this.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    this.finish = choice.finish_reason ?? this.finish;
    const { content, reasoning, tool_calls: calls } = choice.delta ?? {};
    if (!content && !reasoning && !calls) return;
    this.first ??= ms;
    this.last = ms;
    if (reasoning) {
      this.reasoning += reasoning;
      this.thinking.hidden = false;
      this.thoughts.append(reasoning);
    }
    if (content) {
      this.content += content;
      this.text.add(content, choice.logprobs?.content);
    }
    for (const piece of calls ?? []) this.takeCall(piece);
  }

  takeCall(piece) {
    const call = this.calls[piece.index] ??= { id: "", name: "", arguments: "" };
    call.id ||= piece.id ?? "";
    call.name += piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
    if (!call.node) {
      call.node = el("code", {});
      this.tools.append(el("p", { class: "call" }, "calls ", call.node));
    }
    setText(call.node, `${call.name}(${call.arguments})`);
  }

  end(ms) {
    const tokens = this.usage?.completion_tokens;
    const rate = tokens > 1 && this.last > this.first ? (tokens - 1) / ((this.last - this.first) / 1000) : null;
    const words = [
      this.finish && `end: ${this.finish}`, tokens !== undefined && `${tokens} tokens`,
      this.usage && `prompt ${this.usage.prompt_tokens}`, this.first !== null && `first after ${duration(this.first)}`,
      rate && `${short(rate)} tok/s`, `all ${duration(ms)}`,
    ];
    this.done(words.filter(Boolean).join(" · "));
  }

  fail(message) {
    this.done(message);
    this.line.classList.add("bad");
    this.line.setAttribute("role", "alert");
  }

  done(words) {
    setText(this.line, words);
    this.node.removeAttribute("aria-busy");
  }

  /** The answer as a message of the conversation. */
  message() {
    const calls = this.calls.map((call) =>
      ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    return { role: "assistant", content: this.content, ...(calls.length > 0 ? { tool_calls: calls } : {}) };
  }
}
