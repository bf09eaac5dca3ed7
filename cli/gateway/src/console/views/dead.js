// Dead letters: messages that were never executed, and calls and tasks that failed permanently.

import { act, ask, may, now, withQuery } from "../api.js";
import { operate } from "../actions.js";
import { count, range } from "../format.js";
import { parse } from "../json.js";
import { cut, visible } from "../text.js";
import { AGENT, FROM, TENANT, TOOL, UNTIL, age, button, card, chip, copy, empty, field, filters, h, learn, link, pager, say, storyLink, table } from "../ui.js";

const NAMES = ["kind", "tenant", "agent", "tool", "cause", "error", "normalized_error", "without_error"];
const FIELDS = [
  { name: "kind", label: "Kind", options: ["", "letter", "call", "task"] }, TENANT, AGENT, TOOL, { name: "cause", label: "Cause", list: "cause" },
  { name: "error", label: "Error contains", help: "503", wide: true }, FROM, UNTIL,
];
const PAGE = 100;
/**
 * Results that mean a lack of space: all further entries would fail in the same way. `tickfleet dead` has the same
 * list.
 */
const NO_ROOM = ["queue_full", "pressure", "full"];
/** Returns the query that selects the entries of the filter at the gateway. */
function wantedOf(query) {
  const { from, until } = range(query, now());
  const wanted = Object.fromEntries(NAMES.map((name) => [name, query.get(name)]));
  return { ...wanted, from_ms: from, before_ms: until };
}

/** Describes the results of an action. */
function summary(done, verb) {
  const ok = done.filter((one) => one.result === "ok").length;
  const others = new Map();
  for (const { result, reason } of done) if (result !== "ok") others.set(reason, (others.get(reason) ?? 0) + 1);
  return `${ok} of ${done.length} ${verb}.${[...others].map(([why, number]) => ` ${number} not: ${why}.`).join("")}`;
}

const DONE = { "dead/replay": "replayed", "dead/drop": "dropped" };

/** Replays or drops entries by id. A field `message` replaces the message that is sent. */
function handle(verb, ids, fields, view, refresh) {
  const run = async (data) => {
    const body = { ids, reason: data.get("reason") };
    if (data.has("message")) body.message = parse(data.get("message"));
    if (data.get("may") === "yes") body.allow_duplicate_effects = true;
    say(summary(await act(verb, body), DONE[verb]));
    view.chosen?.clear();
  };
  const shown = `${ids.slice(0, 5).join(", ")}${ids.length > 5 ? ` and ${ids.length - 5} more` : ""}.`;
  return operate(verb, ids.length === 1 ? "it" : `${ids.length} of them`, { note: shown, fields, act: run, refresh });
}

const mayField = () => h("label", { class: "check" }, h("input", { type: "checkbox", name: "may", value: "yes" }), " Include calls that may have taken effect");

const replayMany = (ids, view, refresh) => handle("dead/replay", ids, mayField(), view, refresh);

const dropMany = (ids, view, refresh) => handle("dead/drop", ids, [], view, refresh);

async function edit(id, view, refresh) {
  const whole = await ask(`dead/${id}`).catch((error) => void say(error.message));
  if (!whole) return;
  // The field shows hidden characters as JSON escapes, which do not change the meaning.
  const area = h("label", {}, h("span", {}, "Message to send (JSON)"), h("textarea", { name: "message", rows: 8, required: true, spellcheck: false, defaultValue: visible(whole.message ?? "") }));
  const note = whole.needs_message ? `It cannot be sent unchanged: ${whole.needs_message}.` : `New id: ${whole.becomes}.`;
  await handle("dead/replay", [id], [h("p", {}, note), area, whole.may_have_run ? mayField() : null], view, refresh);
}

/**
 * Requests all pages of a list, and calls `handlePage` for each. Returns the reason if the loop ended early, otherwise
 * an empty text.
 */
async function each(wanted, before_ms, signal, handlePage) {
  let from;
  do {
    const page = await ask(withQuery("dead", { ...wanted, before_ms, limit: PAGE, from }));
    if (signal.aborted) return " Stopped: the rest is unchanged.";
    const answers = page.items.length ? await handlePage(page.items.map((one) => one.id)) : [];
    from = page.next;
    if (from && answers.some(({ result }) => NO_ROOM.includes(result))) return " It stopped there: replay the rest later.";
  } while (from);
  return "";
}

/** Replays or drops all matches of a filter, after a preview with the number of matches per cause. */
async function onAll(verb, wanted, refresh) {
  const preview = await ask(withQuery("dead/causes", { ...wanted, limit: 100 })).catch((error) => void say(error.message));
  if (!preview) return;
  let handled = 0;
  const run = async (data, { signal, show }) => {
    const done = [];
    const page = async (ids) => {
      const answers = await act(verb, { ids, reason: data.get("reason") });
      done.push(...answers);
      handled += answers.length;
      show(`${done.length} so far …`);
      return answers;
    };
    try {
      // Without this bound, entries that fail again during the loop would be replayed endlessly.
      const why = await each(wanted, Math.min(wanted.before_ms ?? Infinity, preview.now_ms + 1), signal, page);
      say(`${summary(done, DONE[verb])}${why}`);
    } catch (error) {
      // Earlier pages are handled: report them with the error.
      throw done.length ? new Error(`${summary(done, DONE[verb])} Then: ${error.message}`, { cause: error }) : error;
    }
  };
  const all = preview.causes.reduce((sum, cause) => sum + cause.count, 0);
  const as = preview.causes.reduce((sum, cause) => sum + cause.replayable, 0);
  const list = h("ul", { class: "sample" }, preview.causes.slice(0, 6).map((cause) => h("li", { key: cause.example }, `${count(cause.count)} ${cause.tool ?? cause.kind} ${cause.cause}${cause.normalized_error ? `: ${cut(cause.normalized_error, 90)}` : ""}`)));
  const shown = `${count(all)} ${all === 1 ? "match" : "matches"}${preview.next || preview.others ? ", and maybe more" : ""}; ${count(as)} can be replayed unchanged.`;
  const label = verb === "dead/replay" ? "Replay all matches" : "Drop all matches";
  const isDone = await operate(verb, "all matches", { note: shown, fields: list, button: label, stop: "Stop after this page", act: run, refresh });
  if (!isDone && handled) refresh();
}

/**
 * Returns the filter that lists the entries of a cause. `without_error` is not set for dead letters, which never have
 * an error message.
 */
const ofCause = (cause) => ({ kind: cause.kind, cause: cause.cause, tool: cause.tool, normalized_error: cause.normalized_error, without_error: cause.normalized_error || cause.kind === "letter" ? undefined : "true" });

/** Draws the causes within a filter, each with a link to its entries and a button that replays them. */
export function causes(found, query, refresh, caption) {
  const inLink = Object.fromEntries(["from", "until", "tenant", "agent"].map((name) => [name, query.get(name)]));
  const columns = [
    { name: "Count", number: true, value: (cause) => cause.count, cell: (cause) => count(cause.count) },
    { name: "Cause", value: (cause) => cause.cause, cell: (cause) => h("span", { class: "nowrap" }, link("dead", { ...inLink, ...ofCause(cause) }, cause.cause)) },
    { name: "Kind", value: (cause) => cause.kind },
    { name: "Tool", value: (cause) => cause.tool, cell: (cause) => (cause.tool ? link("tool", { name: cause.tool }, cause.tool) : "") },
    { name: "Error", class: "long", value: (cause) => cause.normalized_error },
    { name: "Newest", number: true, value: (cause) => cause.newest_ms, cell: (cause) => age(cause.newest_ms, found.now_ms) },
    { name: "Oldest", number: true, value: (cause) => cause.oldest_ms, cell: (cause) => age(cause.oldest_ms, found.now_ms) },
    { name: "Replayable", number: true, value: (cause) => cause.replayable, cell: (cause) => count(cause.replayable) },
    { name: "Tenants", value: (cause) => cause.tenants.join(", ") },
  ];
  if (may("operate")) columns.push({ name: "Action", cell: (cause) => button("Replay …", () => onAll("dead/replay", { ...wantedOf(query), ...ofCause(cause) }, refresh), { class: "quiet", disabled: !cause.replayable, "aria-label": `Replay all ${cause.cause} of ${cause.tool ?? cause.kind}` }) });
  return table({ caption: caption ?? `${count(found.causes.length)} causes${found.next ? " in the newest part of the log" : ""}`, columns, rows: found.causes, key: (cause) => cause.example, plain: true });
}

function list(found, view, query, refresh) {
  const { chosen } = view;
  const shown = new Set(found.items.map((one) => one.id));
  for (const id of chosen) if (!shown.has(id)) chosen.delete(id);
  const what = (one) => (one.tool ? [link("tool", { name: one.tool }, one.tool), " ", storyLink(`${one.tenant}:${one.name}`, one.name)] : one.from ? `${one.from} ${one.name ?? ""}` : ["task ", storyLink(`${one.tenant}:${one.name}`, one.name)]);
  const replay = (one) => (one.needs_message ? chip("doubt", "needs a message") : one.may_have_run ? chip("bad", "may have run") : chip("", "unchanged"));
  const columns = [
    { name: "When", value: (one) => one.at_ms, cell: (one) => age(one.at_ms, found.now_ms), number: true }, { name: "Tenant", value: (one) => one.tenant }, { name: "Agent", value: (one) => one.agent },
    { name: "What", value: (one) => `${one.tool ?? one.from ?? "task"} ${one.name ?? ""}`, cell: (one) => h("span", {}, what(one), copy(one.id)) },
    { name: "Cause", value: (one) => one.cause, cell: (one) => chip("bad", one.cause) },
    { name: "Error", class: "long", value: (one) => one.error, cell: (one) => h("details", {}, h("summary", {}, cut(one.error ?? "", 60) || "no message"), h("pre", {}, one.error ?? "")) },
    { name: "Replay", value: (one) => one.needs_message ?? (one.may_have_run ? "may have run" : "unchanged"), cell: replay },
  ];
  if (may("operate")) columns.push({ name: "Action", cell: (one) => button("Edit …", () => edit(one.id, view, refresh), { class: "quiet", "aria-label": `Edit and replay ${one.id}` }) });
  const some = (label, run) => button(chosen.size ? `${label} (${chosen.size}) …` : `${label} …`, () => run([...chosen], view, refresh), { disabled: !chosen.size });
  const wanted = wantedOf(query);
  const isSet = Object.values(wanted).some(Boolean);
  return [
    may("operate") ? h("div", { class: "row actions" }, some("Replay selected", replayMany), some("Drop selected", dropMany),
      isSet ? [button("Replay all matches …", () => onAll("dead/replay", wanted, refresh), { disabled: !found.items.length }), button("Drop all matches …", () => onAll("dead/drop", wanted, refresh), { disabled: !found.items.length })]
        : h("span", { class: "soft" }, "Set a filter to act on all matches.")) : null,
    found.items.length ? table({ caption: `${count(found.items.length)} dead letters${found.next ? ", and maybe more" : ""}`, columns, rows: found.items, key: (one) => one.id, chosen: may("operate") ? chosen : undefined, csv: true })
      : empty("No dead letters match.", isSet ? "" : "good"),
    pager(view, found.next, refresh),
  ];
}

export const dead = {
  title: "Dead letters",
  open: (query, refresh) => {
    const view = { chosen: new Set(), every_ms: 8000 };
    const isOneCause = query.get("normalized_error") || query.get("without_error");
    view.bar = () => [
      filters("dead", query, FIELDS),
      isOneCause ? h("p", { class: "soft" }, query.get("normalized_error") ? `Only the error: ${query.get("normalized_error")} ` : "Only without an error message. ", link("dead", { ...Object.fromEntries(query), normalized_error: "", without_error: "" }, "All errors")) : null,
    ];
    view.load = async () => {
      const wanted = wantedOf(query);
      const [page, by] = await Promise.all([
        ask(withQuery("dead", { ...wanted, limit: 100, from: view.from })),
        isOneCause || view.from ? undefined : ask(withQuery("dead/causes", { ...wanted, limit: 12 })),
      ]);
      learn({ cause: page.items.map((one) => one.cause), tenant: page.items.map((one) => one.tenant), agent: page.items.map((one) => one.agent), tool: page.items.map((one) => one.tool) });
      return { page, by };
    };
    view.draw = ({ page, by }) => [by?.causes.length ? causes(by, query, refresh) : null, list(page, view, query, refresh), by?.others ? card("More causes", empty(`${count(by.others)} more entries have other causes: narrow the filter.`)) : null];
    return view;
  },
};
