// How the service is, and each instance.

import { LineChart } from "./chart.js";
import { Findings } from "./findings.js";
import { bytes, count, el, Figure, ms, Pages, percent, rate, seconds, stateOrder, stateText, time } from "./dom.js";
import { about, instanceLink } from "./links.js";
import { figures, words } from "./table.js";

const share = (part, whole) => (part !== null && whole ? part / whole : null);
const hitRate = (row) => share(row.cached_tokens, row.prompt_tokens);

const instanceColumns = [
  words("Instance", (row) => row.instance_id, { cell: (row) => instanceLink(row.instance_id, row.tenant_id) }),
  words("Tenant", (row) => row.tenant_id),
  words("Models", (row) => row.models.join(", ")),
  words("State", (row) => row.state, { cell: (row) => stateText(row.state) }),
  words("Reason", (row) => row.reason),
  words("Activity", (row) => row.activity),
  figures("Publishers", (row) => row.publishers),
  figures("Blocks", (row) => row.blocks),
  figures("Promised", (row) => share(row.promised_tokens, row.prompt_tokens), percent),
  figures("Hit rate", hitRate, percent),
  figures("Wait", (row) => row.wait_ms, ms),
  figures("Requests", (row) => row.requests),
  figures("KV usage", (row) => row.kv_usage, percent),
  figures("Pressure", (row) => row.pressure, percent),
  figures("Lost batches", (row) => row.lost_batches),
];

export class OverviewView {
  constructor(feed, given) {
    this.feed = feed;
    this.heroes = new Map();
    this.facts = new Map();
    this.lead = el("dl", { class: "heroes" });
    this.list = el("dl", { class: "facts" });
    this.findings = new Findings();
    this.charts = [
      new LineChart("Answers a second", feed, [["answers", (one) => one.answers]], rate),
      new LineChart("Time of an answer", feed,
        [["p50", (one) => one.p50], ["p99", (one) => one.p99, true]], ms, { unit: " ms" }),
      new LineChart("Hit rate", feed,
        [["actual", (one) => one.actual], ["promised", (one) => one.promised, true]], percent, { scale: 100, unit: " %", top: 1 }),
    ];
    this.filter = el("input", { type: "search", oninput: () => this.instances() });
    this.cards = new Pages(60, (rows) => el("ul", { class: "cards" }, ...rows.map(card)), "instances");
    this.figure = new Figure("Instances, the worst first", {
      columns: instanceColumns, rows: () => this.chosen(), noun: "instances" });
    this.figure.picture.append(this.cards.element);
    this.one = el("section", { "aria-label": "The instance that is chosen" });
    this.element = el("div", {}, this.one, this.findings.element, this.lead, this.list,
      el("div", { class: "charts" }, ...this.charts.map((one) => one.element)),
      el("div", { class: "bar-row" }, el("label", {}, "Instances with ", this.filter)), this.figure.element);
    this.go(given);
  }
  go(given) {
    this.wanted = given.get("instance") ?? "";
    this.tenant = given.get("tenant") ?? "default";
    this.update();
    if (this.wanted) this.one.scrollIntoView({ block: "nearest" });
    return true;
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
    this.tell([...this.feed.rows.values()].find((row) => row.instance_id === this.wanted && row.tenant_id === this.tenant));
  }
  // The one that a link leads to, with links to what else is known of it.
  tell(row) {
    const told = JSON.stringify([this.wanted, this.tenant, row ?? null]);
    if (told === this.told) return;
    this.told = told;
    if (!this.wanted) return this.one.replaceChildren();
    const all = el("a", { href: "#overview" }, "Close");
    if (!row) return this.one.replaceChildren(el("p", { class: "only" }, `No instance ${this.wanted} is registered. `, all));
    const facts = instanceColumns.slice(1).map((one) => [one.name, one.cell(row)]).filter(([, value]) => value && value !== "–");
    const since = row.since ? `, since ${time(row.since)}` : "";
    this.one.replaceChildren(el("div", { class: `chosen ${row.state}` },
      el("div", { class: "bar-row" }, el("h3", {}, row.instance_id),
        el("span", { class: row.state }, `${stateText(row.state)}${row.state === "exact" ? "" : since}`),
        about(row.instance_id, row.tenant_id), all),
      el("dl", { class: "facts" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))))));
  }
  hero(name, text, more, isWrong = false) {
    if (!this.heroes.has(name)) {
      const parts = { value: el("dd"), more: el("dd", { class: "small" }) };
      parts.box = el("div", {}, el("dt", {}, name), parts.value, parts.more);
      this.heroes.set(name, parts);
      this.lead.append(parts.box);
    }
    const parts = this.heroes.get(name);
    parts.value.textContent = text;
    parts.more.textContent = more;
    parts.box.className = isWrong ? "doubt" : "";
  }
  fact(name, text) {
    if (!this.facts.has(name)) {
      const value = el("dd");
      this.facts.set(name, value);
      this.list.append(el("div", {}, el("dt", {}, name), value));
    }
    this.facts.get(name).textContent = text;
  }
  update() {
    const { summary, history } = this.feed;
    if (!summary) return;
    const now = history[history.length - 1] ?? {};
    const { instances, states, queries, routing, index } = summary;
    const exact = states.exact ?? 0, doubt = instances - exact;
    const doubtful = stateOrder.filter((state) => state !== "exact" && states[state]).map((state) => `${count(states[state])} ${state}`);
    this.hero("Instances in doubt", count(doubt), !instances ? "none is registered"
      : doubt ? `of ${count(instances)}: ${doubtful.join(", ")}` : `of ${count(instances)}: all are exact`, doubt > 0);
    const isTold = known(now.actual);
    if (isTold || !queries) this.hero("Hit rate", percent(now.actual), isTold ? `of the last minute; promised ${percent(now.promised)}` : "not for a key of some tenants");
    else this.hero("Hit rate", percent(now.index), known(now.index) ? "of what was asked of the index; no outcome is reported" : "nothing was asked in the last minute");
    this.hero("p99", ms(now.p99), queries ? `of the answers of the last 10 s; half take up to ${ms(now.p50)}` : "not for a key of some tenants");
    if (queries) {
      this.fact("Answers a second", rate(now.answers));
      this.fact("Prompt tokens found in a cache", percent(now.index));
    }
    if (routing) {
      this.fact("Decisions", count(routing.decisions));
      this.fact("Refused", count(routing.refused));
      this.fact("Under way", count(routing.under_way));
    }
    if (index) {
      this.fact("Blocks", count(index.blocks));
      this.fact("Entries", count(index.entries));
      this.fact("Index in memory", bytes(index.memory_bytes));
    }
    const { lag } = summary.health;
    if (lag) this.fact("Behind the log", lag.reachable ? seconds(lag.seconds) : "not known");
    for (const one of this.charts) one.update();
    this.instances();
  }
  close() {
    for (const one of this.charts) one.close();
    this.findings.close();
  }
}

const known = (value) => typeof value === "number";

function card(row) {
  const facts = [`${count(row.blocks)} blocks`];
  if (hitRate(row) !== null) facts.push(`${percent(hitRate(row))} hits`);
  if (row.requests) facts.push(`${count(row.requests)} ${row.requests === 1 ? "request" : "requests"}`);
  if (row.kv_usage !== null) facts.push(`KV ${percent(row.kv_usage)}`);
  if (row.lost_batches) facts.push(`${count(row.lost_batches)} batches lost`);
  const since = row.since ? `, since ${time(row.since)}` : "";
  return el("li", { class: row.state },
    el("strong", {}, instanceLink(row.instance_id, row.tenant_id)),
    el("span", { class: row.state }, stateText(row.state)),
    el("span", { class: "small" }, row.reason ? ` ${row.reason}${since}` : ` ${row.activity}`),
    el("div", { class: "small" }, [row.tenant_id, ...row.models].join(" / ")),
    el("div", { class: "small" }, facts.join(", ")),
    about(row.instance_id, row.tenant_id));
}
