// A query as a router sends it, of now or of then, and what ended a prefix.

import { get, post } from "./api.js";
import { count, el, Figure, stateText, time } from "./dom.js";
import { instanceLink, to } from "./links.js";
import { figures, words } from "./table.js";

const SLIDER_S = 3600;

export class AskView {
  constructor(feed) {
    this.feed = feed;
    const field = (name, text, given = {}) => el("input", { name, "aria-label": text, ...given });
    this.fields = {
      model: field("model", "Model", { required: true }),
      block_size: field("block_size", "Block size", { type: "number", min: 1, value: "16", required: true }),
      tenant_id: field("tenant_id", "Tenant", { value: "default" }),
      lora_name: field("lora_name", "LoRA adapter"),
      additional_salt: field("additional_salt", "Namespace"),
      cache_salt: field("cache_salt", "Cache salt of the request"),
    };
    const names = { model: "Model", block_size: "Block size", tenant_id: "Tenant", lora_name: "LoRA adapter", additional_salt: "Namespace (additional_salt)", cache_salt: "Salt of the request" };
    this.tokens = el("textarea", { name: "tokens", id: "ask-tokens", required: true, spellcheck: "false",
      placeholder: "101 15 100 55 89 7 42 3 9 12 13 14 15 16 17 18" });
    this.exampleSaid = el("span", { class: "small" }, "asks who holds the beginning that most prompts share");
    this.as = el("select", { name: "as" }, el("option", { value: "token_ids" }, "token ids"), el("option", { value: "seq_hashes" }, "prefix hashes"),
      el("option", { value: "messages" }, "message of a user"), el("option", { value: "prompt" }, "text"));
    this.asOf = el("input", { name: "as_of", placeholder: "now" });
    this.ago = el("input", { type: "range", min: 0, max: SLIDER_S, step: 5, value: "0", "aria-label": "How long ago, in seconds",
      oninput: () => { this.asOf.value = this.ago.value === "0" ? "" : (Date.now() / 1000 - Number(this.ago.value)).toFixed(3); this.sayAgo(); } });
    this.agoSaid = el("output", { class: "small" });
    this.request = el("input", { name: "request", placeholder: "request or decision id" });
    this.result = el("section", { "aria-label": "Answer", "aria-live": "polite" });
    this.element = el("div", {},
      el("form", { onsubmit: (event) => { event.preventDefault(); this.send(); } },
        el("div", { class: "fields" }, ...Object.entries(this.fields).map(([name, input]) => el("label", {}, names[name], input))),
        el("label", { for: "ask-tokens" }, "Prompt as ", this.as, " (numbers, text, or the JSON body of a /query or of a chat)"), this.tokens,
        el("div", { class: "bar-row" }, el("label", {}, "As of", this.asOf), el("label", {}, "or ago", this.ago), this.agoSaid),
        el("div", { class: "bar-row" }, el("button", { type: "submit", class: "main" }, "Ask"),
          el("button", { type: "button", onclick: () => this.example() }, "Example"), this.exampleSaid)),
      el("form", { onsubmit: (event) => { event.preventDefault(); this.find(); } },
        el("div", { class: "bar-row" }, el("label", {}, "Decision of a request", this.request), el("button", { type: "submit" }, "Find"))),
      this.result);
    this.sayAgo();
    this.update();
  }
  sayAgo() {
    const ago = Number(this.ago.value);
    this.agoSaid.textContent = ago ? `${count(ago)} s ago, ${time(Date.now() / 1000 - ago)}` : "now";
  }
  // The model, where there is only one to ask for.
  update() {
    const models = new Set([...this.feed.rows.values()].flatMap((row) => row.models));
    if (!this.fields.model.value && models.size === 1 && document.activeElement !== this.fields.model) [this.fields.model.value] = models;
  }
  // As text: u64 hashes are more than a JavaScript number holds.
  body(instance) {
    const text = this.tokens.value.trim();
    if (text.startsWith("{")) {
      const given = JSON.parse(text);
      if (given.messages || given.prompt) return this.bodyOfText(given, instance);
      for (const [name, input] of Object.entries(this.fields)) if (given[name] !== undefined && given[name] !== null) input.value = given[name];
      this.as.value = given.seq_hashes ? "seq_hashes" : "token_ids";
      const list = new RegExp(`"${this.as.value}"\\s*:\\s*\\[([^\\]]*)\\]`).exec(text);
      if (!list) throw new Error("Expected token_ids or seq_hashes in the JSON");
      this.tokens.value = list[1].replace(/\s+/g, " ").trim();
      return this.body(instance);
    }
    if (this.as.value === "messages") return this.bodyOfText({ messages: [{ role: "user", content: text }] }, instance);
    if (this.as.value === "prompt") return this.bodyOfText({ prompt: text }, instance);
    const list = text.split(/[\s,;[\]]+/).filter(Boolean);
    const wrong = list.find((one) => !/^-?\d+$/.test(one));
    if (wrong !== undefined || !list.length) throw new Error(`Expected numbers, separated by spaces or commas, got: ${(wrong ?? "nothing").slice(0, 40)}`);
    return `${JSON.stringify(this.given(instance)).slice(0, -1)},"${this.as.value}":[${list.join(",")}]}`;
  }
  given(instance) {
    const given = {};
    for (const [name, input] of Object.entries(this.fields)) if (input.value !== "") given[name] = name === "block_size" ? Number(input.value) : input.value;
    if (instance) given.instance_id = instance;
    return given;
  }
  // What a chat has beside its text decides no tokens, and /query does not take it.
  bodyOfText(text, instance) {
    const decides = ["messages", "prompt", "tools", "tool_choice", "documents", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt",
      "continue_final_message", "add_special_tokens", "truncate_prompt_tokens", "truncation_side"];
    for (const name of ["model", "cache_salt"]) if (text[name]) this.fields[name].value = text[name];
    this.as.value = text.messages ? "messages" : "prompt";
    return JSON.stringify({ ...this.given(instance), ...Object.fromEntries(decides.filter((name) => name in text).map((name) => [name, text[name]])) });
  }
  // Fills the form with a question that has an answer here, and asks it.
  example() {
    return this.run(async () => {
      this.asOf.value = "";
      this.ago.value = "0";
      this.sayAgo();
      const { scopes } = await get("prefixes?hot=100").catch(() => ({ scopes: [] }));
      const hottest = scopes.filter((one) => one.prefixes.length).sort((one, other) => other.total - one.total)[0];
      if (hottest) this.fill(hottest, chain(hottest.prefixes), "seq_hashes");
      else {
        this.exampleSaid.textContent = "no prompt is known yet, so it asks about tokens 1 to 64";
        const { services } = await get("services");
        const [first] = services;
        if (!first) throw new Error("No instance is registered, so there is nothing to ask about yet");
        this.fill({ model_name: first.ModelName, block_size: first.BlockSize, tenant_id: first.TenantID, lora_name: first.LoraName,
          additional_salt: first.AdditionalSalt }, Array.from({ length: 64 }, (_, place) => place + 1), "token_ids");
      }
      await this.send();
    });
  }
  fill(scope, list, as) {
    const given = { ...scope, model: scope.model_name, cache_salt: "" };
    for (const [name, input] of Object.entries(this.fields)) input.value = given[name] ?? "";
    this.as.value = as;
    this.tokens.value = list.join(" ");
  }
  async run(work) {
    try {
      await work();
    } catch (error) {
      this.result.replaceChildren(el("p", { class: "wrong", role: "alert" }, error.message));
    }
  }
  asked(separator) {
    return this.asOf.value ? `${separator}as_of=${encodeURIComponent(this.asOf.value)}` : "";
  }
  send() {
    return this.run(async () => {
      const body = this.body();
      const route = this.as.value === "seq_hashes" ? "query_by_hash" : "query";
      const { document: found, headers } = await post(`${route}?${this.asOf.value ? "" : "detail=1"}${this.asked("")}`, body);
      const rows = Object.entries(found).flatMap(([tenant, instances]) => Object.entries(instances).map(([name, one]) => ({ tenant, name, ...one })))
        .sort((one, other) => other.longest_matched - one.longest_matched || one.name.localeCompare(other.name, "en", { numeric: true }));
      const most = Math.max(1, ...rows.map((row) => row.longest_matched));
      const figure = new Figure("Who holds how much of it, in tokens", {
        columns: [words("Instance", (row) => row.name, { cell: (row) => instanceLink(row.name, row.tenant) }), figures("Longest match", (row) => row.longest_matched),
          figures("GPU", (row) => row.GPU), figures("CPU", (row) => row.CPU), figures("Disk", (row) => row.DISK),
          words("State", (row) => row.state ?? "", { cell: (row) => (row.state ? stateText(row.state) : "–") }), words("Reason", (row) => row.reason ?? "")],
        rows: () => rows, noun: "instances" });
      figure.picture.append(...rows.slice(0, 100).map((row) => el("div", { class: "line" },
        el("span", {}, instanceLink(row.name, row.tenant), " ", row.state && row.state !== "exact" ? el("span", { class: row.state }, stateText(row.state)) : ""),
        el("div", {}, el("div", { class: "track", role: "img", "aria-label": `${row.longest_matched} tokens` },
          el("span", { class: "part-1", style: { left: "0", width: `${100 * row.longest_matched / most}%` } })),
        el("span", { class: "small" }, `${count(row.longest_matched)} tokens `),
        this.as.value !== "seq_hashes" ? el("button", { type: "button", "aria-label": `Explain ${row.name}`, onclick: () => this.explain(row.name) }, "Explain") : ""))));
      if (!rows.length) figure.picture.append(el("p", {}, "Nobody: no instance of that scope is known."));
      this.explained = el("div");
      this.result.replaceChildren(el("p", {}, "State ", el("strong", {}, stateText(headers.get("reprise-state") ?? "–")),
        `, position ${headers.get("reprise-position") ?? "–"}${headers.has("reprise-tokens") ? `, tokens ${headers.get("reprise-tokens")}` : ""}`), figure.element, this.explained);
    });
  }
  async explain(instance) {
    try {
      const { document: found } = await post(`explain${this.asked("?")}`, this.body(instance));
      const { ended_by: ended } = found;
      this.explained.replaceChildren(el("h3", {}, `${instance}: ${count(found.longest_matched)} of ${count(found.prompt_tokens)} tokens`),
        ended ? el("p", {}, `Ended by block ${ended.block} (tokens ${ended.tokens[0]} to ${ended.tokens[1] - 1}): ${ended.reason.replaceAll("_", " ")}`) : el("p", {}, "It held all whole blocks of the prompt."),
        el("pre", { tabindex: 0 }, JSON.stringify(found, null, 2)));
    } catch (error) {
      this.explained.replaceChildren(el("p", { class: "wrong", role: "alert" }, error.message));
    }
  }
  find() {
    return this.run(async () => {
      const wanted = this.request.value.trim();
      const { decisions } = await get("decisions?limit=1000000");
      const found = decisions.find((one) => one.decision_id === wanted || (wanted && one.request_id === wanted));
      if (!found) throw new Error(`None of the last ${count(decisions.length)} decisions has the id ${wanted.slice(0, 80)}`);
      location.hash = to("decisions", { id: found.decision_id });
    });
  }
  close() {}
}

// Hashes of the first blocks, as far as each one is known: prefixes are counted at 1, 2, 4, ... blocks.
function chain(prefixes) {
  const hottest = (some) => some.sort((one, other) => other.count - one.count)[0];
  const first = hottest(prefixes.filter((one) => one.blocks === 1)) ?? prefixes[0];
  const second = hottest(prefixes.filter((one) => one.blocks === 2 && one.parent_hash === first.prefix_hash));
  return [first, second].filter(Boolean).map((one) => one.prefix_hash);
}
