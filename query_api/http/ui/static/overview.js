// How the service is, and each instance.

import { LineChart } from "./chart.js";
import { Findings } from "./findings.js";
import { bytes, count, el, Figure, ms, Pages, percent, rate, seconds, stateOrder, stateText, time } from "./dom.js";

const share = (part, whole) => (part !== null && whole ? part / whole : null);

export const instanceColumns = [
  ["Instance", (row) => row.instance_id],
  ["Tenant", (row) => row.tenant_id],
  ["Models", (row) => row.models.join(", ")],
  ["State", (row) => stateText(row.state)],
  ["Reason", (row) => row.reason || "–"],
  ["Activity", (row) => row.activity || "–"],
  ["Publishers", (row) => count(row.publishers), true],
  ["Blocks", (row) => count(row.blocks), true],
  ["Promised", (row) => percent(share(row.promised_tokens, row.prompt_tokens)), true],
  ["Hit rate", (row) => percent(share(row.cached_tokens, row.prompt_tokens)), true],
  ["Wait", (row) => ms(row.wait_ms), true],
  ["Requests", (row) => count(row.requests), true],
  ["KV usage", (row) => percent(row.kv_usage), true],
  ["Pressure", (row) => percent(row.pressure), true],
  ["Lost batches", (row) => count(row.lost_batches), true],
];

export class OverviewView {
  constructor(feed) {
    this.feed = feed;
    this.tiles = new Map();
    this.list = el("dl", { class: "tiles" });
    this.findings = new Findings();
    this.charts = [
      new LineChart("Answers a second", feed, [["answers", (one) => one.answers]], rate),
      new LineChart("Time of an answer, last 10 s", feed,
        [["p50", (one) => one.p50], ["p99", (one) => one.p99, true]], ms),
      new LineChart("Hit rate, last minute", feed,
        [["actual", (one) => one.actual], ["promised", (one) => one.promised, true]], percent),
    ];
    this.filter = el("input", { type: "search", oninput: () => this.instances() });
    this.cards = new Pages(60, (rows) => el("ul", { class: "cards" }, ...rows.map(card)), "instances");
    this.figure = new Figure("Instances, the worst first", {
      columns: instanceColumns, rows: () => this.chosen(), noun: "instances" });
    this.figure.picture.append(this.cards.element);
    this.element = el("div", {}, this.findings.element, this.list,
      el("div", { class: "charts" }, ...this.charts.map((one) => one.element)),
      el("div", { class: "bar-row" }, el("label", {}, "Instances with ", this.filter)), this.figure.element);
  }
  chosen() {
    const text = this.filter.value.toLowerCase();
    const order = (row) => -stateOrder.indexOf(row.state);
    return [...this.feed.rows.values()]
      .filter((row) => !text || `${row.instance_id} ${row.tenant_id} ${row.models.join(" ")} ${row.state} ${row.reason}`.toLowerCase().includes(text))
      .sort((one, other) => order(one) - order(other) || one.tenant_id.localeCompare(other.tenant_id)
        || one.instance_id.localeCompare(other.instance_id, "en", { numeric: true }));
  }
  instances() {
    const rows = this.chosen();
    const drawn = JSON.stringify(rows.slice(0, this.cards.shown)) + rows.length;
    if (drawn !== this.drawn) this.cards.show(rows);
    this.drawn = drawn;
    this.figure.update();
  }
  tile(name, text) {
    if (!this.tiles.has(name)) {
      const value = el("dd");
      this.tiles.set(name, value);
      this.list.append(el("div", {}, el("dt", {}, name), value));
    }
    this.tiles.get(name).textContent = text;
  }
  update() {
    const { summary, history } = this.feed;
    if (!summary) return;
    const now = history[history.length - 1] ?? {};
    this.tile("Instances", count(summary.instances));
    for (const state of stateOrder) this.tile(stateText(state), count(summary.states[state] ?? 0));
    if (summary.queries) {
      this.tile("Answers a second", rate(now.answers));
      this.tile("p50 of 10 s", ms(now.p50));
      this.tile("p99 of 10 s", ms(now.p99));
      this.tile("Held of what was asked, 1 min", percent(now.index));
    }
    if (summary.routing) {
      this.tile("Decisions", count(summary.routing.decisions));
      this.tile("Refused", count(summary.routing.refused));
      this.tile("Under way", count(summary.routing.under_way));
      this.tile("Hit rate, 1 min", percent(now.actual));
      this.tile("Promised, 1 min", percent(now.promised));
    }
    if (summary.index) {
      this.tile("Blocks", count(summary.index.blocks));
      this.tile("Entries", count(summary.index.entries));
      this.tile("Index in memory", bytes(summary.index.memory_bytes));
    }
    const { lag } = summary.health;
    if (lag) this.tile("Behind the log", lag.reachable ? seconds(lag.seconds) : "Kafka is away");
    for (const one of this.charts) one.update();
    this.instances();
  }
  close() {
    for (const one of this.charts) one.close();
    this.findings.close();
  }
}

function card(row) {
  const hit = share(row.cached_tokens, row.prompt_tokens);
  const facts = [`${count(row.blocks)} blocks`];
  if (hit !== null) facts.push(`hit rate ${percent(hit)}`);
  if (row.requests) facts.push(`${count(row.requests)} requests`);
  if (row.kv_usage !== null) facts.push(`KV ${percent(row.kv_usage)}`);
  if (row.lost_batches) facts.push(`${count(row.lost_batches)} batches lost`);
  const since = row.since ? `, since ${time(row.since)}` : "";
  return el("li", { class: row.state },
    el("strong", {}, row.instance_id),
    el("span", { class: row.state }, stateText(row.state)),
    el("span", { class: "small" }, row.reason ? ` ${row.reason}${since}` : ` ${row.activity}`),
    el("div", { class: "small" }, [row.tenant_id, ...row.models].join(" / ")),
    el("div", {}, facts.join(", ")));
}
