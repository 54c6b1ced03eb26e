// The hottest prefixes as a tree: as wide as they are asked for, coloured by how many hold them.

import { get } from "./api.js";
import { count, el, Figure, legend, poll, rate, time } from "./dom.js";
import { about, instanceLink, Only, to } from "./links.js";
import { figures, moment, Table, words } from "./table.js";

const ROW = 26, LEVELS = 24, NARROW = 3;
const kind = (prefix) => (prefix.replicas >= 3 ? "h3" : `h${prefix.replicas}`);
const named = (scope) => [scope.tenant_id, scope.model_name, scope.lora_name, scope.block_size, scope.additional_salt].filter((one) => one !== "").join(" / ");

const HOLDERS = [
  words("Instance", (held) => held.instance_id, { cell: (held) => instanceLink(held.instance_id, held.tenant) }),
  figures("Rank", (held) => held.dp_rank), words("Medium", (held) => held.medium),
  words("More", () => "", { apart: true, cell: (held) => about(held.instance_id, held.tenant, "prefixes") }),
];

export class PrefixesView {
  constructor(feed, given) {
    this.scopes = [];
    this.chosen = given.get("hash"); // prefix_hash
    this.isGiven = this.chosen !== null; // whether its scope is to be found
    this.only = new Only("prefixes", given);
    this.problem = el("p", { class: "wrong", role: "status" });
    this.select = el("select", { onchange: () => this.draw() });
    this.said = el("span", { class: "small" });
    this.tree = el("div", { class: "icicle" });
    this.detail = el("section", { "aria-label": "The prefix that is chosen", "aria-live": "polite" });
    this.figure = new Figure("Prefixes: width is how often they are asked for, rows are longer prefixes", {
      legend: [["h0", "held by none"], ["h1", "by one"], ["h2", "by two"], ["h3", "by more"]].map(([name, text]) => legend(`icicle-${name}`, text)),
      columns: [words("Prefix hash", (one) => one.prefix_hash, { cell: (one) => el("a", { href: to("prefixes", { hash: one.prefix_hash }) }, one.prefix_hash) }),
        figures("Tokens", (one) => one.tokens), figures("Prompts a second", (one) => one.rate, rate), figures("Asked", (one) => one.asked),
        figures("Holders", (one) => one.replicas), figures("Saved tokens", (one) => one.saved_tokens),
        figures("Missed tokens", (one) => one.missed_tokens), moment("Last asked", (one) => one.last_asked)],
      rows: () => this.prefixes(), noun: "prefixes" });
    this.figure.picture.append(this.tree);
    this.holders = new Table("Who holds it", HOLDERS, "holders");
    const { instance, tenant } = this.only;
    const asked = instance ? `prefixes?hot=500&instance=${encodeURIComponent(instance)}&tenant_id=${encodeURIComponent(tenant)}` : "prefixes?hot=500";
    this.element = el("div", {}, this.problem, this.only.element,
      el("div", { class: "bar-row" }, el("label", {}, "Scope ", this.select), this.said), this.figure.element, this.detail);
    this.polled = poll(() => get(asked), 5, (found) => this.show(found.scopes), this.problem);
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.tree);
  }
  // Another prefix of what is shown.
  go(given) {
    const instance = given.get("instance") ?? "", tenant = given.get("tenant") ?? "default";
    if (instance !== this.only.instance || tenant !== this.only.tenant) return false;
    this.chosen = given.get("hash");
    this.isGiven = this.chosen !== null;
    this.find();
    this.draw();
    return true;
  }
  // Chooses the scope that has the prefix which the address names.
  find() {
    if (!this.isGiven) return;
    const scope = this.scopes.find((one) => one.prefixes.some((prefix) => prefix.prefix_hash === this.chosen));
    if (!scope) return;
    this.select.value = named(scope);
    this.isGiven = false;
  }
  scope() {
    return this.scopes.find((one) => named(one) === this.select.value) ?? this.scopes[0];
  }
  prefixes() {
    return this.scope()?.prefixes ?? [];
  }
  show(scopes) {
    this.scopes = scopes;
    const names = scopes.map(named), before = this.select.value;
    if (JSON.stringify(names) !== this.names) {
      this.names = JSON.stringify(names);
      this.select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
      if (names.includes(before)) this.select.value = before;
    }
    this.find();
    this.draw();
  }
  draw() {
    const prefixes = this.prefixes();
    this.said.textContent = prefixes.length ? `${count(prefixes.length)} prefixes` : "No prefix is known yet: they are learned from what /route decides.";
    const width = this.tree.clientWidth;
    const drawn = JSON.stringify([width, this.chosen, prefixes.map((one) => [one.prefix_hash, one.count, one.replicas])]);
    if (drawn !== this.drawn && width) this.icicle(prefixes, width);
    this.drawn = drawn;
    this.figure.update();
    this.tell(prefixes.find((one) => one.prefix_hash === this.chosen));
  }
  icicle(prefixes, width) {
    const known = new Set(prefixes.map((one) => one.prefix_hash));
    const children = new Map();
    for (const one of prefixes) {
      const parent = known.has(one.parent_hash) ? one.parent_hash : "";
      if (!children.has(parent)) children.set(parent, []);
      children.get(parent).push(one);
    }
    const weight = (one) => Math.max(one.count, 1e-9);
    const boxes = [];
    let deepest = 0;
    const lay = (parent, level, left, room) => {
      if (level >= LEVELS) return;
      const some = (children.get(parent) ?? []).sort((one, other) => weight(other) - weight(one));
      const sum = some.reduce((all, one) => all + weight(one), 0);
      // Counts are estimates: longer ones together may exceed the shorter one, but not its width.
      const whole = level === 0 ? sum : Math.max(sum, weight(this.byHash.get(parent)));
      for (const one of some) {
        const wide = room * weight(one) / whole;
        if (wide >= NARROW) {
          boxes.push([one, level, left, wide]);
          deepest = Math.max(deepest, level + 1);
          lay(one.prefix_hash, level + 1, left, wide);
        }
        left += wide;
      }
    };
    this.byHash = new Map(prefixes.map((one) => [one.prefix_hash, one]));
    lay("", 0, 0, width);
    const focused = this.tree.contains(document.activeElement) ? document.activeElement.dataset.hash : null;
    this.tree.style.height = `${Math.max(deepest, 1) * ROW}px`;
    this.tree.replaceChildren(...boxes.map(([one, level, left, wide]) => el("button", {
      type: "button", class: kind(one), "data-hash": one.prefix_hash, "aria-pressed": String(one.prefix_hash === this.chosen),
      style: { left: `${left}px`, top: `${level * ROW}px`, width: `${wide}px`, height: `${ROW}px` },
      "aria-label": `${count(one.tokens)} tokens, ${rate(one.rate)} prompts a second, held by ${one.replicas}`,
      onclick: () => this.choose(one.prefix_hash) }, wide > 60 ? `${count(one.tokens)} tokens, ${one.replicas} hold` : "")));
    if (focused) this.tree.querySelector(`[data-hash="${focused}"]`)?.focus();
  }
  choose(hash) {
    this.isGiven = false;
    location.hash = to("prefixes", { ...(this.only.instance ? { instance: this.only.instance, tenant: this.only.tenant } : {}), hash });
  }
  tell(one) {
    const told = JSON.stringify([this.chosen, this.scopes.length > 0, one ?? null]);
    if (told === this.told) return;
    this.told = told;
    if (!one) {
      const text = this.chosen && this.scopes.length ? `Prefix ${this.chosen} is not among the hottest that are shown.` : "Choose a prefix to see who holds it.";
      return this.detail.replaceChildren(el("p", { class: "small" }, text));
    }
    this.detail.replaceChildren(el("h3", {}, `Prefix of ${count(one.tokens)} tokens`),
      el("p", {}, el("a", { href: to("decisions", { prefix: one.prefix_hash }) }, "Decisions of prompts that begin with it"), " · ",
        el("a", { href: "#ask" }, "Ask what ended a prompt's prefix (explain)")),
      el("dl", { class: "facts" }, ...[
        ["Prefix hash", one.prefix_hash], ["Asked", count(one.asked)], ["Prompts a second", rate(one.rate)],
        ["Since", time(one.since)], ["Hits promised", count(one.hits_promised)],
        ["Confirmed of those checked", `${count(one.hits_confirmed)} of ${count(one.hits_checked)}`],
        ["Saved tokens", count(one.saved_tokens)], ["Missed tokens", count(one.missed_tokens)],
      ].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      this.holders.element);
    const tenant = this.scope()?.tenant_id ?? "default";
    this.holders.show(one.holders.map((held) => ({ ...held, tenant })));
  }
  update() {}
  close() {
    this.polled.close();
    this.sizes.disconnect();
  }
}
