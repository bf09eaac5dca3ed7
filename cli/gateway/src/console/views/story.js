// One turn, task or approval: its history, what it waits for, and its actions.

import { ask, may, withQuery } from "../api.js";
import { clock, confirm, h, reasonField, say, table } from "../dom.js";
import { write } from "../json.js";
import { cut } from "../text.js";
import { card } from "./approvals.js";

const isApproval = (id) => /^(?:[^:]+:)?apr-/.test(id);
// A line that begins with a time is a step. Other lines describe the state.
const STEP = /^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC) {2}(.*)$/s;

function step(line) {
  const [, at, text] = STEP.exec(line) ?? [];
  return h("li", {}, at ? [h("time", {}, at), text] : line);
}

const results = (found) => table("Results", [
  ["Call", (result) => result.call],
  ["Tool", (result) => result.tool],
  ["Outcome", (result) => h("span", { class: result.success ? "good" : "bad" }, result.outcome)],
  ["Tries", (result) => result.attempts, true],
  ["Took", (result) => `${result.duration_ms ?? 0} ms`, true],
  ["Output or error", (result) => (result.error ? result.error.message : cut(write(result.output ?? null), 400))],
], found);

function auditOf(found) {
  const lines = found.entries.map((entry) => h("li", {}, `${entry.timestamp ?? ""}  ${entry.message ?? write(entry)}`));
  const more = found.complete ? "" : " (there may be more)";
  return h("details", { id: "audit-of-story" }, h("summary", {}, `${lines.length} audit ${lines.length === 1 ? "entry" : "entries"}${more}`), h("ul", {}, lines));
}

async function end(id, isTask, refresh) {
  const act = async (data) => {
    const [done] = await ask("cancel", { method: "POST", body: { ids: [id], reason: data.get("reason") } });
    say(`${id}: ${done.answer}`);
  };
  const text = isTask ? "Its subtasks end too. A running call is stopped; a once call then ends as outcome_unknown." : "A running call is stopped; a once call then ends as outcome_unknown.";
  if (await confirm({ title: `Cancel ${id}?`, text, fields: [reasonField()], button: "Cancel it", act })) refresh();
}

function told({ story, lines }, refresh) {
  const id = `${story.tenant}:${story.id}`;
  const isOver = ["done", "rejected", "forgotten"].includes(story.state);
  const approval = story.waits?.approval;
  const head = h("p", {}, `${story.is_task ? "Task" : "Turn"} `, h("strong", {}, id), story.agent ? ` of agent ${story.agent}` : "", ": ",
    h("strong", { class: isOver ? "good" : "doubt" }, story.state));
  const button = !isOver && may("operate")
    ? h("button", { id: "end-it", click: () => end(id, story.is_task, refresh) }, story.is_task ? "Cancel this task" : "Cancel this turn") : null;
  return [
    head, button ? h("p", {}, button) : null,
    approval ? card(approval, story.now_ms, refresh) : null,
    h("h2", {}, "What happened"), h("ol", { class: "timeline" }, lines.map(step)),
    story.results.length ? [h("h2", {}, "Results"), results(story.results)] : null,
    h("h2", {}, "Audit"), auditOf(story.audit),
    h("p", { class: "soft" }, `As of ${clock(story.now_ms)}`),
  ].flat();
}

export const find = {
  title: "Find",
  open: (query) => {
    const id = (query.get("id") ?? "").trim();
    document.getElementById("find-id").value = id;
    if (!id) return { load: async () => null, draw: () => h("p", {}, "Enter the id of a turn, task or approval above.") };
    if (isApproval(id)) {
      const load = () => ask(`approvals/${encodeURIComponent(id)}`);
      return { every_ms: 5000, load, draw: (approval, refresh) => card(approval, Date.now(), refresh) };
    }
    return { every_ms: 3000, load: () => ask(withQuery("explain", { id })), draw: told };
  },
};
