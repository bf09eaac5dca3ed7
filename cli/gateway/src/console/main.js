// The frame: sign-in, the current view, and how often it is refreshed.

import { hasKey, may, signIn, signOut, whoami } from "./api.js";
import { h, say } from "./dom.js";
import { isLive, unwatch, watch } from "./live.js";
import { approvals } from "./views/approvals.js";
import { audit } from "./views/audit.js";
import { config } from "./views/config.js";
import { dead } from "./views/dead.js";
import { limits } from "./views/limits.js";
import { overview } from "./views/overview.js";
import { pauses } from "./views/pauses.js";
import { rules } from "./views/rules.js";
import { find } from "./views/story.js";
import { stats } from "./views/stats.js";
import { tasks } from "./views/tasks.js";
import { tools } from "./views/tools.js";
import { turns } from "./views/turns.js";
import { workers } from "./views/workers.js";

// A view has a title and `open(query)`, which returns `{still, load, draw, every_ms}`: elements that stay across
// refreshes, a function that requests data, a function that draws it, and the refresh interval. With `is_fleet`, the
// data is the snapshot of the fleet, which the live stream delivers.
const VIEWS = { overview, turns, tasks, approvals, dead, pauses, limits, rules, tools, workers, stats, audit, config, find };
// Refresh interval while the live stream reports changes. Views still refresh, because the snapshots do not show all
// changes.
const QUIET_MS = 30_000;
const main = document.getElementById("main");
let showing;

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = Object.hasOwn(VIEWS, path) ? path : "overview";
  return { name, query: new URLSearchParams(query) };
}

/** Redraws a view. Keyboard focus and open details are kept. */
function redraw(into, elements) {
  const focused = into.contains(document.activeElement) ? document.activeElement.id : "";
  const open = new Set([...into.querySelectorAll("details[open][id]")].map((one) => one.id));
  into.replaceChildren(...[elements].flat().filter(Boolean));
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (focused) document.getElementById(focused)?.focus();
}

async function look(view, region, again) {
  if (view !== showing) return;
  if (again && (document.hidden || document.querySelector("dialog[open]"))) return;
  const asked = (view.asked = (view.asked ?? 0) + 1);
  view.looked = Date.now();
  try {
    const data = await view.load();
    if (view === showing && asked === view.asked) redraw(region, view.draw(data, refresh));
  } catch (error) {
    if (view !== showing || error.name === "AbortError") return;
    if (error.status === 401) return leave(error.message);
    redraw(region, h("p", { class: "bad", role: again ? undefined : "alert" }, error.message));
  }
}

/** Runs on a timer. A view refreshes at its own interval, and less often while the live stream reports changes. */
function look_again(view) {
  const wait = isLive() ? QUIET_MS : view.every_ms;
  if (Date.now() - (view.looked ?? 0) >= wait - 50) look(view, view.region, true);
}

/** Handles a snapshot of the fleet. */
function pictured({ changes, fleet }) {
  const view = showing;
  if (!view || document.querySelector("dialog[open]")) return;
  if (view.is_fleet) {
    // Responses to earlier requests are older than this snapshot, and must be ignored.
    view.asked = (view.asked ?? 0) + 1;
    view.looked = Date.now();
    redraw(view.region, view.draw(fleet, refresh));
  } else if (view.every_ms && view.changes !== changes && Date.now() - view.looked >= view.every_ms) {
    view.changes = changes;
    look(view, view.region, true);
  }
}

/** Refreshes at once, after an action. */
function refresh() {
  return showing ? look(showing, showing.region, false) : undefined;
}

function show(moved) {
  if (!whoami()) return ask_for_key("");
  const { name, query } = place();
  clearInterval(showing?.timer);
  const view = VIEWS[name].open(query, refresh);
  const region = h("div", {}, h("p", { class: "soft" }, "Loading …"));
  showing = Object.assign(view, { region });
  document.title = `${VIEWS[name].title} · Tickfleet console`;
  main.replaceChildren(h("h1", {}, VIEWS[name].title), ...[view.still ?? []].flat(), region);
  for (const link of document.querySelectorAll("#views a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (moved) main.focus();
  look(view, region, false);
  if (view.every_ms) view.timer = setInterval(() => look_again(view), view.every_ms);
}

function frame(isIn) {
  document.querySelector("nav").hidden = !isIn;
  document.getElementById("find").hidden = !isIn;
  document.getElementById("sign-out").hidden = !isIn;
  const me = whoami();
  const role = ["operate", "approve", "view"].filter(may).join(", ");
  document.getElementById("me").textContent = isIn ? `${me.id} · ${me.tenant ?? "all tenants"} · ${role}` : "";
}

function leave(why) {
  unwatch();
  signOut();
  clearInterval(showing?.timer);
  showing = undefined;
  frame(false);
  ask_for_key(why);
}

function ask_for_key(why) {
  const wrong = h("p", { class: "bad", role: "alert" }, why ?? "");
  const key = h("input", { id: "key", type: "password", autocomplete: "off", required: true });
  const form = h("form", { class: "sign-in card", submit: enter },
    h("h1", {}, "Sign in"), h("label", { for: "key" }, "API key or token"), key, wrong, h("button", { class: "act" }, "Sign in"),
    h("p", { class: "soft" }, "tickfleet gateway key --id anna --tenant '*' --role operator creates one. Only this browser tab keeps it."));
  async function enter(event) {
    event.preventDefault();
    await start(key.value).catch((error) => (wrong.textContent = error.message));
  }
  document.title = "Sign in · Tickfleet console";
  main.replaceChildren(form);
  key.focus();
}

async function start(key) {
  await signIn(key);
  frame(true);
  say("");
  show(true);
  watch(pictured, (error) => leave(error.message));
}

function theme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("tickfleet-theme", root.dataset.theme);
}

function prepare() {
  const known = localStorage.getItem("tickfleet-theme");
  if (known === "light" || known === "dark") document.documentElement.dataset.theme = known;
  document.getElementById("theme").addEventListener("click", theme);
  document.getElementById("sign-out").addEventListener("click", () => leave(""));
  const links = Object.entries(VIEWS).filter(([name]) => name !== "find");
  document.getElementById("views").append(...links.map(([name, view]) => h("li", {}, h("a", { href: `#/${name}` }, view.title))));
  document.getElementById("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = document.getElementById("find-id").value.trim();
    if (id) location.hash = `#/find?id=${encodeURIComponent(id)}`;
  });
  addEventListener("keydown", (event) => {
    if (event.key === "k" && (event.ctrlKey || event.metaKey) && whoami()) {
      event.preventDefault();
      document.getElementById("find-id").focus();
      document.getElementById("find-id").select();
    }
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  addEventListener("hashchange", () => begin() || show(true));
}

/**
 * The key in a link that a program on this machine printed. If the console runs on another host, the key is ignored:
 * anyone could send such a link.
 */
function keyOfLink() {
  const key = /^#key=([\w-]+)$/.exec(location.hash)?.[1];
  if (!key) return "";
  history.replaceState(null, "", location.pathname);
  return ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname) ? key : "";
}

/** Signs in with the key of the link or of this tab. Returns false if there is no key. */
function begin(known) {
  const key = keyOfLink();
  if (!key && !known) return false;
  start(key).catch((error) => ask_for_key(error.message));
  return true;
}

prepare();
if (!begin(hasKey())) ask_for_key("");
