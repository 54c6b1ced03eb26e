// From an instance to its decisions, prefixes and gaps, and back.

import { el } from "./dom.js";

export const to = (view, given) => `#${view}?${new URLSearchParams(given)}`;

export const instanceLink = (instance, tenant = "default", text = instance) =>
  el("a", { href: to("overview", { instance, tenant }), title: `What is known of ${instance}` }, text);

const VIEWS = { decisions: "decisions", prefixes: "prefixes", loss: "gaps", caches: "cache" };

// Links to what other views know of an instance.
export function about(instance, tenant = "default", without = "") {
  const links = Object.entries(VIEWS).filter(([view]) => view !== without).map(([view, text]) =>
    el("a", { href: to(view, { instance, tenant }), "aria-label": `${text} of ${instance}` }, text));
  return el("span", { class: "links small" }, ...links);
}

// Says that a view shows some alone, and leads to all.
export class Only {
  // given: of the address; text: what it shows, after "Only "
  constructor(view, given, text) {
    this.instance = given.get("instance") ?? "";
    this.tenant = given.get("tenant") ?? "default";
    const isSome = this.instance !== "" || text;
    this.element = el("p", { class: "only", hidden: !isSome }, ...(isSome ? [
      "Only ", ...(this.instance ? ["those of ", instanceLink(this.instance, this.tenant)] : [text]), ". ",
      this.instance ? about(this.instance, this.tenant, view) : "", " ", el("a", { href: `#${view}` }, "Show all")] : []));
  }
  admits(instance, tenant) {
    return !this.instance || (instance === this.instance && tenant === this.tenant);
  }
}
