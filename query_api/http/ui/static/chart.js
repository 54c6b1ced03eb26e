// Lines over time, by uPlot.

import { color, Figure, legend, time } from "./dom.js";

export class LineChart {
  // lines: [name, of a point its value, dashed]; format: a value as text
  constructor(title, feed, lines, format) {
    Object.assign(this, { feed, lines, format, drawn: null });
    this.figure = new Figure(title, {
      legend: lines.map(([name], place) => legend(`part-${place + 1}`, name)),
      columns: [["Time", (point) => time(point.at)],
        ...lines.map(([name, of]) => [name, (point) => format(of(point)), true])],
      rows: () => feed.history.slice(-300).reverse(),
      noun: "seconds",
    });
    this.element = this.figure.element;
    this.picture = this.figure.picture;
    this.picture.setAttribute("role", "img");
    this.sizes = new ResizeObserver(() => this.drawn?.setSize(this.size()));
    this.sizes.observe(this.picture);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.onscheme = () => { this.end(); this.update(); };
    this.scheme.addEventListener("change", this.onscheme);
  }
  size() {
    return { width: Math.max(this.picture.clientWidth, 100), height: 150 };
  }
  update() {
    const points = this.feed.history;
    const data = [points.map((one) => one.at), ...this.lines.map(([, of]) => points.map((one) => of(one) ?? null))];
    const last = points[points.length - 1];
    const now = this.lines.map(([name, of]) => `${name} ${last ? this.format(of(last)) : "–"}`).join(", ");
    this.picture.setAttribute("aria-label", `${this.figure.title}: now ${now}`);
    if (!this.drawn && this.picture.isConnected) this.drawn = new uPlot(this.options(), data, this.picture);
    else this.drawn?.setData(data);
    this.figure.update();
  }
  options() {
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    return {
      ...this.size(), legend: { show: false }, cursor: { show: false },
      series: [{}, ...this.lines.map(([label, , dashed], place) => ({
        label, width: 2, stroke: color(`--series-${place + 1}`), dash: dashed ? [6, 4] : undefined, points: { show: false } }))],
      axes: [{ ...axis, values: (_, ticks) => ticks.map((at) => time(at).slice(...(ticks[ticks.length - 1] - ticks[0] > 300 ? [0, 5] : [3]))) },
        { ...axis, size: 62, values: (_, ticks) => ticks.map(this.format) }],
      scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1e-9) * 1.1] } },
    };
  }
  end() {
    this.drawn?.destroy();
    this.drawn = null;
  }
  close() {
    this.end();
    this.sizes.disconnect();
    this.scheme.removeEventListener("change", this.onscheme);
  }
}
