// An answer's text, and its tokens coloured by their probability, with a line that reads one of them.

import { el, setText } from "./dom.js";
import { GAP } from "./format.js";

/** Lower ends of the classes of probability, the likeliest first. */
const CLASSES = [0.9, 0.5, 0.2, 0.05, 0];

const probability = (logprob) => Math.exp(Math.max(logprob, -9999));
const shown = (share) => `${share >= 0.0995 ? (share * 100).toFixed(0) : (share * 100).toPrecision(2)}${GAP}%`;

function classOf(logprob) {
  return CLASSES.findIndex((least) => probability(logprob) >= least);
}

/** The colours and what they mean. */
export function legend() {
  const words = ["≥ 90 %", "≥ 50 %", "≥ 20 %", "≥ 5 %", "less"];
  return el("p", { class: "scale-of-tokens" }, "Probability: ",
    words.map((word, index) => el("span", { class: `token p${index}` }, word)));
}

/** Text that grows. `add(text, logprobs)`: logprobs of the text's tokens, where they were asked for. */
export class TokenText {
  constructor() {
    this.tokens = [];
    this.selected = null;
    this.text = el("div", { class: "text said" });
    this.reader = el("p", { class: "reader", hidden: true, "aria-live": "polite" });
    this.node = el("div", {}, this.text, this.reader);
    this.text.addEventListener("keydown", (event) => this.key(event));
    this.text.addEventListener("click", (event) => {
      const index = this.tokens.findIndex(({ node }) => node === event.target);
      if (index >= 0) this.select(index);
    });
  }

  add(text, logprobs) {
    if (!logprobs || logprobs.length === 0) {
      this.text.append(text);
      return;
    }
    const whole = logprobs.map(({ token }) => token).join("");
    if (whole === text) logprobs.forEach((one) => this.token(one.token, one));
    // A character of several tokens, or markers that were taken out: the piece stands for its likeliest doubt.
    else this.token(text, logprobs.reduce((least, one) => (one.logprob < least.logprob ? one : least)));
  }

  token(text, facts) {
    const node = el("span", { class: `token p${classOf(facts.logprob)}` }, text);
    this.tokens.push({ node, facts });
    this.text.append(node);
    if (this.tokens.length === 1) {
      this.text.tabIndex = 0;
      this.text.setAttribute("role", "group");
      this.text.setAttribute("aria-label", "Answer; arrow keys read the probability of its tokens");
    }
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || this.tokens.length === 0) return;
    event.preventDefault();
    const from = this.selected ?? (step > 0 ? -1 : this.tokens.length);
    this.select(Math.min(Math.max(from + step, 0), this.tokens.length - 1));
  }

  select(index) {
    if (this.selected !== null) this.tokens[this.selected].node.classList.remove("chosen");
    this.selected = index;
    const { node, facts } = this.tokens[index];
    node.classList.add("chosen");
    const others = (facts.top_logprobs ?? []).filter(({ token }) => token !== facts.token)
      .map(({ token, logprob }) => `${JSON.stringify(token)} ${shown(probability(logprob))}`);
    this.reader.hidden = false;
    setText(this.reader, `${JSON.stringify(facts.token)} ${shown(probability(facts.logprob))}` +
      (others.length > 0 ? ` · instead of ${others.join(", ")}` : ""));
  }
}
