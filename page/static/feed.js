// What `/events` tells, kept for the views. One tab reads the stream for all tabs of the browser:
// it opens at most six connections to a host, and the service at most 32 streams.

import { at } from "./api.js";

const HISTORY_S = 3600;
const SECONDS_S = 300; // of these there is a point for each second, before them for each ten
const HISTORY = 720; // points, before those of seconds are thinned: 300 + 330 are left
const DECISIONS = 200;
const QUANTILES_S = 10;
const HIT_RATES_S = 60;
const SILENT_MS = 20000; // a comment comes every 15 s

export class Feed extends EventTarget {
  constructor() {
    super();
    this.summary = null;
    this.rows = new Map();
    this.decisions = [];
    this.skipped = 0; // decisions that nobody was told
    this.history = []; // {at, answers, p50, p99, index, promised, actual, lag}, of the last hour
    this.awaySince = 0; // Unix seconds; 0: Kafka is there
    this.heardAt = 0; // by performance.now()
    this.problem = "";
    this.lastId = "";
    this.summaries = []; // of the last minute
    this.leads = false;
  }

  start() {
    const name = `reprise ${location.pathname}`;
    if (!navigator.locks || !window.BroadcastChannel) return this.lead(); // not a secure context
    this.channel = new BroadcastChannel(name);
    this.channel.onmessage = ({ data }) => this.hear(data);
    this.channel.postMessage({ event: "hello" });
    navigator.locks.request(name, () => this.lead());
  }

  // Never ends while the tab is open: so the lock is kept.
  async lead() {
    this.leads = true;
    for (let pause = 500; ; pause = Math.min(2 * pause, 5000)) {
      const began = performance.now();
      try {
        await this.read();
      } catch (error) {
        this.tell({ event: "problem", data: error.message });
      }
      if (performance.now() - began > 10000) pause = 500;
      await new Promise((done) => setTimeout(done, pause));
    }
  }

  async read() {
    const stop = new AbortController();
    let timer = 0;
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENT_MS);
    };
    watch();
    try {
      const headers = this.lastId ? { "last-event-id": this.lastId } : {};
      const answer = await fetch(at("events"), { headers, cache: "no-store", signal: stop.signal });
      if (!answer.ok) throw new Error(`/events: ${answer.status} ${(await answer.text()).slice(0, 200)}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let kept = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return; // it ends each after a while: the next one goes on behind the last event
        watch();
        const blocks = (kept + value).split("\n\n");
        kept = blocks.pop();
        for (const block of blocks) this.block(block);
      }
    } catch (error) {
      stop.abort();
      throw error.name === "AbortError" ? new Error("the service says nothing") : error;
    } finally {
      clearTimeout(timer);
    }
  }

  block(text) {
    const fields = {};
    for (const line of text.split("\n")) {
      const place = line.indexOf(": ");
      if (place > 0) fields[line.slice(0, place)] = line.slice(place + 2);
    }
    if (fields.data) this.tell({ event: fields.event, data: JSON.parse(fields.data), id: fields.id });
  }

  tell(message) {
    this.hear(message);
    this.channel?.postMessage(message);
  }

  hear({ event, data, id }) {
    if (event === "hello") {
      if (this.leads && this.summary) this.channel.postMessage({ event: "all", data: this.all() });
      return;
    }
    if (event === "problem") this.problem = data;
    else {
      this.problem = "";
      this.heardAt = performance.now();
    }
    if (id) this.lastId = id;
    if (event === "all") {
      if (!this.leads) Object.assign(this, data, { rows: new Map(data.rows) });
    } else if (event === "history") this.remember(data);
    else if (event === "summary") this.note(data);
    else if (event === "instances") {
      if (data.whole) this.rows.clear();
      for (const row of data.rows) this.rows.set(keyOf(row.tenant_id, row.instance_id), row);
      for (const [tenant, instance] of data.gone) this.rows.delete(keyOf(tenant, instance));
    } else if (event === "decisions") {
      const fresh = new Set(data.decisions.map((one) => one.decision_id));
      this.decisions = [...data.decisions, ...this.decisions.filter((one) => !fresh.has(one.decision_id))].slice(0, DECISIONS);
      this.skipped += data.skipped;
    }
    this.dispatchEvent(new CustomEvent("news", { detail: event }));
  }

  all() {
    const { summary, decisions, skipped, history, lastId, summaries, awaySince } = this;
    return { summary, decisions, skipped, history, lastId, summaries, awaySince, rows: [...this.rows] };
  }

  // What the service has kept, where this page has no points of its own.
  remember({ points, counted }) {
    if (!this.summaries.length) this.summaries = counted;
    const own = new Set(this.history.map((one) => Math.floor(one.at / 10)));
    this.history = [...this.history, ...points.filter((one) => !own.has(Math.floor(one.at / 10)))].sort((one, other) => one.at - other.at);
  }

  // An hour is kept; of what is older than some minutes, each tenth second.
  thin(now) {
    const tenths = new Set();
    this.history = this.history.filter(({ at }) => {
      const tenth = Math.floor(at / 10);
      if (at < now - HISTORY_S || (at < now - SECONDS_S && tenths.has(tenth))) return false;
      tenths.add(tenth);
      return true;
    });
  }

  // Rates of a second, and of the last seconds, from counts.
  note(summary) {
    const last = this.summary;
    const restarted = last && (summary.at < last.at || total(summary) < total(last));
    if (restarted) this.summaries = [];
    if (this.history.at(-1)?.at > summary.at) this.history = this.history.filter((one) => one.at < summary.at); // a clock was set back
    this.summary = summary;
    this.summaries.push(summary);
    while (this.summaries.length > 1 && this.summaries[1].at <= summary.at - HIT_RATES_S) this.summaries.shift();
    this.awaySince = isAway(summary) ? this.awaySince || awaySince(summary) : 0;
    const tenAgo = this.summaries.findLast((one) => one.at <= summary.at - QUANTILES_S + 0.5) ?? this.summaries[0];
    const oldest = this.summaries[0];
    const ratio = (part, whole) => {
      const all = value(summary, whole) - value(oldest, whole);
      return all > 0 ? (value(summary, part) - value(oldest, part)) / all : null;
    };
    this.history.push({
      at: summary.at,
      answers: summary.queries && tenAgo !== summary ? (total(summary) - total(tenAgo)) / (summary.at - tenAgo.at) : null,
      p50: quantile(tenAgo, summary, 0.5),
      p99: quantile(tenAgo, summary, 0.99),
      index: ratio("hit_tokens", "tokens"),
      promised: ratio("promised_tokens", "prompt_tokens"),
      actual: ratio("actual_tokens", "prompt_tokens"),
      lag: summary.health.lag ? summary.health.lag.seconds : null,
    });
    if (this.history.length > HISTORY || this.history[0].at < summary.at - HISTORY_S) this.thin(summary.at);
  }
}

// Kafka of a replica; conditions of its topics are others.
const ofKafka = (summary) => summary.health.conditions.find((one) => one.part === "kafka");
function isAway(summary) {
  const { lag } = summary.health, condition = ofKafka(summary);
  return condition ? condition.reason === "unreachable" : Boolean(lag && !lag.reachable && !summary.health.conditions.length);
}
const awaySince = (summary) => ofKafka(summary)?.since ?? summary.at;

export const keyOf = (tenant, instance) => JSON.stringify([tenant, instance]);

const routes = (summary) => Object.values(summary.queries ?? {});
const total = (summary) => routes(summary).reduce((sum, one) => sum + one.count, 0);

function value(summary, name) {
  if (name === "tokens" || name === "hit_tokens") return routes(summary).reduce((sum, one) => sum + one[name], 0);
  return summary.routing ? summary.routing[name] : 0;
}

// In ms, of the answers between two summaries; null: there were none.
function quantile(from, to, share) {
  if (!from || from === to || !to.queries) return null;
  const sums = new Map();
  for (const [sign, summary] of [[1, to], [-1, from]])
    for (const one of routes(summary))
      for (const [bound, answers] of one.seconds) {
        const key = bound === null ? Infinity : bound;
        sums.set(key, (sums.get(key) ?? 0) + sign * answers);
      }
  const buckets = [...sums].sort((one, other) => one[0] - other[0]);
  const wanted = share * buckets[buckets.length - 1]?.[1];
  if (!(wanted > 0)) return null;
  let low = 0, below = 0;
  for (const [bound, upTo] of buckets) {
    if (upTo >= wanted) return 1000 * (bound === Infinity ? low : low + (bound - low) * (wanted - below) / (upTo - below));
    low = bound;
    below = upTo;
  }
  return null;
}
