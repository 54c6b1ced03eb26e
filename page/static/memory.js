// What KV caches take of their memory, and what Reprise itself takes.

import { ask, get, samples } from "./api.js";
import { bytes, count, el, Figure, legend, Pages, percent, poll, seconds } from "./dom.js";
import { instanceLink } from "./links.js";
import { figures, words } from "./table.js";

// What is shown of /metrics: name, text, how it is written.
const METRICS = [
  ["process_resident_memory_bytes", "Process in memory", bytes],
  ["process_cpu_seconds_total", "CPU since the start", seconds],
  ["process_open_fds", "Open files", count],
  ["reprise_log_size_bytes", "Log", bytes],
  ["reprise_log_end_offset", "Records ever logged", count],
  ["reprise_log_complete_from_offset", "Kept from record", count],
  ["reprise_history_bytes", "History", bytes],
  ["reprise_http_body_bytes", "Bodies being read", bytes],
];

export class MemoryView {
  constructor(feed) {
    this.feed = feed;
    this.segments = [];
    this.problem = el("p", { class: "wrong", role: "status" });
    this.list = el("dl", { class: "tiles" });
    this.own = [];
    this.pages = new Pages(60, (rows) => el("div", {}, ...rows.map(picture)), "segments of memory");
    this.figure = new Figure("KV caches, as kvcached says", {
      legend: [legend("part-1", "used"), legend("part-2", "reserved")],
      columns: [words("Host", (one) => one.host), words("Segment", (one) => one.segment), words("State", (one) => one.state),
        words("Instances", (one) => one.instances.map((held) => held.instance_id).join(", "), { cell: (one) => instances(one) }),
        figures("Used", (one) => one.used, bytes), figures("Reserved", (one) => one.preallocated, bytes),
        figures("Limit", (one) => one.total, bytes), figures("Pressure", (one) => one.pressure, percent),
        figures("Age", (one) => one.age, seconds)],
      rows: () => this.segments, noun: "segments of memory" });
    this.figure.picture.append(this.pages.element);
    this.element = el("div", {}, this.problem, this.list, this.figure.element);
    this.memory = poll(() => get("memory"), 5, (found) => {
      this.segments = [...found.segments].sort((one, other) => other.pressure - one.pressure);
      this.pages.show(this.segments);
      this.figure.update();
    }, this.problem);
    const wanted = new Set(METRICS.map(([name]) => name));
    this.said = el("p", { class: "small", role: "status" });
    this.element.append(this.said);
    this.metrics = poll(async () => samples((await ask("metrics")).text, wanted), 15, (found) => {
      this.own = found;
      this.update();
    }, this.said);
  }
  update() {
    const tiles = [];
    const { index } = this.feed.summary ?? {};
    if (index) tiles.push(["Index in memory", bytes(index.memory_bytes)], ["Blocks", count(index.blocks)],
      ["Entries", count(index.entries)], ["Bytes an entry", index.entries ? count(index.memory_bytes / index.entries) : "–"]);
    for (const [name, text, format] of METRICS) {
      const values = this.own.filter((one) => one[0] === name).map((one) => one[2]);
      if (values.length) tiles.push([text, format(values.reduce((sum, one) => sum + one, 0))]);
    }
    const drawn = JSON.stringify(tiles);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.list.replaceChildren(...tiles.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }
  close() {
    this.memory.close();
    this.metrics.close();
  }
}

const instances = (one) => el("span", {}, ...one.instances.flatMap((held, place) =>
  [place ? ", " : "", instanceLink(held.instance_id, held.tenant_id)]));

function picture(one) {
  const part = (name, from, size) => el("span", { class: name, style: {
    left: `${100 * Math.min(from / (one.total || 1), 1)}%`, width: `${100 * Math.min(size / (one.total || 1), 1)}%` } });
  const text = `${bytes(one.used)} used, ${bytes(one.preallocated)} reserved of ${bytes(one.total)} (${percent(one.pressure)}), ${one.state}`;
  return el("div", { class: "line" }, el("span", {}, `${one.host} / ${one.segment} `, instances(one)), el("div", {},
    el("div", { class: "track", role: "img", "aria-label": text }, part("part-1", 0, one.used), part("part-2", one.used, one.preallocated)),
    el("span", { class: one.pressure >= 0.95 || one.state !== "live" ? "wrong" : "small" }, text)));
}
