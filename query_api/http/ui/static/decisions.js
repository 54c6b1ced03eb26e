// What /route decided, why, and what came of it.

import { get } from "./api.js";
import { count, el, Figure, legend, ms, Pages, percent, poll, stateText, table, time } from "./dom.js";

const placed = (one) => (one ? `${one.instance_id}${one.dp_rank > 0 ? ` rank ${one.dp_rank}` : ""}` : "–");
const came = (one) => (!one.outcome ? "–" : one.outcome.error || one.outcome.event);

export class DecisionsView {
  constructor(feed, given) {
    this.feed = feed;
    this.chosen = given.get("id") ?? "";
    this.problem = el("p", { class: "wrong", role: "status" });
    this.filter = el("input", { type: "search", oninput: () => this.update() });
    this.hold = el("input", { type: "checkbox", onchange: () => this.update() });
    this.said = el("span", { class: "small" });
    this.detail = el("section", { "aria-label": "The decision that is chosen" });
    this.columns = [
      ["Details", (one) => el("button", { type: "button", "data-key": one.decision_id, "aria-label": `Show decision ${one.decision_id}`,
        onclick: () => this.choose(one.decision_id) }, "Show")],
      ["At", (one) => time(one.at)], ["Request", (one) => one.request_id || "–"], ["Model", (one) => one.model_name],
      ["Policy", (one) => one.policy], ["Index", (one) => stateText(one.state)], ["Chosen", (one) => placed(one.chosen)],
      ["Refused", (one) => one.refused || "–"], ["Prompt", (one) => count(one.prompt_tokens), true],
      ["Promised", (one) => count(one.promised_tokens), true], ["Cached", (one) => count(one.outcome?.cached_tokens), true],
      ["TTFT expected", (one) => ms(one.ttft_ms), true], ["TTFT actual", (one) => ms(one.outcome?.ttft_ms), true],
      ["Outcome", came]];
    this.pages = new Pages(50, (rows) => table("The last decisions, the latest first", this.columns, rows), "decisions");
    this.element = el("div", {}, this.problem, el("div", { class: "bar-row" }, el("label", {}, "Decisions with ", this.filter),
      el("label", {}, this.hold, "hold still"), this.said), this.detail, this.pages.element);
    // The stream tells of new ones; what came of them is asked for.
    this.polled = poll(() => get("decisions?limit=200"), 5, (found) => {
      this.feed.decisions = found.decisions;
      this.update();
    }, this.problem);
    if (this.chosen) this.choose(this.chosen);
  }
  update() {
    if (this.hold.checked && this.drawn) return;
    const text = this.filter.value.toLowerCase();
    const rows = this.feed.decisions.filter((one) => !text ||
      [one.decision_id, one.request_id, one.model_name, one.policy, one.refused, one.chosen?.instance_id, came(one)].join(" ").toLowerCase().includes(text));
    this.said.textContent = `The last ${count(this.feed.decisions.length)} decisions${this.feed.skipped ? `; ${count(this.feed.skipped)} came faster than they are shown` : ""}.`;
    const drawn = JSON.stringify(rows.slice(0, this.pages.shown)) + rows.length;
    if (drawn !== this.drawn) this.pages.show(rows);
    this.drawn = drawn;
  }
  async choose(id) {
    this.chosen = id;
    try {
      const found = await get(`decisions/${encodeURIComponent(id)}`);
      if (this.chosen === id) this.show(found);
      this.detail.scrollIntoView({ block: "nearest" });
    } catch (error) {
      this.detail.replaceChildren(el("p", { class: "wrong", role: "alert" }, error.message));
    }
  }
  show(one) {
    const terms = [...new Set(one.considered.flatMap((candidate) => Object.keys(candidate.terms)))].slice(0, 5);
    const order = [...one.considered].sort((a, b) => b.eligible - a.eligible || (a.key ?? Infinity) - (b.key ?? Infinity));
    const size = (candidate) => terms.reduce((all, term) => all + Math.max(candidate.terms[term] ?? 0, 0), 0);
    const most = Math.max(1e-9, ...order.map(size));
    const isChosen = (candidate) => placed(candidate) === placed(one.chosen);
    const bars = new Figure("Candidates: what the policy made of each, in ms", {
      legend: terms.map((term, place) => legend(`part-${place + 1}`, term)),
      columns: [["Candidate", placed], ["Chosen", (row) => (isChosen(row) ? "yes" : "–")],
        ["Left out", (row) => row.reasons.join(", ") || "–"], ["Cached", (row) => count(row.cached_tokens), true],
        ["Key", (row) => (row.key === null ? "–" : row.key.toPrecision(4)), true],
        ...terms.map((term) => [term, (row) => ms(row.terms[term]), true])],
      rows: () => order, noun: "candidates" });
    bars.picture.append(...order.slice(0, 64).map((row) => {
      let left = 0;
      const parts = terms.map((term, place) => {
        const width = 100 * Math.max(row.terms[term] ?? 0, 0) / most;
        left += width;
        return el("span", { class: `part-${place + 1}`, style: { left: `${left - width}%`, width: `${width}%` } });
      });
      const text = row.eligible ? `${ms(size(row))}, ${count(row.cached_tokens)} cached` : `left out: ${row.reasons.join(", ")}`;
      return el("div", { class: "line" }, el("span", {}, `${isChosen(row) ? "► " : ""}${placed(row)}`),
        el("div", {}, el("div", { class: "track", role: "img", "aria-label": text }, ...parts), el("span", { class: "small" }, text)));
    }));
    const share = (tokens, prompt = one.prompt_tokens) => (prompt && tokens !== null && tokens !== undefined ? tokens / prompt : null);
    const { outcome } = one;
    const facts = [["Chosen", placed(one.chosen)], ["Decode", placed(one.decode)], ["Refused", one.refused || "no"],
      ["Policy", one.policy], ["Index was", stateText(one.state)], ["Position", one.position],
      ["Promised cached", `${count(one.promised_tokens)} (${percent(share(one.promised_tokens))})`],
      ["Actually cached", outcome ? `${count(outcome.cached_tokens)} (${percent(share(outcome.cached_tokens, outcome.prompt_tokens ?? one.prompt_tokens))})` : "not reported"],
      ["TTFT expected", ms(one.ttft_ms)], ["TTFT actual", outcome ? ms(outcome.ttft_ms) : "not reported"],
      ["Held by any at most", count(one.held_tokens)], ["Outcome", came(one)]];
    this.detail.replaceChildren(el("h3", {}, `Decision ${one.decision_id}, ${time(one.at)}`),
      el("dl", { class: "tiles" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))), bars.element);
  }
  close() {
    this.polled.close();
  }
}
