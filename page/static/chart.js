// Lines over time, by uPlot: the last hour, which the service keeps.

import { color, Figure, legend, time } from "./dom.js";
import { figures, moment } from "./table.js";

const HEIGHT = 150, SPAN_MIN_S = 20;
const MINUTES_PX = 54, SECONDS_PX = 76; // of a label, with some room
const STEPS_S = [5, 10, 15, 30, 60, 120, 180, 300, 600, 900, 1800];

export class LineChart {
  // lines: [name, of a point its value, dashed]; format: a value as text;
  // axis: {scale: what values are multiplied by, unit, top: the highest value there is}
  constructor(title, feed, lines, format, axis = {}) {
    Object.assign(this, { feed, lines, format, drawn: null, axis: { scale: 1, unit: "", ...axis } });
    this.figure = new Figure(title, {
      legend: lines.length > 1 ? lines.map(([name], place) => legend(`part-${place + 1}`, name)) : [],
      columns: [moment("Time", (point) => point.at),
        ...lines.map(([name, of]) => figures(name, of, format))],
      rows: () => feed.history.toReversed?.() ?? [...feed.history].reverse(),
      noun: "points",
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
    return { width: Math.max(this.picture.clientWidth, 100), height: HEIGHT };
  }
  // From the first point on, so that nothing is blank, to the last one.
  span() {
    const points = this.feed.history;
    const last = points.length ? points[points.length - 1].at : Date.now() / 1000;
    return [Math.min(points[0]?.at ?? last, last - SPAN_MIN_S), last];
  }
  update() {
    const points = this.feed.history;
    const data = [points.map((one) => one.at), ...this.lines.map(([, of]) => points.map((one) => of(one) ?? null))];
    const last = points[points.length - 1];
    const now = this.lines.map(([name, of]) => `${name} ${last ? this.format(of(last)) : "–"}`).join(", ");
    const [from, to] = this.span();
    this.picture.setAttribute("aria-label", `${this.figure.title} from ${time(from)} to ${time(to)}: now ${now}`);
    if (!this.drawn && this.picture.isConnected) this.drawn = new uPlot(this.options(), data, this.picture);
    else this.drawn?.setData(data);
    this.figure.update();
  }
  options() {
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const told = (name, texts) => { // canvases tell nobody what is on them
      this.picture.dataset[name] = texts.join(" | ");
      return texts;
    };
    return {
      ...this.size(), legend: { show: false }, cursor: { show: false }, padding: [8, 12, 0, 0],
      series: [{}, ...this.lines.map(([label, , dashed], place) => ({
        label, width: 2, stroke: color(`--series-${place + 1}`), dash: dashed ? [6, 4] : undefined,
        fill: place ? undefined : `${color("--series-1")}26`, points: { show: false } }))],
      axes: [
        { ...axis, size: 26, gap: 8, splits: (plot, _, from, to) => timeTicks(from, to, plot.bbox.width / devicePixelRatio),
          values: (_, ticks) => told("timeTicks", timeTexts(ticks)) },
        { ...axis, size: 58, splits: (_, __, ___, high) => valueTicks(high),
          values: (_, ticks) => told("valueTicks", valueTexts(ticks, this.axis)) }],
      scales: { x: { time: false, range: () => this.span() },
        y: { range: (_, __, high) => [0, 1.06 * (this.axis.top ?? (high || 1))] } },
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

// At whole minutes, or parts of one, of the clock on the wall; as many as there is room for.
export function timeTicks(from, to, widthPx) {
  const room = (step) => Math.max(widthPx / (step % 60 ? SECONDS_PX : MINUTES_PX), 1);
  const step = STEPS_S.find((one) => (to - from) / one <= room(one)) ?? 3600;
  const offset = -60 * new Date(1000 * to).getTimezoneOffset();
  const ticks = [];
  for (let at = Math.ceil((from + offset) / step) * step - offset; at <= to; at += step) ticks.push(at);
  return ticks;
}

export function timeTexts(ticks) {
  const isWhole = ticks.every((at) => at % 60 === 0);
  return ticks.map((at) => (isWhole ? time(at).slice(0, 5) : time(at)));
}

// Two to five round ones.
export function valueTicks(high) {
  const power = 10 ** Math.floor(Math.log10(high / 5));
  const step = power * [1, 2, 2.5, 5, 10].find((one) => high / (one * power) <= 5 + 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) + 1 }, (_, place) => place * step);
}

export function valueTexts(ticks, { scale, unit }) {
  const step = scale * ((ticks[1] ?? 1) - (ticks[0] ?? 0));
  let digits = 0;
  while (digits < 6 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits++;
  const format = new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return ticks.map((one) => `${format.format(scale * one)}${unit}`);
}
