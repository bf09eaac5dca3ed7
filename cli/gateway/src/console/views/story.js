import { ask, may, now, withQuery } from "../api.js";
import { cancel } from "../actions.js";
import { waterfall } from "../charts.js";
import { count, fromNow, moodOf, money, span, workerOf } from "../format.js";
import { parse, write } from "../json.js";
import { cut } from "../text.js";
import { card, chip, copy, empty, h, link, outcome, storyLink, table, time } from "../ui.js";
import { approvalCard } from "./approvals.js";
import { auditTable } from "./audit.js";
import { taskState } from "./tasks.js";

const isApproval = (id) => /^(?:[^:]+:)?apr-/.test(id);
// A line that begins with a time is a step. Other lines describe the state.
const STEP = /^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) UTC {2}(.*)$/s;
const OVER = ["done", "rejected", "record_expired"];
const WORDS = { inbound: "not read yet", throttled: "waits for a cap or limit", ready: "ready", running: "running", retry: "waits for the next try", ending: "ends", rejected: "rejected", record_expired: "ended long ago" };

const BLOCKS = "application/vnd.tickfleet.content+json";
const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/** Shows the texts and images of content blocks, and any other output as JSON. */
function shownOutput({ tool, output, content_type: type }) {
  if (type !== BLOCKS || !Array.isArray(output)) return h("pre", {}, cut(formatted(output), 1200));
  return output.map((block) => (IMAGES.includes(block.mimeType)
    ? h("img", { src: `data:${block.mimeType};base64,${block.data}`, alt: `Image from ${tool}` })
    : h("pre", {}, cut(String(block.text), 1200))));
}

/** Shows the state of a turn or task. A finished turn is shown as good only if every call succeeded. */
function stateOf(story) {
  const failed = story.results.filter((result) => !result.success);
  if (story.is_task && story.task?.outcome) return outcome(story.task.outcome);
  if (story.state === "done") {
    if (!failed.length) return chip("good", "done");
    return chip(failed.some((result) => moodOf(result.outcome) === "bad") ? "bad" : "doubt", failed.length === story.results.length ? "ended without success" : `ended, ${failed.length} of ${story.results.length} calls without success`);
  }
  return chip(story.state === "running" ? "info" : story.state === "rejected" ? "bad" : story.state === "record_expired" ? "" : "doubt", story.waits?.rule === "approval" ? "waits for approval" : WORDS[story.state] ?? story.state);
}

function step(line, at) {
  const [, when, text] = STEP.exec(line) ?? [];
  return h("li", { key: at }, when ? [time(Date.parse(`${when.replace(" ", "T")}Z`)), h("span", {}, text)] : h("span", {}, line));
}

/** Formats JSON as text, with line breaks if it is long. */
const formatted = (value) => { const short = write(value ?? null); return short.length > 60 ? write(value, 2) : short; };

/** Formats a text as JSON if it contains JSON. Returns any other text unchanged. */
function pretty(text) {
  try {
    return formatted(parse(text));
  } catch {
    return text ?? "";
  }
}

/** Returns the audit entry of a call of this turn. */
const entryOf = (story, call) => story.audit.entries.find((entry) => entry.meta?.call === call && entry.action === "TOOL_CALL");
const positionOf = (call) => Number(call.split("/").at(-1));

function results(story) {
  return table({ caption: "Calls", plain: true, rows: story.results, key: (result) => result.call, columns: [
    { name: "Call", number: true, cell: (result) => `/${positionOf(result.call)}` },
    { name: "Tool", cell: (result) => link("tool", { name: result.tool }, result.tool) },
    { name: "Outcome", cell: (result) => h("span", { class: "nowrap" }, outcome(result.outcome), result.cached ? " cached" : "", result.approval ? ` approved by ${result.approval.by.join(", ")}` : "") },
    { name: "Tries", number: true, cell: (result) => count(result.attempts) }, { name: "Took", number: true, cell: (result) => span(result.duration_ms ?? 0) },
    { name: "Arguments", class: "json", cell: (result) => { const entry = entryOf(story, result.call); const given = result.approval?.arguments ?? entry?.meta.arguments; return given ? h("pre", {}, formatted(given)) : ""; } },
    { name: "Output or error", class: "json", cell: (result) => (result.error ? h("p", { class: moodOf(result.outcome) }, result.error.message) : shownOutput(result)) },
  ] });
}

/** Draws the steps over time: waits, tries, approvals and calls. */
function overTime(story) {
  const from = story.accepted_ms;
  if (!from) return null;
  const ends = story.audit.entries.map((entry) => Date.parse(entry.timestamp ?? "")).filter((at) => at >= from);
  const until = Math.max(story.ended_ms ?? 0, ...(OVER.includes(story.state) ? ends : [story.now_ms]), from + 1);
  const rows = [];
  const whole = [];
  const first = story.admissions[0]?.at_ms;
  if (first > from) whole.push({ from, until: first, kind: "wait", text: `waited ${span(first - from)} for admission` });
  for (const one of story.admissions) whole.push({ from: one.at_ms, kind: "admitted", text: `admitted ${one.calls} calls: tick ${one.tick_used} of ${one.tick_cap}, day ${one.day_used} of ${one.day_cap}` });
  const done = Math.max(from, first ?? from, ...ends);
  const waits = story.waits;
  if (waits && !waits.approval) whole.push({ from: done, until: story.now_ms, kind: "wait", text: waits.limit ? `waits for ${waits.limit.name}` : `waits: ${waits.rule}` });
  rows.push({ name: story.is_task ? "task" : "turn", parts: whole, text: waits && !waits.approval ? `waits for ${waits.limit?.name ?? waits.rule}` : span(until - from) });
  const calls = new Map();
  const call = (position, tool) => {
    if (!calls.has(position)) calls.set(position, { name: `/${position} ${tool ?? ""}`, parts: [], text: "" });
    return calls.get(position);
  };
  for (const result of story.results) {
    const row = call(positionOf(result.call), result.tool);
    const entry = entryOf(story, result.call);
    const end = entry ? Date.parse(entry.timestamp) : undefined;
    row.text = `${result.outcome}, ${span(result.duration_ms ?? 0)}`;
    if (end) row.parts.push({ from: Math.max(from, end - (result.duration_ms ?? 0)), until: end, kind: moodOf(result.outcome), text: `${result.outcome} after ${span(result.duration_ms ?? 0)}` });
  }
  for (const one of story.tries ?? []) {
    const row = call(one.position, "");
    row.parts.unshift({ from: one.at_ms, until: one.at_ms + one.delay_ms, kind: "wait", text: `try ${one.attempt} failed (${one.cause}); next after ${span(one.delay_ms)}` }, { from: one.at_ms, kind: "bad", text: `try ${one.attempt}: ${one.cause}` });
    row.text ||= `try ${one.attempt} failed`;
  }
  for (const one of story.breaker_waits ?? []) call(one.position, "").parts.unshift({ from: one.at_ms, until: Math.min(one.until_ms, story.now_ms), kind: "wait", text: `circuit breaker: ${one.why}` });
  if (story.running) Object.assign(call(story.running.position, story.running.tool), { text: `runs for ${span(story.running.held_ms)}` }).parts.push({ from: story.now_ms - (story.running.held_ms ?? 0), until: story.now_ms, kind: "info", text: `runs for ${span(story.running.held_ms)}` });
  const approval = waits?.approval;
  if (approval) Object.assign(call(positionOf(approval.call), approval.tool), { text: "waits for approval" }).parts.push({ from: approval.requested_ms, until: story.now_ms, kind: "approval", text: `waits for approval ${approval.id}` });
  rows.push(...[...calls].sort(([one], [other]) => one - other).map(([, row]) => row));
  for (const inner of story.inner_calls ?? []) rows.push({ name: `↳ ${inner.tool ?? inner.id}`, parts: [], text: `${inner.outcome ?? "runs"}${inner.duration_ms === undefined ? "" : `, ${span(inner.duration_ms)}`}` });
  return h("section", { class: "card", "aria-label": "Over time" }, h("div", { class: "head" }, h("h2", {}, "Over time"),
    h("span", { class: "legend" }, [["wait", "waits"], ["approval", "approval"], ["info", "runs"], ["good", "ok"], ["bad", "failed"], ["doubt", "refused"]].map(([kind, text]) => h("span", { key: kind }, h("i", { class: kind }), ` ${text}`)))),
  waterfall({ rows, from, until, label: "Steps over time" }));
}

const isFailed = (task) => Boolean(task.outcome && task.outcome !== "ok");
const children = (task) => task.children ?? [];
/** Returns the number of failed tasks below a task. */
const failedBelow = (task) => children(task).reduce((sum, child) => sum + isFailed(child) + failedBelow(child), 0);

function branch(task, nowMs) {
  const below = failedBelow(task);
  const isLeaf = isFailed(task) && !below;
  const end = task.ended_ms ?? (task.accepted_ms ? nowMs : undefined);
  const rounds = (task.rounds ?? []).map((round) => h("li", { key: round.number, class: "round" },
    h("span", { class: "soft" }, `Step ${round.number}, ${round.model}: `), round.text ? cut(round.text, 300) : "",
    round.calls.length ? h("ul", {}, round.calls.map((one, at) => h("li", { key: at }, h("details", {},
      h("summary", {}, chip(one.ok === undefined ? "" : one.ok && !/"outcome":"(?!ok")\w+"/.test(one.content ?? "") ? "good" : one.ok ? "doubt" : "bad", one.ok === undefined ? "runs" : one.ok ? (/"outcome":"(?!ok")\w+"/.test(one.content ?? "") ? "answered a failure" : "ok") : "failed"), ` ${one.tool} `, h("code", {}, cut(one.arguments, 90))),
      h("pre", {}, pretty(one.arguments)), one.content ? h("pre", {}, pretty(one.content)) : null)))) : null,
    (round.notes ?? []).map((note) => h("p", { key: note, class: "doubt" }, note))));
  return h("li", { key: task.id, class: isLeaf ? "branch failing" : "branch" },
    h("div", { class: "head" }, taskState(task), h("strong", {}, task.agent ?? ""), storyLink(`${task.tenant}:${task.id}`, task.id), end && task.accepted_ms ? h("span", { class: "soft" }, span(end - task.accepted_ms)) : null,
      below ? chip("bad", `${below} ${below === 1 ? "failure" : "failures"} below`) : null, isLeaf ? chip("bad", "failed here") : null),
    task.error ? h("p", { class: "bad" }, task.error) : null,
    task.cancelled ? h("p", { class: "doubt" }, `Canceled: ${task.cancelled}`) : null,
    rounds.length ? h("ol", { class: "rounds" }, rounds) : null,
    children(task).length ? h("ul", { class: "tree" }, children(task).map((child) => branch(child, nowMs))) : null);
}

function tree(story) {
  const cost = (task) => (task.rounds ?? []).reduce((sum, round) => sum + round.cost_micros, 0) + children(task).reduce((sum, child) => sum + cost(child), 0);
  const micros = cost(story.task);
  return h("section", { class: "card", "aria-label": "Tree of tasks" }, h("div", { class: "head" }, h("h2", {}, "Tree of tasks"), micros ? h("span", { class: "soft" }, `models cost ${money(micros / 1_000_000)}`) : null),
    h("ul", { class: "tree root" }, branch(story.task, story.now_ms)));
}

/** Explains why the turn waits, with links to act on the cause. Returns null if the turn does not wait. */
function why(story, lines) {
  // For an approval, the card of the approval already explains the wait.
  if (OVER.includes(story.state) || story.waits?.approval) return null;
  const found = lines.filter((line) => line.startsWith("It waits:"));
  if (!found.length) return null;
  const limit = story.waits?.limit;
  const until = story.waits?.until_ms;
  return h("section", { class: "banner doubt", "aria-label": "Why it waits" }, h("strong", {}, "Why it waits"),
    found.map((line) => h("p", { key: line }, line.replace(/^It waits: (.)/, (_, first) => first.toUpperCase()))),
    h("p", {}, limit ? [link("limit", { name: limit.name }, `Limit ${limit.name}`), " · "] : null, until ? ["next check ", time(until), `, ${fromNow(until, story.now_ms)}`] : null));
}

function draw({ story, lines }, refresh) {
  const id = `${story.tenant}:${story.id}`;
  const isOver = OVER.includes(story.state);
  const kind = story.is_task ? "task" : "turn";
  const facts = [["Tenant", link("turns", { tenant: story.tenant }, story.tenant)], ["Agent", story.agent ? link("turns", { tenant: story.tenant, agent: story.agent }, story.agent) : ""]];
  if (story.delegator) facts.push(["Delegated by", story.delegator]);
  facts.push(["Accepted", time(story.accepted_ms)]);
  if (story.ended_ms) facts.push(["Ended", h("span", {}, time(story.ended_ms), ` after ${span(story.ended_ms - story.accepted_ms)}`)]);
  else if (story.deadline_ms) facts.push(["Expires", h("span", {}, time(story.deadline_ms), ` ${fromNow(story.deadline_ms, story.now_ms)}`)]);
  facts.push(["Calls", `${story.calls_done} of ${story.calls} done`]);
  if (story.holder) facts.push(["Worker", link("worker", { name: workerOf(story.holder) }, workerOf(story.holder))]);
  if (story.retries || story.crashes) facts.push(["Retries", `${story.retries}${story.crashes ? `, ${story.crashes} crashes` : ""}`]);
  return [
    h("section", { class: "card", "aria-label": id },
      h("div", { class: "head" }, h("h2", {}, h("span", { class: "soft" }, story.is_task ? "Task " : "Turn "), h("strong", {}, id)), copy(id), stateOf(story), story.task && failedBelow(story.task) ? chip("bad", "a task below failed") : null, h("span", { class: "grow" }),
        !isOver && may("operate") ? h("button", { type: "button", onClick: () => cancel([id], kind, refresh) }, `Cancel this ${kind} …`) : null),
      story.description ? h("p", {}, story.description) : null,
      story.refusal ? h("p", { class: "bad" }, story.refusal) : null,
      story.cancel_asked ? h("p", { class: "doubt" }, `Cancellation requested: ${story.cancel_asked}`) : null,
      h("dl", { class: "facts" }, facts.map(([term, value]) => h("div", { key: term }, h("dt", {}, term), h("dd", {}, value))))),
    why(story, lines),
    story.waits?.approval ? approvalCard(story.waits.approval, story.now_ms, refresh) : null,
    story.task ? tree(story) : null,
    overTime(story),
    story.results.length ? results(story) : null,
    h("details", { class: "card", open: !story.results.length }, h("summary", {}, "All steps"), h("ol", { class: "timeline" }, lines.map(step))),
    story.audit.entries.length ? auditTable(story.audit.entries.map((audit, at) => ({ shard: 0, id: at, audit })), `${count(story.audit.entries.length)} audit ${story.audit.entries.length === 1 ? "entry" : "entries"}${story.audit.complete ? "" : ", and maybe more"}`, { plain: true }) : card("Audit", empty("No audit entries yet.")),
  ];
}

export const find = {
  title: "Find",
  of: "turns",
  titleOf: (query) => query.get("id") ?? "Find",
  open: (query, refresh) => {
    const id = (query.get("id") ?? "").trim();
    if (!id) return { load: async () => null, draw: () => empty("Press Ctrl K, and enter the id of a turn, task or approval.") };
    if (isApproval(id)) return { every_ms: 4000, load: () => ask(`approvals/${encodeURIComponent(id)}`), draw: (approval) => approvalCard(approval, now(), refresh) };
    return { every_ms: 2500, load: () => ask(withQuery("explain", { id })), draw: (found) => draw(found, refresh) };
  },
};
