// Dead letters: messages that were never executed, and calls and tasks that failed permanently. Replay, edit and drop.

import { ask, may, withQuery } from "../api.js";
import { confirm, field, fromNow, h, reasonField, say, storyLink, table } from "../dom.js";
import { parse } from "../json.js";
import { cut, visible } from "../text.js";
import { allButton, byCause } from "./causes.js";

const NAMES = ["kind", "tenant", "agent", "tool", "cause", "error", "told", "untold", "since_s"];
const WORDS = {
  gone: "no longer exists", again: "handled before", duplicate: "submitted before", conflict: "its id belongs to another turn",
  queue_full: "the queue is full", pressure: "Redis memory is nearly full", full: "too many handled at once", needs_message: "needs another message",
  may_have_run: "may have run already", invalid: "invalid message",
};

function filters(query) {
  const value = (name) => query.get(name) ?? "";
  const option = (kind) => h("option", { value: kind, selected: kind === value("kind") }, kind || "any");
  const enter = (event) => {
    event.preventDefault();
    location.hash = `#/${withQuery("dead", Object.fromEntries(new FormData(event.target)))}`;
  };
  const input = (label, name, more) => field(label, { name, value: value(name), ...more });
  return h("form", { class: "row", "aria-label": "Dead letters", submit: enter },
    field("Kind", { name: "kind" }, ...["", "letter", "call", "task"].map(option)), input("Tenant", "tenant"), input("Agent", "agent"),
    input("Tool", "tool"), input("Cause", "cause"), input("Error contains", "error"),
    input("Error message (as listed under Errors by cause)", "told"), input("Maximum age (s)", "since_s", { type: "number", min: 1 }),
    h("label", {}, h("input", { type: "checkbox", name: "untold", value: "true", checked: value("untold") === "true" }), " No message"),
    h("label", {}, h("input", { type: "checkbox", name: "by", value: "cause", checked: value("by") === "cause" }), " By cause"), h("button", {}, "Show"));
}

/** Describes the results of an action. */
function told(done, verb) {
  const ok = done.filter((one) => one.answer === "ok").length;
  const others = new Map();
  for (const { answer, why } of done) if (answer !== "ok") others.set(why ?? WORDS[answer] ?? answer, (others.get(why ?? WORDS[answer] ?? answer) ?? 0) + 1);
  const rest = [...others].map(([why, count]) => ` ${count} not: ${why}.`).join("");
  return `${ok} of ${done.length} ${verb}.${rest}`;
}

/** Replays or drops entries by id. A field `message` replaces the message that is sent. */
async function handle(ids, { path, verb, button, text, fields = [] }, view, refresh) {
  const act = async (data) => {
    const body = { ids, reason: data.get("reason") };
    if (data.has("message")) body.message = parse(data.get("message"));
    if (data.get("may") === "yes") body.although_it_may_have_run = true;
    say(told(await ask(path, { method: "POST", body }), verb));
    view.chosen.clear();
  };
  const shown = `${ids.slice(0, 5).join(", ")}${ids.length > 5 ? ` and ${ids.length - 5} more` : ""}`;
  const title = `${button} ${ids.length === 1 ? "it" : `${ids.length} of them`}?`;
  if (await confirm({ title, text: `${shown}. ${text}`, fields: [...fields, reasonField()], button, act })) refresh();
}

const mayField = () => h("label", {}, h("input", { type: "checkbox", name: "may", value: "yes" }), " Include calls that may have taken effect");

const replayMany = (ids, view, refresh) => handle(ids, {
  path: "dead/replay", verb: "replayed", button: "Replay", fields: [mayField()],
  text: "A call becomes a new turn of its agent with a new idempotency key, under the agent's caps.",
}, view, refresh);

const dropMany = (ids, view, refresh) => handle(ids, {
  path: "dead/drop", verb: "dropped", button: "Drop", text: "Messages are deleted. Calls stay in the audit log but are no longer listed here.",
}, view, refresh);

async function edit(id, view, refresh) {
  const whole = await ask(`dead/${id}`).catch((error) => say(error.message));
  if (!whole) return;
  const area = h("textarea", { name: "message", rows: 8, required: true, spellcheck: "false" });
  // JSON with hidden characters escaped has the same meaning.
  area.value = visible(whole.message ?? "");
  const fields = [h("label", {}, "Message to send (JSON)", h("br"), area), whole.may_have_run ? mayField() : null].filter(Boolean);
  const text = whole.needs_message ? `It cannot be sent unchanged: ${whole.needs_message}.` : `New id: ${whole.becomes}.`;
  await handle([id], { path: "dead/replay", verb: "replayed", button: "Replay", text, fields }, view, refresh);
}

/** Buttons that replay or drop all matches. Returns no buttons if no filter is set. */
function allButtons(page, wanted, refresh) {
  if (!may("operate") || !Object.values(wanted).some(Boolean)) return [];
  const context = { wanted, page, told, refresh };
  return [
    allButton({ id: "replay-all", path: "dead/replay", verb: "replayed", button: "Replay all matches", text: "Calls become new turns of their agents, under their caps. Calls that may have run, or need another message, stay here." }, context),
    allButton({ id: "drop-all", path: "dead/drop", verb: "dropped", button: "Drop all matches", text: "Messages are deleted. Calls stay in the audit log but are no longer listed here." }, context),
  ];
}

function draw(page, view, wanted, refresh) {
  const { chosen } = view;
  const shown = new Set(page.dead.map((one) => one.id));
  for (const id of chosen) if (!shown.has(id)) chosen.delete(id);
  const act = (id, label, what) => h("button", { id, disabled: !chosen.size, click: () => what([...chosen], view, refresh) }, label);
  const buttons = [act("replay-chosen", "Replay selected", replayMany), act("drop-chosen", "Drop selected", dropMany)];
  const sync = () => buttons.forEach((button) => (button.disabled = !chosen.size));
  const choose = (one) => h("input", {
    type: "checkbox", id: `choose-${one.id}`, "aria-label": `Select ${one.id}`, checked: chosen.has(one.id),
    change: (event) => { if (event.target.checked) chosen.add(one.id); else chosen.delete(one.id); sync(); },
  });
  const what = (one) => (one.tool ? [`${one.tool} `, storyLink(`${one.tenant}:${one.name}`)] : one.from ? [`${one.from} ${one.name ?? ""}`] : ["task ", storyLink(`${one.tenant}:${one.name}`)]);
  const replay = (one) => (one.needs_message ? `needs a message: ${one.needs_message}` : one.may_have_run ? "may have run" : "unchanged");
  const columns = [
    ["When", (one) => fromNow(one.at_ms, page.now_ms)], ["Tenant", (one) => one.tenant], ["Agent", (one) => one.agent],
    ["What", (one) => h("span", {}, what(one))], ["Cause", (one) => one.cause],
    ["Error", (one) => h("details", { id: `told-${one.id}` }, h("summary", {}, cut(one.error ?? "", 60) || "no message"), h("pre", {}, one.error ?? ""))],
    ["Replay", replay],
  ];
  if (may("operate")) {
    columns.unshift(["Select", choose]);
    columns.push(["Edit", (one) => h("button", { id: `edit-${one.id}`, "aria-label": `Edit and replay ${one.id}`, click: () => edit(one.id, view, refresh) }, "Edit …")]);
  }
  const all = h("button", { id: "choose-all", disabled: !page.dead.length, click: () => { for (const one of page.dead) chosen.add(one.id); refresh(); } }, "Select all on this page");
  const next = page.next ? h("button", { id: "more-dead", click: () => { view.from = page.next; refresh(); } }, "Next page") : null;
  const first = view.from ? h("button", { id: "first-dead", click: () => { view.from = undefined; refresh(); } }, "From the newest") : null;
  return [
    page.dead.length ? table(`${page.dead.length} dead letters${page.next ? ", and maybe more" : ""}`, columns, page.dead) : h("p", {}, "No dead letters match."),
    h("p", { class: "soft" }, `Searched ${page.read} log entries.`),
    h("div", { class: "row" }, may("operate") ? [all, ...buttons] : null, first, next),
    h("div", { class: "row" }, allButtons(page, wanted, refresh)),
  ];
}

export const dead = {
  title: "Dead letters",
  open: (query) => {
    const view = { chosen: new Set(), still: filters(query), every_ms: 10_000 };
    const wanted = Object.fromEntries(NAMES.map((name) => [name, query.get(name)]));
    const isByCause = query.get("by") === "cause";
    view.load = () => ask(withQuery(isByCause ? "dead/causes" : "dead", { ...wanted, limit: 100, from: view.from }));
    view.draw = (page, refresh) => (isByCause ? byCause(page, view, wanted, refresh) : draw(page, view, wanted, refresh));
    return view;
  },
};
