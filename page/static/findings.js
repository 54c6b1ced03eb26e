// What is wrong, and what to do, as `GET /doctor` says.

import { get } from "./api.js";
import { count, el, Pages, poll } from "./dom.js";
import { about } from "./links.js";

export class Findings {
  constructor() {
    this.problem = el("p", { class: "wrong", role: "status" });
    this.said = el("p", { role: "status" }, "The doctor looks ...");
    this.pages = new Pages(10, (findings) => el("ul", { class: "findings" }, ...findings.map(line)), "findings");
    this.pages.element.hidden = true;
    this.element = el("div", { id: "findings" }, this.problem, this.said, this.pages.element);
    this.polled = poll(() => get("doctor"), 10, (found) => this.show(found.findings, found.notes ?? []), this.problem);
  }
  show(findings, notes) {
    const drawn = JSON.stringify([findings, notes]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const noun = findings.length === 1 ? "finding" : "findings";
    this.said.textContent = findings.length
      ? `${count(findings.length)} ${noun} of the doctor:` : "The doctor finds nothing wrong.";
    const told = [...findings, ...notes.map((one) => ({ ...one, code: `note: ${one.code}` }))];
    this.pages.element.hidden = !told.length;
    this.pages.show(told);
  }
  close() {
    this.polled.close();
  }
}

function line(one) {
  const whose = one.instance_id ? `${one.tenant_id} / ${one.model_name} / ${one.instance_id}` : "the service";
  const ranks = one.dp_ranks.length > 1 || one.dp_ranks[0] ? `, rank ${one.dp_ranks.join(", ")}` : "";
  const values = one.expected || one.got ? ` Expected: ${one.expected || "–"}; got: ${one.got || "–"}.` : "";
  return el("li", {}, el("strong", {}, `${one.code}: ${whose}${ranks}`), " ",
    one.instance_id ? about(one.instance_id, one.tenant_id) : "",
    el("div", {}, `${one.cause}.${values}`), el("div", {}, el("em", {}, "Remedy: "), one.remedy));
}
