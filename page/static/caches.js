// What each instance holds: how many blocks, and how much of the last prompts by depth.

import { get } from "./api.js";
import { count, el, Figure, Pages, percent, poll } from "./dom.js";
import { keyOf } from "./feed.js";
import { instanceLink, Only } from "./links.js";
import { figures, words } from "./table.js";

const depth = (tokens) => (tokens >= 1 << 20 ? `${tokens >> 20}Mi` : tokens >= 1024 ? `${tokens >> 10}Ki` : String(tokens));

export class CachesView {
  constructor(feed, given) {
    this.feed = feed;
    this.only = new Only("caches", given);
    this.document = { decisions: 0, bins: [], rows: [], left_out: 0 };
    this.problem = el("p", { class: "wrong", role: "status" });
    this.said = el("p", { class: "small" });
    this.filter = el("input", { type: "search", oninput: () => this.draw() });
    this.heat = new Figure("Held of the last prompts, by depth in tokens", {
      columns: () => this.columns(), rows: () => this.rows(), noun: "instances",
      caption: "Share that was held of the tokens at each depth" });
    this.pages = new Pages(40, (rows) => this.grid(rows), "instances");
    this.heat.picture.append(this.pages.element);
    this.element = el("div", {}, this.problem, this.only.element,
      el("div", { class: "bar-row" }, el("label", {}, "Instances with ", this.filter)), this.said, this.heat.element);
    this.polled = poll(() => get("ui/heatmap"), 5, (found) => {
      this.document = found;
      this.draw();
    }, this.problem);
  }
  rows() {
    const shares = new Map(this.document.rows.map((row) => [keyOf(row.tenant_id, row.instance_id), row.shares]));
    const text = this.filter.value.toLowerCase();
    return [...this.feed.rows].filter(([, row]) => this.only.admits(row.instance_id, row.tenant_id)).map(([key, row]) => ({
      key, instance: row.instance_id, tenant: row.tenant_id, blocks: row.blocks, shares: shares.get(key) ?? [],
      name: row.tenant_id === "default" ? row.instance_id : `${row.tenant_id} / ${row.instance_id}`,
    })).filter((row) => row.name.toLowerCase().includes(text))
      .sort((one, other) => (other.blocks ?? 0) - (one.blocks ?? 0) || one.name.localeCompare(other.name, "en", { numeric: true }));
  }
  // Bins that no prompt reached are not shown.
  bins() {
    const { bins, rows } = this.document;
    const used = bins.filter((_, place) => rows.some((row) => row.shares[place] !== null));
    return bins.slice(0, used.length);
  }
  // There are as many as prompts are deep.
  columns() {
    return [words("Instance", (row) => row.name, { cell: (row) => instanceLink(row.instance, row.tenant, row.name) }),
      figures("Blocks", (row) => row.blocks),
      ...this.bins().map((from, place) => figures(`from ${depth(from)}`, (row) => row.shares[place], percent))];
  }
  draw() {
    const { decisions, left_out } = this.document;
    this.said.textContent = decisions
      ? `Of the last ${count(decisions)} decisions.${left_out ? ` ${count(left_out)} instances are left out.` : ""}`
      : "Nothing was decided yet by /route, so only blocks can be shown.";
    const rows = this.rows();
    const drawn = JSON.stringify([rows, this.bins()]);
    if (drawn !== this.drawn) this.pages.show(rows);
    this.drawn = drawn;
    this.heat.update();
  }
  // A canvas: each cell as dark as much was held, the blocks as a bar before them.
  grid(rows) {
    const canvas = el("canvas", { role: "img",
      "aria-label": `Heat map of ${rows.length} instances; the table has its numbers` });
    const bins = this.bins(), line = 22, top = 22;
    const width = Math.max((this.heat.picture.clientWidth || 600) - 4, 200);
    const named = Math.min(Math.max(width * 0.25, 70), 220), bar = Math.min(width * 0.2, 140);
    const cell = bins.length ? (width - named - bar - 8) / bins.length : 0;
    const height = top + rows.length * line, scale = window.devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const ink = (name) => style.getPropertyValue(name);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const most = Math.max(1, ...rows.map((row) => row.blocks ?? 0));
    const write = (text, x, y, room) => {
      pen.save();
      pen.beginPath();
      pen.rect(x, y - line / 2, room, line);
      pen.clip();
      pen.fillText(text, x, y);
      pen.restore();
    };
    pen.fillStyle = ink("--text");
    write("blocks", named, top / 2, bar);
    bins.forEach((from, place) => write(depth(from), named + bar + 8 + place * cell, top / 2, cell));
    rows.forEach((row, place) => {
      const y = top + place * line;
      pen.fillStyle = ink("--text");
      write(row.name, 0, y + line / 2, named - 6);
      pen.fillStyle = ink("--none");
      pen.fillRect(named, y + 2, bar, line - 4);
      pen.fillStyle = ink("--series-1");
      pen.fillRect(named, y + 2, bar * (row.blocks ?? 0) / most, line - 4);
      pen.fillStyle = ink("--text");
      bins.forEach((_, bin) => {
        const share = row.shares[bin], x = named + bar + 8 + bin * cell;
        pen.fillStyle = ink("--none");
        pen.fillRect(x, y + 1, cell - 1, line - 2);
        if (share === null || share === undefined) return;
        pen.globalAlpha = share;
        pen.fillStyle = ink("--series-1");
        pen.fillRect(x, y + 1, cell - 1, line - 2);
        pen.globalAlpha = 1;
        if (cell > 34) {
          pen.fillStyle = readable(ink("--none"), ink("--series-1"), share);
          write(`${Math.round(100 * share)} %`, x + 4, y + line / 2, cell - 4);
        }
      });
    });
    return canvas;
  }
  update() {
    this.draw();
  }
  close() {
    this.polled.close();
  }
}

// Black or white, whichever is better read on `over` laid on `under` by a share.
function readable(under, over, share) {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.trim().slice(at, at + 2), 16));
  const low = parts(under), mixed = parts(over).map((part, place) => low[place] + share * (part - low[place]));
  const [red, green, blue] = mixed.map((part) => (part / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000000" : "#ffffff";
}
