// What became of every batch: a line for each publisher's process, from its first number to its last.

import { get } from "./api.js";
import { count, el, Figure, legend, Pages, poll, time } from "./dom.js";
import { about, instanceLink, Only } from "./links.js";
import { figures, moment, words } from "./table.js";

const KINDS = ["repaired", "incomplete", "lost"]; // what is worse is drawn over what is not

export class LossView {
  constructor(feed, given) {
    this.lines = [];
    this.given = new Only("loss", given);
    this.problem = el("p", { class: "wrong", role: "status" });
    this.only = el("input", { type: "checkbox", onchange: () => this.draw() });
    this.filter = el("input", { type: "search", oninput: () => this.draw() });
    this.said = el("p", { class: "small" });
    this.pages = new Pages(60, (lines) => el("div", {}, ...lines.map(picture)), "publishers");
    this.figure = new Figure("Batches of each publisher's process, by sequence number", {
      legend: [legend("seen", "seen"), ...KINDS.map((kind) => legend(kind, kind))],
      columns: [words("Publisher", (row) => row.name, { cell: (row) => publisherLink(row) }),
        figures("Process", (row) => row.process), words("What", (row) => row.kind),
        figures("First", (row) => row.first), figures("Last", (row) => row.last), figures("Batches", (row) => row.batches),
        words("Cause", (row) => row.cause), moment("When", (row) => row.at),
        words("More", () => "", { apart: true, cell: (row) => about(row.instance, row.tenant, "loss") })],
      rows: () => this.chosen().flatMap(intervals), noun: "intervals" });
    this.figure.picture.append(this.pages.element);
    this.element = el("div", {}, this.problem, this.given.element, el("div", { class: "bar-row" },
      el("label", {}, this.only, "only where something was lost"), el("label", {}, "Publishers with ", this.filter)),
    this.said, this.figure.element);
    this.polled = poll(() => get("gaps"), 10, (found) => {
      this.lines = found.publishers.flatMap(linesOf);
      this.draw();
    }, this.problem);
  }
  chosen() {
    const text = this.filter.value.toLowerCase();
    return this.lines.filter((line) => this.given.admits(line.instance, line.tenant) && (!this.only.checked || line.lost > 0) && line.name.toLowerCase().includes(text))
      .sort((one, other) => other.lost - one.lost || one.name.localeCompare(other.name, "en", { numeric: true }) || one.process - other.process);
  }
  draw() {
    const lines = this.chosen();
    const all = (kind) => count(lines.reduce((total, line) => total + line.incarnation[kind].batches, 0));
    this.said.textContent = `${all("seen")} batches seen, of which ${all("repaired")} were repaired by a replay and ${all("incomplete")} incomplete; ${all("lost")} lost.`;
    const drawn = JSON.stringify(lines);
    if (drawn !== this.drawn) this.pages.show(lines);
    this.drawn = drawn;
    this.figure.update();
  }
  update() {}
  close() {
    this.polled.close();
  }
}

function linesOf(publisher) {
  const { tenant_id, model_name, instance_id, dp_rank } = publisher;
  const name = `${tenant_id} / ${model_name} / ${instance_id} / rank ${dp_rank}`;
  return publisher.incarnations.map((incarnation) => ({
    name, tenant: tenant_id, instance: instance_id, incarnation, process: incarnation.incarnation, lost: incarnation.lost.batches }));
}

const publisherLink = ({ name, instance, tenant }) => instanceLink(instance, tenant, name);

function intervals({ name, tenant, instance, process, incarnation }) {
  const whose = { name, tenant, instance, process };
  const rows = KINDS.flatMap((kind) => incarnation[kind].intervals.map((one) => ({ ...whose, kind, ...one })));
  if (incarnation.reason) rows.unshift({ ...whose, kind: "reset", cause: incarnation.reason, at: incarnation.began_at });
  rows.push({ ...whose, kind: "seen", batches: incarnation.seen.batches,
    first: incarnation.first_sequence, last: incarnation.last_sequence });
  return rows;
}

function picture(line) {
  const { process, incarnation } = line;
  const { first_sequence: first, last_sequence: last } = incarnation;
  const length = Math.max(last - first + 1, 1);
  const part = (kind, from, to, title) => el("span", { class: kind, title, style: {
    left: `${100 * Math.max(from - first, 0) / length}%`, width: `${100 * (to - Math.max(from, first) + 1) / length}%` } });
  const parts = last < first ? [] : incarnation.seen.intervals.map(([from, to]) => part("seen", from, to, `seen ${from} to ${to}`));
  for (const kind of KINDS)
    for (const one of incarnation[kind].intervals) parts.push(part(kind, one.first, one.last, `${kind} ${one.first} to ${one.last}: ${one.cause}`));
  const facts = KINDS.map((kind) => `${count(incarnation[kind].batches)} ${kind}`).join(", ");
  const began = incarnation.reason ? `, ${incarnation.reason} at ${time(incarnation.began_at)}` : "";
  const text = last < first ? "nothing yet" : `${count(first)} to ${count(last)}: ${count(incarnation.seen.batches)} seen, ${facts}`;
  return el("div", { class: "line" }, el("span", { class: incarnation.lost.batches ? "wrong" : null },
    publisherLink(line), `${process ? `, process ${process}` : ""}${began}`, " ", about(line.instance, line.tenant, "loss")),
  el("div", {}, el("div", { class: "track", role: "img", "aria-label": text }, ...parts), el("span", { class: "small" }, text)));
}
