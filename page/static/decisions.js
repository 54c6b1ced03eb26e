// What /route decided, why, and what came of it.

import { get } from "./api.js";
import { CandidatesFigure } from "./candidates.js";
import { count, el, ms, percent, poll, stateText, time } from "./dom.js";
import { about, instanceLink, Only, to } from "./links.js";
import { figures, moment, Table, words } from "./table.js";

export const placed = (one) => (one ? `${one.instance_id}${one.dp_rank > 0 ? ` rank ${one.dp_rank}` : ""}` : "–");
// Why the index had no say, in words; and whether the prompt's tokens were not known.
const isGuessed = (one) => Boolean(one.by_load && one.by_load !== one.refused && one.by_load !== one.state);
const whyByLoad = (one) => (one.by_load === one.refused ? `the router chose nobody (${one.by_load}), so the requests that each engine has decided`
  : isGuessed(one) ? `the index was not asked (${one.by_load}), so what engines have to do decided`
    : `the index was behind (${one.by_load}), so what engines have to do counted most`);
const indexText = (one) => (one.by_load ? `by load: ${one.by_load}` : stateText(one.state));
// What stands where no time to the first token was reported of an answer that is complete.
const isUntimed = (one) => one.outcome?.event === "completed" && one.outcome.ttft_ms === null;
const whyUntimed = (one) => `not reported: ${isGuessed(one) ? "load decided" : "only a stream has a first token to time"}`;
const promptText = (one) => (isGuessed(one) ? `about ${count(one.prompt_tokens)}` : count(one.prompt_tokens));
const came = (one) => (!one.outcome ? "–" : one.outcome.error || one.outcome.event);

const COLUMNS = [
  moment("At", (one) => one.at, { width: "6%", cell: (one) => el("a", { href: to("decisions", { id: one.decision_id }),
    "data-key": one.decision_id, "aria-label": `Show decision ${one.decision_id}` }, time(one.at)) }),
  words("Request", (one) => one.request_id, { width: "9.5%" }),
  words("Model", (one) => one.model_name, { width: "7%" }),
  words("Policy", (one) => one.policy, { width: "9.5%" }),
  words("Index", indexText, { width: "9%", cell: (one) => (one.by_load
    ? el("span", { class: "by-load", title: `By load: ${whyByLoad(one)}` }, indexText(one)) : stateText(one.state)) }),
  words("Chosen", (one) => (one.chosen ? placed(one.chosen) : one.refused), { width: "11.5%",
    cell: (one) => (one.chosen ? instanceLink(one.chosen.instance_id, one.tenant_id, placed(one.chosen)) : el("span", { class: "wrong" }, one.refused)) }),
  figures("Prompt", (one) => one.prompt_tokens, count, { width: "6%", cell: promptText }),
  figures("Promised", (one) => (isGuessed(one) ? null : one.promised_tokens), count, { width: "7%" }),
  figures("Cached", (one) => one.outcome?.cached_tokens, count, { width: "6.5%" }),
  figures("TTFT expected", (one) => one.ttft_ms, ms, { width: "10.5%", title: "Time to the first token, as it was expected" }),
  figures("TTFT actual", (one) => one.outcome?.ttft_ms, ms, { width: "9.5%",
    cell: (one) => (isUntimed(one) ? el("span", { title: whyUntimed(one) }, "not told") : ms(one.outcome?.ttft_ms)), title: "Time to the first token, as it was reported" }),
  words("Outcome", came, { width: "8%" }),
];

export class DecisionsView {
  constructor(feed, given) {
    this.feed = feed;
    this.chosen = "";
    this.prefix = given.get("prefix") ?? "";
    this.given = new URLSearchParams(given);
    this.only = new Only("decisions", given, this.prefix && el("span", {}, "those whose prompt begins with prefix ",
      el("a", { href: to("prefixes", { hash: this.prefix }) }, this.prefix)));
    this.problem = el("p", { class: "wrong", role: "status" });
    this.filter = el("input", { type: "search", oninput: () => this.update() });
    this.hold = el("input", { type: "checkbox", onchange: () => this.update() });
    this.said = el("span", { class: "small" });
    this.earlier = el("p", { class: "small" });
    this.detail = el("section", { "aria-label": "The decision that is chosen" });
    this.found = []; // of the prefix
    this.table = new Table("The last decisions, the latest first", COLUMNS, "decisions",
      { size: 50, key: (one) => one.decision_id, className: "lines", leads: (one) => to("decisions", { id: one.decision_id }) });
    this.element = el("div", {}, this.problem, this.only.element, this.detail, el("div", { class: "bar-row" },
      el("label", {}, "Decisions with ", this.filter), el("label", {}, this.hold, "hold still"), this.said), this.table.element, this.earlier);
    // The stream tells of new ones; what came of them is asked for.
    const asked = this.prefix ? `decisions?limit=200&prefix=${encodeURIComponent(this.prefix)}` : "decisions?limit=200";
    this.polled = poll(() => get(asked), 5, (found) => {
      if (this.prefix) this.found = found.decisions;
      else this.feed.decisions = found.decisions;
      this.earlier.replaceChildren(`This service knows decisions since ${time(found.since)}. Earlier ones are in the routing log, where `,
        el("code", {}, "reprise audit verify"), " derives each of them again.");
      this.update();
    }, this.problem);
    this.choose(given.get("id") ?? "");
  }
  // Another decision of the same list is shown at once.
  go(given) {
    const rest = (some) => ["instance", "tenant", "prefix"].map((name) => some.get(name) ?? "").join("\n");
    if (rest(given) !== rest(this.given) && !given.has("id")) return false;
    this.choose(given.get("id") ?? "");
    return true;
  }
  rows() {
    const text = this.filter.value.toLowerCase();
    const { only } = this;
    const isOf = (one) => [one.chosen, one.decode].some((held) => held && only.admits(held.instance_id, one.tenant_id));
    return (this.prefix ? this.found : this.feed.decisions).filter((one) => (!only.instance || isOf(one)) && (!text ||
      [one.decision_id, one.request_id, one.model_name, one.policy, one.refused, indexText(one), one.chosen?.instance_id, came(one)].join(" ").toLowerCase().includes(text)));
  }
  update() {
    if (this.hold.checked && this.drawn) return;
    const rows = this.rows();
    const { skipped, decisions } = this.feed;
    this.said.textContent = `${this.prefix ? `${count(rows.length)} of the last` : rows.length < decisions.length ? `${count(rows.length)} of the last ${count(decisions.length)}` : `The last ${count(rows.length)}`} decisions${skipped ? `; ${count(skipped)} came faster than they are shown` : ""}.`;
    const drawn = JSON.stringify(rows.slice(0, this.table.shown)) + rows.length + this.table.by;
    if (drawn !== this.drawn) this.table.show(rows);
    this.drawn = drawn;
  }
  async choose(id) {
    this.chosen = id;
    if (!id) return this.detail.replaceChildren();
    try {
      const found = await get(`decisions/${encodeURIComponent(id)}`);
      if (this.chosen !== id) return;
      this.show(found);
      this.detail.scrollIntoView({ block: "nearest" });
    } catch (error) {
      if (this.chosen === id) this.detail.replaceChildren(el("p", { class: "wrong", role: "alert" }, error.message));
    }
  }
  show(one) {
    const share = (tokens, prompt = one.prompt_tokens) => (prompt && tokens !== null && tokens !== undefined ? tokens / prompt : null);
    const { outcome } = one;
    const linked = (held) => (held ? instanceLink(held.instance_id, one.tenant_id, placed(held)) : "–");
    const facts = [["Chosen", linked(one.chosen)], ...(one.decode ? [["Decode", linked(one.decode)]] : []),
      ...(one.refused ? [["Refused", one.refused]] : []), ["Policy", one.policy], ["Index was", `${stateText(one.state)} at ${one.position}`],
      ...(one.by_load ? [["By load", one.by_load]] : []),
      ["Prompt", `${promptText(one)} tokens`],
      ["Promised cached", isGuessed(one) ? "the index was not asked" : `${count(one.promised_tokens)} (${percent(share(one.promised_tokens))})`],
      ["Actually cached", outcome ? `${count(outcome.cached_tokens)} (${percent(share(outcome.cached_tokens, outcome.prompt_tokens ?? one.prompt_tokens))})` : "not reported"],
      ["TTFT expected", ms(one.ttft_ms)], ["TTFT actual", isUntimed(one) ? whyUntimed(one) : outcome ? ms(outcome.ttft_ms) : "not reported"],
      ["Held by any at most", isGuessed(one) ? "the index was not asked" : count(one.held_tokens)], ["Outcome", came(one)]];
    const prefixes = one.prefixes.flatMap((mark, place) => [place ? ", " : "", el("a", {
      href: to("prefixes", { hash: mark.prefix_hash }), title: `Prefix ${mark.prefix_hash}` }, count(mark.tokens))]);
    const figure = new CandidatesFigure(one);
    this.detail.replaceChildren(el("div", { class: "bar-row" }, el("h3", {}, `Decision ${one.decision_id}, ${time(one.at)}`),
      el("a", { href: to("decisions", this.without()) }, "Close")),
    el("p", { class: "verdict" }, one.by_load ? `By load: ${whyByLoad(one)}. ` : "", figure.verdict()),
    el("dl", { class: "facts" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    figure.element,
    el("p", { class: "small" }, ...(one.chosen ? [`More of ${one.chosen.instance_id}: `, about(one.chosen.instance_id, one.tenant_id), ". "] : []),
      ...(prefixes.length ? ["Prefixes of the prompt, in tokens: ", ...prefixes, "."] : [])));
  }
  without() {
    const rest = Object.fromEntries(this.given);
    delete rest.id;
    return rest;
  }
  close() {
    this.polled.close();
  }
}
