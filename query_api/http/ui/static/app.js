// The page: which view is open, and how old what it shows is.

import { el, seconds } from "./dom.js";
import { Feed } from "./feed.js";
import { AskView } from "./ask.js";
import { CachesView } from "./caches.js";
import { DecisionsView } from "./decisions.js";
import { LossView } from "./loss.js";
import { MemoryView } from "./memory.js";
import { OverviewView } from "./overview.js";
import { PrefixesView } from "./prefixes.js";

// A view has: element, update(event), close().
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
let open = null;

function show() {
  const [name, given] = location.hash.slice(1).split("?");
  const wanted = views[name] ? name : "overview";
  open?.close();
  const [title, View] = views[wanted];
  open = new View(feed, new URLSearchParams(given ?? ""));
  place.replaceChildren(el("h2", {}, title), open.element);
  for (const [key, link] of links) {
    if (key === wanted) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title} - Reprise`;
  open.update("opened");
}

function say() {
  const heard = feed.heardAt ? (performance.now() - feed.heardAt) / 1000 : null;
  const isLost = feed.problem !== "" || (heard !== null && heard > 5);
  let text = "Connecting ...";
  if (isLost) {
    const age = heard === null ? "Nothing was heard yet" : `What is shown is ${seconds(heard)} old`;
    text = `Not connected. ${age}${feed.problem ? ` (${feed.problem})` : ""}; trying again.`;
  } else if (feed.summary) {
    const { health } = feed.summary;
    text = health.conditions.length
      ? health.conditions.map((one) => `${one.level}: ${one.message}`).join(" ")
      : `Live. ${health.role === "serve" ? "Replica" : "Service"} is ready.`;
    if (!health.conditions.length && !health.ready) text = `Live. Not ready: ${health.problem}`;
  }
  const isWell = !isLost && feed.summary?.health.ready && !feed.summary.health.conditions.length;
  connection.className = isLost ? "lost" : isWell ? "live" : "waiting";
  if (connection.textContent !== text) connection.textContent = text;
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
  show();
  place.focus();
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
