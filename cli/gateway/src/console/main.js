// The frame of the page.

import { ask, hasKey, isExpired, key, may, signIn, signOut, whoami } from "./api.js";
import { count, megabytes, span, timeOfDay } from "./format.js";
import { Find, keys } from "./find.js";
import { isLive, live, unwatch, watch } from "./live.js";
import { render } from "./preact.js";
import { beginSignIn, completeSignIn, isElsewhere, provider, takeResponse } from "./signin.js";
import { Dialog, h, learn, lists, page, redraw, say } from "./ui.js";
import { approvals } from "./views/approvals.js";
import { audit } from "./views/audit.js";
import { config } from "./views/config.js";
import { dead } from "./views/dead.js";
import { limit, limits } from "./views/limits.js";
import { overview } from "./views/overview.js";
import { pauses } from "./views/pauses.js";
import { rules } from "./views/rules.js";
import { find } from "./views/story.js";
import { stats } from "./views/stats.js";
import { tasks } from "./views/tasks.js";
import { tool, tools } from "./views/tools.js";
import { turns } from "./views/turns.js";
import { worker, workers } from "./views/workers.js";

// A view has a title and `open(query, refresh)`, which returns `{bar, load, draw, every_ms}`. With `is_fleet`, the data
// is the snapshot of the live stream. A view with `of` has no entry in the navigation: it belongs to the view that `of`
// names.
const VIEWS = { overview, turns, tasks, approvals, dead, pauses, limits, rules, tools, workers, stats, audit, config, find, tool, worker, limit };
const NAVIGATION = Object.keys(VIEWS).filter((name) => !VIEWS[name].of);
// Views refresh even without changes in the live stream, because the snapshots do not show all changes.
const QUIET_MS = 30_000;
const GATHER_MS = 300_000;
const GATHER_AGAIN_MS = 15_000;
/** Delay (ms) before the console asks the gateway again for its identity provider, after a failed request. */
const PROVIDER_AGAIN_MS = 5000;
const root = document.getElementById("console");
const shared = new BroadcastChannel("tickfleet-console");
/**
 * `provider` is the identity provider, or `null`. `unknown` is the error of the request for the provider, if it
 * failed.
 */
const state = { view: undefined, wrong: "", isIn: false, isBusy: false, provider: null, unknown: "" };

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = Object.hasOwn(VIEWS, path) ? path : "overview";
  return { name, query: new URLSearchParams(query) };
}

async function look(view, again) {
  if (view !== state.view || !view.load) return;
  if (again && (document.hidden || page.dialog)) return;
  const asked = (view.asked = (view.asked ?? 0) + 1);
  view.looked = Date.now();
  view.isBusy = true;
  try {
    const data = await view.load();
    if (view !== state.view || asked !== view.asked) return;
    Object.assign(view, { data, at: Date.now(), wrong: "" });
  } catch (error) {
    if (view !== state.view || error.name === "AbortError") return;
    if (error.status === 401) return leave(reasonOf(error));
    if (asked === view.asked) view.wrong = error.message;
  } finally {
    if (asked === view.asked) view.isBusy = false;
  }
  redraw();
}

/** Refreshes the view if its interval has passed. The interval is longer while the live stream reports no changes. */
function lookAgain() {
  const view = state.view;
  if (view?.every_ms && !view.isBusy) {
    const isChanged = isLive() && view.changes !== live.changes;
    const wait = isLive() && !view.wrong && !isChanged ? Math.max(QUIET_MS, view.every_ms) : view.every_ms;
    if (Date.now() - (view.looked ?? 0) >= wait - 50) {
      view.changes = live.changes;
      look(view, true);
    }
  }
  redraw();
}

/** Handles a snapshot of the fleet. */
function pictured() {
  const { view } = state;
  const { fleet } = live;
  learn({ tool: fleet.tools.rows.map((row) => row.tool), outcome: fleet.tools.rows.flatMap((row) => Object.keys(row.outcomes)), limit: fleet.agents.map((one) => one.limit), tenant: fleet.agents.map((one) => one.tenant), agent: fleet.agents.map((one) => one.agent) });
  if (view?.is_fleet && !page.dialog) {
    // Ignore responses to earlier requests, because this snapshot is newer.
    view.asked = (view.asked ?? 0) + 1;
    Object.assign(view, { data: fleet, at: live.at, looked: live.at, wrong: "", isBusy: false });
  }
  lookAgain();
}

/** Refreshes the view at once, after an action. */
const refresh = () => (state.view ? look(state.view, false) : undefined);

function show(moved) {
  if (!whoami()) return;
  const { name, query } = (page.place = place());
  const view = VIEWS[name].open(query, refresh);
  Object.assign(view, { number: (state.view?.number ?? 0) + 1 });
  state.view = view;
  if (view.is_fleet && live.fleet) Object.assign(view, { data: live.fleet, at: live.at });
  document.title = `${titleOf(name, query)} · Tickfleet console`;
  redraw();
  if (moved) {
    document.getElementById("main")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  look(view, false);
}

const titleOf = (name, query) => VIEWS[name].titleOf?.(query) ?? VIEWS[name].title;

/** Collects names for the pickers: names with calls in the last days, and names of limits, caps and causes. */
async function gather() {
  const whole = !whoami().tenant;
  const found = await Promise.allSettled([
    ask("stats?by=tenant,agent,tool&days=7").then(({ rows }) => {
      for (const row of rows) learn({ tenant: [row.tenant], agent: [row.agent], tool: [row.tool], outcome: Object.keys(row.outcomes) });
    }),
    whole && ask("limits?top=100").then((found) => {
      learn({ limit: [...found.caps, ...found.limits].map((one) => one.name) });
      for (const { counter } of found.caps.flatMap((one) => one.counters)) learn({ tenant: [counter.split(":")[0]], agent: [counter.split(":")[1]] });
    }),
    ask("dead/causes?limit=100").then(({ causes }) => learn({ cause: causes.map((one) => one.cause) })),
  ]);
  redraw();
  // After a failed request, the gateway may be busy: try again soon.
  clearTimeout(state.gather);
  state.gather = setTimeout(() => whoami() && gather(), found.some(({ status }) => status === "rejected") ? GATHER_AGAIN_MS : GATHER_MS);
}

function sign() {
  const { fleet, why, at } = live;
  const nodes = (kind) => fleet.nodes.filter((node) => node.kind === kind && node.alive).length;
  const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  const memory = () => (fleet.server.max_bytes ? `Redis ${megabytes(fleet.server.used_bytes)} of ${Math.round(fleet.server.max_bytes / 1_048_576)}` : fleet.server.version ? `Redis ${megabytes(fleet.server.used_bytes)}` : `store in memory, ${megabytes(fleet.server.used_bytes)}`);
  const facts = fleet ? [plural(nodes("worker"), "worker"), plural(nodes("scheduler"), "scheduler"), memory(), `policy ${fleet.policy_generation}`] : [];
  const words = why
    ? [h("strong", {}, at ? "Not live" : "Connecting"), h("span", {}, at ? ` · last data at ${timeOfDay(at)}, ${span(Date.now() - at)} ago · ${why}` : why === "Connecting …" ? "" : ` · ${why}`)]
    : [h("strong", {}, "Live"), h("span", {}, ` as of ${timeOfDay(at)}`), h("span", { class: "facts" }, facts.map((fact) => ` · ${fact}`).join(""))];
  // CSS shows the second text after five seconds. Each snapshot replaces the element and restarts the delay, so the
  // text appears only if the page stops redrawing.
  return h("section", { "aria-label": "State of the connection", class: `sign ${why ? (at ? "lost" : "begins") : "is-live"}` },
    h("span", { class: "words" }, h("span", { class: "dot", "aria-hidden": "true" }), words),
    why ? null : h("span", { key: at, class: "dead-man", "aria-hidden": "true" }, h("span", { class: "dot" }), `Not live: this page has had no data since ${timeOfDay(at)}`),
    h("span", { class: "unseen", role: "status" }, why && at ? `Not live. ${why}` : ""));
}

function header(name) {
  const me = whoami();
  const role = ["operate", "approve", "view"].filter(may).join(", ");
  return h("header", {},
    h("p", { class: "name" }, h("a", { href: "#/overview" }, "Tickfleet")),
    me ? h(Find, { key: "find", place: page.place, views: NAVIGATION.map((one) => ({ name: one, title: VIEWS[one].title })), refresh, theme, leave, help }) : null,
    me ? h("p", { id: "me", title: "Key, tenants and permissions" }, `${me.id} · ${me.tenant ?? "all tenants"} · ${role}`) : h("p", { id: "me" }),
    h("div", { class: "tools" },
      me ? h("button", { type: "button", class: "help", onClick: help, title: "Keyboard shortcuts (?)" }, "Help") : null,
      h("button", { type: "button", id: "theme", onClick: theme }, "Light or dark"),
      me ? h("button", { type: "button", id: "sign-out", onClick: () => leave("") }, "Sign out") : null));
}

function navigation(name) {
  const badge = { approvals: live.fleet?.findings?.find((one) => one.kind === "approvals_wait")?.count };
  const own = VIEWS[name].of ?? name;
  return h("nav", { "aria-label": "Views" }, h("ul", { id: "views" }, NAVIGATION.map((one) => h("li", { key: one },
    h("a", { href: `#/${one}`, "aria-current": one === own ? "page" : undefined }, VIEWS[one].title, badge[one] ? h("span", { class: "badge", "aria-hidden": "true" }, count(badge[one])) : null)))));
}

function content(view, name, query) {
  const late = view.isBusy && Date.now() - view.looked > 2000 ? `Waiting for the gateway for ${Math.round((Date.now() - view.looked) / 1000)} s …` : "";
  const body = view.data !== undefined ? view.draw(view.data, refresh) : view.wrong ? null : h("p", { class: "soft loading" }, "Loading …");
  return h("main", { id: "main", tabindex: -1, key: view.number, class: live.why && live.at ? "old" : undefined },
    h("div", { class: view.is_fleet || VIEWS[name].of ? "title unseen" : "title" }, h("h1", {}, titleOf(name, query)),
      h("span", { class: "soft" }, late || (view.at && !view.is_fleet ? `as of ${timeOfDay(view.at)}` : ""))),
    view.wrong ? h("p", { class: "banner bad", role: "alert" }, view.data === undefined ? view.wrong : `Shown: data of ${timeOfDay(view.at)}. ${view.wrong}`) : null,
    view.bar?.(), h("div", { class: "view" }, body));
}

const status = () => h("div", { id: "said", class: page.said ? undefined : "empty" }, h("p", { role: "status", "aria-live": "polite" }, page.said?.text ?? ""),
  page.said?.undo ? h("button", { type: "button", onClick: page.said.undo.run }, page.said.undo.label) : null,
  page.said ? h("button", { type: "button", class: "icon", "aria-label": "Close the message", onClick: () => say("") }, "×") : null);

/** Runs a step of a sign-in. If the step fails, the form shows the error. */
async function tried(step) {
  Object.assign(state, { isBusy: true, wrong: "" });
  redraw();
  await step().catch((error) => { state.wrong = error.message; });
  state.isBusy = false;
  redraw();
}

/** Returns the part of the sign-in form for the identity provider. */
function providerChoice() {
  if (state.unknown) return h("p", { class: "soft", role: "status" }, `Sign-in at the identity provider is not available: ${state.unknown}`);
  if (!state.provider) return null;
  const { host } = new URL(state.provider.issuer);
  // The provider returns the browser only to `redirect_uri`. A sign-in that begins at another address would be lost.
  if (isElsewhere(state.provider)) return h("p", {}, `To sign in at ${host}, open `, h("a", { href: state.provider.redirect_uri }, state.provider.redirect_uri), ".");
  return h("p", {}, h("button", { type: "button", class: "act", disabled: state.isBusy, onClick: () => tried(() => beginSignIn(state.provider)) }, `Sign in at ${host}`));
}

function signInForm() {
  const enter = (event) => {
    event.preventDefault();
    const given = new FormData(event.target).get("key");
    tried(() => start(given).then(share));
  };
  const choice = providerChoice();
  return h("main", { id: "main", tabindex: -1 }, h("form", { class: "sign-in card", onSubmit: enter },
    h("h1", {}, "Sign in"), choice, h("label", { for: "key" }, choice ? "Or with an API key or token" : "API key or token"), h("input", { id: "key", name: "key", type: "password", autocomplete: "off", required: true, autofocus: true }),
    h("p", { class: "bad", role: "alert" }, state.wrong), state.isBusy ? h("p", { class: "soft", role: "status" }, "Signing in …") : null, h("button", { class: choice ? undefined : "act", disabled: state.isBusy }, "Sign in"),
    h("p", { class: "soft" }, "tickfleet gateway key --id anna --tenant '*' --role operator creates one. Only the tabs of this browser session keep it.")));
}

function draw() {
  const { name, query } = page.place;
  const skip = (event) => { event.preventDefault(); document.getElementById("main").focus(); };
  const inside = state.isIn && state.view
    ? [header(name), navigation(name), sign(), content(state.view, name, query), status(), page.dialog ? h(Dialog, { key: page.dialog.number, given: page.dialog }) : null, lists()]
    : [header(""), signInForm(), status()];
  render(h("div", { class: "frame" }, h("a", { class: "skip", href: "#main", onClick: skip }, "Skip to the content"), inside), root);
}

let planned = false;
page.redraw = () => {
  if (planned) return;
  planned = true;
  queueMicrotask(() => { planned = false; draw(); });
};

function help() {
  const rows = [["Ctrl K", "find anything: views, turns, tasks, approvals, tools, limits, actions"], ["/", "first field of the filter"], ["j, k", "next and previous row"], ["x", "select the row"], ["Enter", "open the row"], ["r", "load again"], ["g then o, t, a, d", "overview, turns, approvals, dead letters"], ["?", "this help"], ["Esc", "close"]];
  page.dialog = { number: `help-${Date.now()}`, title: "Keyboard shortcuts", done() {}, fields: h("dl", { class: "keys" }, rows.map(([name, what]) => h("div", { key: name }, h("dt", {}, name.split(" then ")[0] === name ? h("kbd", {}, name) : name.split(" then ").map((one, at) => [at ? " then " : "", h("kbd", {}, one)])), h("dd", {}, what)))) };
  redraw();
}

const reasonOf = (error) => (isExpired() ? "Your session has expired. Sign in again." : error.message);

/** Asks the gateway for its identity provider, while the sign-in form is shown. */
async function learnProvider() {
  clearTimeout(state.ask);
  await provider().then((found) => Object.assign(state, { provider: found, unknown: "" }), (error) => Object.assign(state, { provider: null, unknown: error.message }));
  if (state.isIn) return;
  if (state.unknown) state.ask = setTimeout(learnProvider, PROVIDER_AGAIN_MS);
  redraw();
}

function leave(why, isOthers) {
  if (!isOthers) shared.postMessage({ kind: "sign-out", why });
  unwatch();
  signOut();
  clearTimeout(state.gather);
  Object.assign(state, { view: undefined, isIn: false, wrong: why });
  page.dialog = null;
  document.title = "Sign in · Tickfleet console";
  say("");
  redraw();
  learnProvider();
}

async function start(given) {
  await signIn(given);
  clearTimeout(state.ask);
  Object.assign(state, { isIn: true, wrong: "" });
  watch({ fleet: pictured, changed: lookAgain, refused: (error) => leave(reasonOf(error), true) });
  show(true);
  gather();
}

/** Gives the key to the other tabs of this browser session, so that they sign in as well. */
const share = () => shared.postMessage({ kind: "key", key: key() });

/** Tabs of the same session share the key, without storing it outside the tabs. */
shared.onmessage = ({ data }) => {
  if (data.kind === "who" && whoami()) share();
  else if (data.kind === "key" && !state.isIn && !hasKey()) start(data.key).catch((error) => { state.wrong = error.message; redraw(); });
  // During its sign-in, a tab has a key although `isIn` is still false. It must leave, too.
  else if (data.kind === "sign-out" && (state.isIn || hasKey())) leave(data.why || "Signed out in another tab.", true);
};

function theme() {
  const element = document.documentElement;
  const isDark = element.dataset.theme ? element.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  element.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("tickfleet-theme", element.dataset.theme);
}

/**
 * Returns the key in a link that a program on this machine printed. If the console runs on another host, ignores the
 * key, because anyone could send such a link.
 */
function keyOfLink() {
  const found = /^#key=([\w-]+)$/.exec(location.hash)?.[1];
  if (!found) return "";
  history.replaceState(null, "", location.pathname);
  return ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname) ? found : "";
}

/** Signs in with the key of the link or of this tab. Returns false if there is no key. */
function begin(isKnown) {
  const found = keyOfLink();
  if (!found && !isKnown) return false;
  start(found).catch((error) => {
    state.wrong = error.message;
    redraw();
    learnProvider();
  });
  return true;
}

/** Completes a sign-in at the identity provider, and shows the view where it began. */
const complete = (response) => tried(async () => {
  await start(await completeSignIn(response));
  share();
});

const known = localStorage.getItem("tickfleet-theme");
if (known === "light" || known === "dark") document.documentElement.dataset.theme = known;
const response = takeResponse();
page.place = place();
addEventListener("hashchange", () => begin() || show(true));
keys({ help, refresh });
document.title = "Sign in · Tickfleet console";
// A response that does not belong to this tab must not end a session.
if (response && (response.begun || !hasKey())) {
  learnProvider();
  complete(response);
} else if (!begin(hasKey())) {
  redraw();
  learnProvider();
  shared.postMessage({ kind: "who" });
}
