// What a policy made of each candidate: bars of its own terms, which add up to the key. The lowest
// wins, so the chosen one has the shortest bar. Where keys are negative, bars begin at the best that
// there could be, which is the same for all.

import { count, el, Figure, legend, ms, unknown } from "./dom.js";
import { instanceLink } from "./links.js";
import { figures, words } from "./table.js";

const MEANINGS = {
  wait: "until it would begin",
  load: "from a slower tier",
  fetch: "from another instance",
  prefill: "computing the prompt",
  work: "what computing counts besides, since it keeps others waiting",
  others: "how much longer those behind it wait, together",
  waiting: "what it has yet to compute of other prompts",
  "to compute": "what it would compute of this prompt",
  held: "what it would hold then",
  "times requests": "as much for each request that is there",
  "in flight": "tokens that it has yet to compute",
  "at best": "the key of one that holds all of the prompt and is free, where bars begin",
  "not cached": "what it does not hold of the prompt",
  busy: "how long the queue is",
  other: "what is left of the key",
};
const SHOWN = 64;

const plain = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const placed = (one) => `${one.instance_id}${one.dp_rank > 0 ? ` rank ${one.dp_rank}` : ""}`;

// A key, or a part of one, as text: keys in seconds are shown in ms, as all times are.
const textOf = (unit) => (value) => {
  if (value === null || value === undefined) return unknown;
  if (unit === "s") return ms(1000 * value);
  return `${unit === "tokens" ? count(value) : plain.format(value)}${unit ? ` ${unit}` : ""}`;
};

export class CandidatesFigure {
  // one: a document of /decisions/ID
  constructor(one) {
    this.one = one;
    this.order = [...one.considered].sort((a, b) => b.eligible - a.eligible || (a.key ?? Infinity) - (b.key ?? Infinity)
      || this.isChosen(b) - this.isChosen(a));
    const written = this.written = textOf(one.key_unit);
    this.all = [...new Set(this.order.flatMap((row) => Object.keys(row.key_terms)))];
    // Of the same colour in each decision of a policy, whichever terms are 0 there.
    this.terms = this.all.filter((term) => this.order.some((row) => Math.abs(row.key_terms[term] ?? 0) > 1e-12));
    this.drawn = this.terms.filter((term) => term !== "at best");
    const isTime = one.key_unit === "s";
    const inUnit = (value) => (value === null || value === undefined ? null : isTime ? 1000 * value : value);
    const unit = { unit: isTime ? "ms" : one.key_unit };
    const figure = new Figure("What the policy made of each candidate; the lowest wins", {
      legend: this.drawn.map((term) => legend(this.part(term), term, MEANINGS[term])),
      columns: [
        words("Candidate", placed, { cell: (row) => instanceLink(row.instance_id, one.tenant_id, placed(row)) }),
        words("Chosen", (row) => (this.isChosen(row) ? "yes" : "")), words("Left out", (row) => row.reasons.join(", ")),
        figures("Cached", (row) => row.cached_tokens), figures("Key", (row) => inUnit(row.key), (value) => shortOf(value), unit),
        ...this.all.map((term) => figures(term, (row) => inUnit(row.key_terms[term]), (value) => shortOf(value), unit))],
      rows: () => this.order, noun: "candidates" });
    this.element = figure.element;
    const sums = (row, sign) => this.drawn.reduce((all, term) => all + Math.max(sign * (row.key_terms[term] ?? 0), 0), 0);
    this.low = Math.max(0, ...this.order.map((row) => sums(row, -1)));
    this.room = Math.max(1e-12, this.low + Math.max(0, ...this.order.map((row) => sums(row, 1))));
    figure.picture.append(...this.order.slice(0, SHOWN).map((row) => this.line(row, written)));
    if (this.order.length > SHOWN) figure.picture.append(el("p", { class: "small" }, `${count(this.order.length - SHOWN)} more are in the table.`));
    if (this.terms.length) figure.picture.append(el("p", { class: "small" }, `Key = ${this.terms.join(" + ")}. `,
      this.terms.filter((term) => MEANINGS[term]).map((term) => `${term}: ${MEANINGS[term]}`).join("; "), "."));
  }
  isChosen(row) {
    const { chosen } = this.one;
    return chosen !== null && row.instance_id === chosen.instance_id && row.dp_rank === chosen.dp_rank;
  }
  part(term) {
    return `part-${1 + this.all.indexOf(term)}`;
  }
  // Why it was the chosen one, in one sentence.
  verdict() {
    const { one } = this;
    if (one.chosen === null) return `Nobody was chosen: ${one.refused}.`;
    const ranked = this.order.filter((row) => row.eligible && row.key !== null);
    const chosen = ranked.find((row) => this.isChosen(row));
    if (!chosen) return `${placed(one.chosen)} was chosen.`;
    const among = ranked.length === 1 ? "the only candidate" : `of ${count(ranked.length)} candidates`;
    const next = ranked.find((row) => row !== chosen);
    if (next && next.key < chosen.key) {
      if (one.kept_session) return `${placed(chosen)} was chosen: the session was there, and its key, ${this.written(chosen.key)}, is nearly the lowest, ${this.written(next.key)}.`;
      return `${placed(chosen)} was chosen: it decodes, and computes what it lacks of the prompt itself.`;
    }
    if (next && next.key === chosen.key) return `${placed(chosen)} was chosen: its key, ${this.written(chosen.key)}, is the lowest ${among}; of equals, a hash of the decision chose.`;
    return `${placed(chosen)} was chosen: its key, ${this.written(chosen.key)}, is ${next ? `the lowest ${among}; the next is ${this.written(next.key)}` : `that of ${among}`}.`;
  }
  line(row, written) {
    let left = 0, right = 0;
    const zero = 100 * this.low / this.room;
    const parts = this.drawn.map((term) => {
      const value = row.key_terms[term] ?? 0, width = 100 * Math.abs(value) / this.room;
      const from = value < 0 ? zero - left - width : zero + right;
      if (value < 0) left += width;
      else right += width;
      return width > 0 ? el("span", { class: this.part(term), "data-term": term, title: `${term} ${written(value)}`,
        style: { left: `${from}%`, width: `${width}%` } }) : null;
    });
    const isKeyed = row.key !== null;
    const reasons = row.reasons.length ? (row.eligible ? `, ${row.reasons.join(", ")}` : `left out: ${row.reasons.join(", ")}`) : "";
    const text = `${isKeyed ? `${written(row.key)}, ${count(row.cached_tokens)} cached` : ""}${isKeyed && !row.eligible ? ", " : ""}${reasons}`;
    return el("div", { class: `line of-three${this.isChosen(row) ? " is-chosen" : ""}`, "data-candidate": placed(row) },
      el("span", {}, this.isChosen(row) ? "► " : "", instanceLink(row.instance_id, this.one.tenant_id, placed(row))),
      el("div", { class: "track", role: "img", "aria-label": `${placed(row)}: ${text}` }, ...parts.filter(Boolean),
        this.low ? el("i", { class: "zero", style: { left: `${zero}%` } }) : ""),
      el("span", { class: "small" }, text));
  }
}

const shortOf = (value) => (value === null || value === undefined ? unknown : plain.format(value));
