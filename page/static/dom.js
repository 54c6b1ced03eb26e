// Elements, numbers as text, and figures: what all views are made of.

import { Table } from "./table.js";

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value); // attributes are forbidden by the CSP
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((one) => one !== null && one !== undefined));
  return made;
}

const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const parts = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
export const unknown = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);
export const count = (value) => (known(value) ? numbers.format(value) : unknown);
export const rate = (value) => (known(value) ? (value < 10 ? parts : numbers).format(value) : unknown);
export const percent = (value) => (known(value) ? `${(100 * value).toFixed(1)} %` : unknown);
export const ms = (value) => (known(value) ? `${parts.format(value)} ms` : unknown);
export function bytes(value) {
  if (!known(value)) return unknown;
  let unit = 0;
  for (; value >= 1024 && unit < 4; unit++) value /= 1024;
  return `${parts.format(value)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}
export function seconds(value) {
  if (!known(value)) return unknown;
  if (value < 90) return `${numbers.format(value)} s`;
  if (value < 5400) return `${numbers.format(value / 60)} min`;
  return value < 172800 ? `${numbers.format(value / 3600)} h` : `${numbers.format(value / 86400)} d`;
}
export const time = (unix) => (known(unix) && unix > 0 ? new Date(1000 * unix).toLocaleTimeString("en-GB") : unknown);

// So that colour is never alone.
const icons = { exact: "●", unconfirmed: "◐", degraded: "▲", stale: "■" };
export const stateText = (state) => `${icons[state] ?? "?"} ${state}`;
export const stateOrder = ["exact", "unconfirmed", "degraded", "stale"];

// Shows the first rows, and more where it is asked; `draw(rows)` gives an element.
export class Pages {
  constructor(size, draw, noun) {
    Object.assign(this, { size, draw, noun, shown: size, rows: [] });
    this.body = el("div");
    this.more = el("button", { type: "button", onclick: () => this.grow() }, "More");
    this.said = el("span", { class: "small" });
    this.bar = el("div", { class: "bar-row" }, this.said, this.more);
    this.element = el("div", {}, this.body, this.bar);
  }
  grow() {
    this.shown += this.size;
    this.show(this.rows);
  }
  show(rows) {
    this.rows = rows;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const scrolled = this.body.querySelector(".scroll")?.scrollLeft ?? 0;
    this.body.replaceChildren(rows.length ? this.draw(rows.slice(0, this.shown)) : el("p", {}, `No ${this.noun}.`));
    if (scrolled) this.body.querySelector(".scroll").scrollLeft = scrolled;
    if (focused) this.body.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    this.bar.hidden = rows.length <= this.shown;
    this.said.textContent = rows.length > this.shown
      ? `${count(this.shown)} of ${count(rows.length)} ${this.noun}` : "";
  }
}

// A picture, and the table behind it. `rows()` is asked while the table is open; columns that
// depend on what there is are a function.
export class Figure {
  constructor(title, { columns, rows, legend = [], noun = "rows", caption = title }) {
    this.title = title;
    this.rows = rows;
    this.columns = typeof columns === "function" ? columns : null;
    this.picture = el("div", { class: "picture" });
    this.table = new Table(caption, this.columns ? [] : columns, noun);
    this.table.element.hidden = true;
    this.button = el("button", { type: "button", "aria-expanded": "false", class: "as-table",
      "aria-label": `Table of: ${title}`, onclick: () => this.toggle() }, "Table");
    this.element = el("figure", {},
      el("figcaption", {}, el("strong", {}, title), el("span", {}, ...legend, this.button)),
      this.picture, this.table.element);
  }
  toggle(open = this.table.element.hidden) {
    this.table.element.hidden = !open;
    this.button.setAttribute("aria-expanded", String(open));
    this.update();
  }
  update() {
    if (this.table.element.hidden) return;
    if (this.columns) this.table.setColumns(this.columns());
    this.table.show(this.rows());
  }
}

export const legend = (className, text, title) =>
  el("span", { class: "legend", title }, el("i", { class: className }), text);

export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Asks now and every so many seconds while the view is open; an error is shown where it belongs.
export function poll(ask, everyS, show, place) {
  let timer = 0, closed = false;
  const once = async () => {
    clearTimeout(timer);
    if (document.hidden) { // nobody looks: nobody is asked
      timer = setTimeout(once, 1000);
      return;
    }
    try {
      const found = await ask();
      if (closed) return;
      place.textContent = "";
      show(found);
    } catch (error) {
      if (!closed) place.textContent = `${error.message}; what is shown is from before.`;
    }
    if (!closed) timer = setTimeout(once, 1000 * everyS);
  };
  once();
  return { again: once, close: () => { closed = true; clearTimeout(timer); } };
}
