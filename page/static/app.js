// The page: which view is open, and how old what it shows is.

import { el, seconds, time } from "./dom.js";
import { Feed } from "./feed.js";
import { AskView } from "./ask.js";
import { CachesView } from "./caches.js";
import { DecisionsView } from "./decisions.js";
import { LossView } from "./loss.js";
import { MemoryView } from "./memory.js";
import { OverviewView } from "./overview.js";
import { PrefixesView } from "./prefixes.js";

// A view has: element, update(event), close(); go(given), where it can show something else at once.
const views = {
  overview: ["Overview", OverviewView],
  caches: ["Caches", CachesView],
  prefixes: ["Prefixes", PrefixesView],
  loss: ["Loss", LossView],
  decisions: ["Decisions", DecisionsView],
  memory: ["Memory", MemoryView],
  ask: ["Ask", AskView],
};

const feed = new Feed();
const place = document.getElementById("view");
const connection = document.getElementById("connection");
const links = new Map();
let open = null, shown = "";

function show() {
  const [name, given] = location.hash.slice(1).split("?");
  const wanted = views[name] ? name : "overview";
  if (open?.go && shown === wanted && open.go(new URLSearchParams(given ?? ""))) return false;
  open?.close();
  shown = wanted;
  const [title, View] = views[wanted];
  open = new View(feed, new URLSearchParams(given ?? ""));
  place.replaceChildren(el("h2", {}, title), open.element);
  for (const [key, link] of links) {
    if (key === wanted) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title} - Reprise`;
  open.update("opened");
  return true;
}

// How it is: [class, role, a sentence for each thing].
function state() {
  const heard = feed.heardAt ? (performance.now() - feed.heardAt) / 1000 : null;
  if (feed.problem !== "" || (heard !== null && heard > 5)) {
    const age = heard === null ? "Nothing was heard yet" : `What is shown is ${seconds(heard)} old`;
    return ["lost", "status", [`Not connected. ${age}${feed.problem ? ` (${feed.problem})` : ""}; trying again.`]];
  }
  if (!feed.summary) return ["waiting", "status", ["Connecting ..."]];
  const { health } = feed.summary;
  if (feed.awaySince) {
    const what = health.ready ? "answers are those of then and say “stale”" : "nothing is answered";
    return ["away", "alert", [`Kafka is away since ${time(feed.awaySince)}: until it is back, ${what}.`]];
  }
  if (health.conditions.length) {
    const isBad = health.conditions.some((one) => one.level === "unavailable");
    return [isBad ? "away" : "waiting", isBad ? "alert" : "status", health.conditions.map((one) => sentence(one.message))];
  }
  if (!health.ready) return ["waiting", "status", [`Not ready: ${health.problem}`]];
  return ["live", "status", [`Live: the ${health.role === "serve" ? "replica" : "service"} is ready.`]];
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

function say() {
  const [kind, role, texts] = state();
  connection.className = kind;
  connection.setAttribute("role", role);
  if (connection.dataset.said === JSON.stringify(texts)) return;
  connection.dataset.said = JSON.stringify(texts);
  connection.replaceChildren(...texts.map((text) => el("span", {}, text)));
}

let wanted = false;
feed.addEventListener("news", ({ detail }) => {
  if (detail === "summary" && feed.summary)
    document.getElementById("version").textContent =
      `Reprise ${feed.summary.health.version}, kernel ${feed.summary.health.kernel}`;
  say();
  if (wanted || document.hidden) return;
  wanted = true;
  requestAnimationFrame(() => {
    wanted = false;
    open.update(detail);
  });
});
document.addEventListener("visibilitychange", () => document.hidden || open.update("shown"));
setInterval(say, 1000);

Object.entries(views).forEach(([key, [title]], index) => {
  const link = el("a", { href: `#${key}`, title: `Key ${index + 1}` }, title);
  links.set(key, link);
  document.getElementById("tabs").append(el("li", {}, link));
});
addEventListener("hashchange", () => {
  if (show()) scrollTo(0, 0);
  if (!place.contains(document.activeElement)) place.focus({ preventScroll: true });
});
addEventListener("keydown", (event) => {
  const isWriting = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (isWriting || event.ctrlKey || event.metaKey || event.altKey || !document.getElementById("keys").checked) return;
  const name = Object.keys(views)[Number(event.key) - 1];
  if (name) location.hash = name;
  if (event.key === "t") {
    const buttons = [...place.querySelectorAll(".as-table")];
    const opens = buttons.some((one) => one.getAttribute("aria-expanded") === "false");
    for (const one of buttons) if ((one.getAttribute("aria-expanded") === "false") === opens) one.click();
  }
});

window.reprise = feed; // for tests, and for who opens the console
show();
feed.start();
