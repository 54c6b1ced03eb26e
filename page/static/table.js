// Tables: each sorts by any column, and is copied whole, as a spreadsheet takes it.

import { bytes, count, el, ms, percent, seconds, time, unknown } from "./dom.js";

// Columns: {name, cell of a row, value to sort by and to copy, is it a number, unit, width, apart:
// neither sorted by nor copied}.
export const words = (name, of, more = {}) => ({ name, cell: of, value: of, ...more });
export const figures = (name, of, format = count, more = {}) =>
  ({ name, cell: (row) => format(of(row)), value: of, number: true, unit: unitOf(format), ...more });
export const moment = (name, of, more = {}) =>
  ({ name, cell: (row) => time(of(row)), value: of, copied: iso, ...more });

const unitOf = (format) => new Map([[ms, "ms"], [bytes, "bytes"], [seconds, "s"], [percent, "of 1"]]).get(format);
const iso = (unix) => (unix > 0 ? new Date(1000 * unix).toISOString() : "");
const isEmpty = (value) => value === null || value === undefined || value === "" || Number.isNaN(value);

export class Table {
  // key: of a row, where rows are kept as they are drawn until they change; leads: where a click on
  // a row leads, beside what its own links and buttons do
  constructor(caption, columns, noun, { size = 100, key = null, className = null, leads = null } = {}) {
    Object.assign(this, { columns: [], noun, size, shown: size, key, leads, rows: [], by: null, falls: false, kept: new Map() });
    this.head = el("tr");
    this.body = el("tbody");
    this.scroll = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
      el("table", { class: className }, el("caption", {}, caption), el("thead", {}, this.head), this.body));
    this.empty = el("p", {}, `No ${noun}.`);
    this.told = el("span", { class: "small", role: "status" });
    this.copies = el("button", { type: "button", class: "minor", "aria-label": `Copy: ${caption}`,
      title: "All rows, separated by tabs", onclick: () => this.copy() }, "Copy");
    this.more = el("button", { type: "button", onclick: () => this.grow() }, "More");
    this.said = el("span", { class: "small" });
    this.bar = el("div", { class: "bar-row" }, this.said, this.more);
    this.element = el("div", { class: "data" }, el("div", { class: "data-bar" }, this.told, this.copies),
      this.empty, this.scroll, this.bar);
    this.setColumns(columns);
  }
  setColumns(columns) {
    const isSame = JSON.stringify(columns.map((one) => one.name)) === JSON.stringify(this.columns.map((one) => one.name));
    this.columns = columns;
    if (isSame) return;
    this.by = null;
    this.head.replaceChildren(...columns.map((one) => el("th", { scope: "col", class: one.number && "number",
      "aria-sort": one.apart ? null : "none", style: one.width ? { width: one.width } : {} },
    one.apart ? one.name : el("button", { type: "button", class: "sort", title: one.title ?? `Sort by: ${one.name}`, onclick: () => this.sort(one.name) },
      one.name, el("span", { "aria-hidden": "true", class: "arrow" })))));
  }
  // Numbers from the greatest one on, words from the first one on; then the other way round.
  sort(name) {
    const column = this.columns.find((one) => one.name === name);
    this.falls = this.by === name ? !this.falls : Boolean(column.number);
    this.by = name;
    this.columns.forEach((one, place) => {
      if (one.apart) return;
      const isBy = one.name === name, cell = this.head.children[place];
      cell.setAttribute("aria-sort", isBy ? (this.falls ? "descending" : "ascending") : "none");
      cell.querySelector(".arrow").textContent = isBy ? (this.falls ? "▾" : "▴") : "";
    });
    this.show(this.rows);
  }
  sorted() {
    const column = this.columns.find((one) => one.name === this.by);
    if (!column) return this.rows;
    const sign = this.falls ? -1 : 1;
    return this.rows.map((row) => [column.value(row), row]).sort(([one], [other]) => {
      if (isEmpty(one) || isEmpty(other)) return isEmpty(one) - isEmpty(other); // what is not known is last
      if (typeof one === "number" && typeof other === "number") return sign * (one - other);
      return sign * String(one).localeCompare(String(other), "en", { numeric: true });
    }).map(([, row]) => row);
  }
  show(rows) {
    this.rows = rows;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const before = this.kept;
    this.kept = new Map();
    this.body.replaceChildren(...this.sorted().slice(0, this.shown).map((row) => this.line(row, before)));
    if (focused) this.body.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    this.empty.hidden = rows.length > 0;
    this.scroll.hidden = this.copies.hidden = !rows.length;
    this.bar.hidden = rows.length <= this.shown;
    this.said.textContent = rows.length > this.shown ? `${count(this.shown)} of ${count(rows.length)} ${this.noun}` : "";
  }
  line(row, before) {
    const key = this.key?.(row), told = key && JSON.stringify(row);
    const known = key && before.get(key);
    const line = known?.told === told && known ? known.line : el("tr", this.leads ? { class: "leads", onclick: (event) => this.follow(event, row) } : {}, ...this.columns.map((one) => {
      const cell = one.cell(row);
      const isCut = one.width && typeof cell === "string" && cell.length > 9;
      return el("td", { class: one.number && "number", title: isCut && cell }, cell === "" ? unknown : cell ?? unknown);
    }));
    if (key) this.kept.set(key, { told, line });
    return line;
  }
  // Not where somebody marks text to copy it.
  follow(event, row) {
    if (event.target.closest("a, button") || !getSelection().isCollapsed) return;
    location.hash = this.leads(row);
  }
  grow() {
    this.shown += this.size;
    this.show(this.rows);
  }
  text() {
    const plain = (one) => String(one).replace(/[\t\r\n]+/g, " ");
    const written = (column, row) => {
      const value = column.value(row);
      return isEmpty(value) ? "" : plain(column.copied ? column.copied(value) : value);
    };
    const columns = this.columns.filter((one) => !one.apart);
    const head = columns.map((one) => (one.unit ? `${one.name} (${one.unit})` : one.name));
    return [head, ...this.sorted().map((row) => columns.map((one) => written(one, row)))]
      .map((cells) => cells.join("\t")).join("\n") + "\n";
  }
  async copy() {
    try {
      await toClipboard(this.text());
      this.told.textContent = `${count(this.rows.length)} ${this.noun} copied`;
    } catch {
      this.told.textContent = "The browser does not let the page copy";
    }
    clearTimeout(this.forgets);
    this.forgets = setTimeout(() => { this.told.textContent = ""; }, 4000);
  }
}

// Browsers have a clipboard for pages that came over https, or from the machine itself.
async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = el("textarea", { value: text, "aria-hidden": "true" });
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  if (!isDone) throw new Error("not copied");
}
