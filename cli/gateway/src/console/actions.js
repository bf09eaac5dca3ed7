// Actions that more than one view offers. Each asks for a reason.

import { act, ask, may, whoami, withQuery } from "./api.js";
import { count } from "./format.js";
import { confirm, h, reasonField, say } from "./ui.js";

export const whose = (pause) => (pause.tool ? `tool ${pause.tool} for ${pause.tenant ?? "all tenants"}` : pause.agent ? `agent ${pause.agent} of ${pause.tenant}` : `tenant ${pause.tenant}`);

/** Returns an undo button for the status line. It runs the opposite action with the first action's reason. */
const undo = (label, path, body, done, refresh) => ({
  label,
  run: async () => {
    await act(path, body).then(() => say(done), (error) => say(error.message));
    refresh();
  },
});

export async function pause(who, refresh) {
  const run = async (data) => {
    const reason = data.get("reason");
    const { changed } = await act("pause", { ...who, reason });
    say(changed ? `Paused ${whose(who)}.` : `${whose(who)} was paused already.`,
      changed && undo("Resume", "resume", { ...who, reason: `undone: ${reason}` }, `Resumed ${whose(who)}.`, refresh));
  };
  const text = who.tool ? "Its calls wait as soon as workers receive the pause. Their deadlines apply." : "Admitted turns finish. New turns wait, and their deadlines apply.";
  const done = await confirm({ title: `Pause ${whose(who)}?`, text, fields: [reasonField()], button: "Pause", act: run });
  if (done) refresh();
  return done;
}

export async function resume(found, refresh) {
  const who = { tenant: found.tenant, agent: found.agent, tool: found.tool };
  const run = async (data) => {
    const { changed } = await act("resume", { ...who, reason: data.get("reason") });
    say(changed ? `Resumed ${whose(found)}.` : `${whose(found)} was no longer paused.`);
  };
  const text = `Paused by ${found.by}: ${found.reason}. Waiting calls run again under their caps, the first within ${found.tool ? "a minute" : "a tick"}.`;
  if (await confirm({ title: `Resume ${whose(found)}?`, text, fields: [reasonField(false)], button: "Resume", act: run })) refresh();
}

export async function drain(worker, refresh) {
  const isDrained = Boolean(worker.drained);
  const run = async (data) => {
    const reason = data.get("reason");
    const { changed } = await act(`workers/${isDrained ? "resume" : "drain"}`, { worker: worker.name, reason });
    const back = !isDrained && changed && undo("Resume", "workers/resume", { worker: worker.name, reason: `undone: ${reason}` }, `Resumed ${worker.name}.`, refresh);
    say(changed ? `${worker.name} takes ${isDrained ? "new work again" : "no new work"} as soon as it receives the change.` : `${worker.name}: no change.`, back);
  };
  const text = isDrained
    ? `Drained by ${worker.drained.by}: ${worker.drained.reason}. It takes new work again.`
    : "It finishes its current work and takes no new work; other workers take over. It takes new work again after a resume or a restart.";
  const word = isDrained ? "Resume" : "Drain";
  if (await confirm({ title: `${word} ${worker.name}?`, text, fields: [reasonField(!isDrained)], button: word, act: run })) refresh();
}

export async function switchTool(tool, isOn, refresh) {
  const run = async (data) => {
    const reason = data.get("reason");
    const { changed } = await act(`tools/${isOn ? "enable" : "disable"}`, { tool, reason });
    const back = !isOn && changed && undo("Enable", "tools/enable", { tool, reason: `undone: ${reason}` }, `Enabled ${tool}.`, refresh);
    say(changed ? `${tool} is ${isOn ? "enabled" : "disabled for all agents"} as soon as workers receive the change.` : `${tool}: no change.`, back);
  };
  const text = isOn ? "The configuration decides again who may call it." : "No agent of any tenant may call it until it is enabled again: such calls end as denied. Running calls finish.";
  const word = isOn ? "Enable" : "Disable";
  const done = await confirm({ title: `${word} ${tool}?`, text, fields: [reasonField(!isOn)], button: word, isDanger: !isOn, act: run });
  if (done) refresh();
  return done;
}

// An action on all matches sends at most `BATCH` ids per request, and `COLLECTED_MAX` ids in total.
const BATCH = 100;
const COLLECTED_MAX = 5000;

async function cancelIds(ids, data, { signal, show }) {
  let ended = 0;
  let sent = 0;
  for (let from = 0; from < ids.length; from += BATCH) {
    if (signal.aborted) break;
    const done = await act("cancel", { ids: ids.slice(from, from + BATCH), reason: data.get("reason") });
    sent += done.length;
    ended += done.filter((one) => one.result === "ok" || one.result === "flagged").length;
    show(`${sent} of ${ids.length} …`);
  }
  const rest = sent < ids.length ? ` Stopped: ${ids.length - sent} are unchanged.` : "";
  say(`${ended} of ${sent} canceled${ended < sent ? "; the others had already ended or are unknown" : ""}.${rest}`);
}

const EFFECT = { turn: "Running calls are stopped; a once call then ends as outcome_unknown.", task: "Their subtasks end too. A running call is stopped; a once call then ends as outcome_unknown." };

/** Cancels turns or tasks by id. */
export async function cancel(ids, kind, refresh) {
  const title = `Cancel ${ids.length === 1 ? ids[0] : `${ids.length} ${kind}s`}?`;
  const fields = [ids.length > 1 ? sample(ids) : null, reasonField()];
  const done = await confirm({ title, text: EFFECT[kind], fields, button: ids.length === 1 ? "Cancel it" : "Cancel them", isDanger: true, stop: "Stop after this batch", act: (data, more) => cancelIds(ids, data, more) });
  if (done) refresh();
  return done;
}

const sample = (ids) => h("ul", { class: "sample" }, ids.slice(0, 6).map((id) => h("li", { key: id }, id)), ids.length > 6 ? h("li", { class: "soft" }, `and ${count(ids.length - 6)} more`) : null);

/** Collects up to `most` matches of a filter. Returns undefined, and shows the reason, if there are none. */
export async function collect(list, { wanted, matches = () => true, most = COLLECTED_MAX }) {
  const found = [];
  let from;
  say("Collecting the matches …");
  try {
    do {
      const page = await ask(withQuery(list, { ...wanted, limit: 500, from }));
      found.push(...page[list].filter(matches));
      from = page.next;
    } while (from && found.length < most);
  } catch (error) {
    return void say(error.message);
  }
  if (!found.length) return void say(`No ${list} match.`);
  say("");
  return { found: found.slice(0, most), isWhole: !from && found.length <= most };
}

/** Counts how often each name occurs among the items. Returns the most frequent names first. */
const tally = (found, nameOf) => [...found.reduce((by, one) => by.set(nameOf(one), (by.get(nameOf(one)) ?? 0) + 1), new Map())].sort((one, other) => other[1] - one[1]);

/** Describes what an action on all matches would change. */
export function estimate({ found, isWhole }, noun, nameOf) {
  const parts = tally(found, nameOf).slice(0, 6).map(([name, number]) => `${name} ${number}`);
  return `${count(found.length)} ${noun}${isWhole ? "" : ", and more that a second action takes"}: ${parts.join(", ")}.`;
}

const agentOf = (one) => `${one.tenant}:${one.agent}`;

/** Cancels the turns or tasks that match a filter, after a preview. */
export async function cancelAll({ kind, wanted, matches = () => true, refresh }) {
  const list = kind === "turn" ? "turns" : "tasks";
  const all = await collect(list, { wanted, matches: (one) => one.state !== "ended" && matches(one) });
  if (!all) return;
  const ids = all.found.map((one) => `${one.tenant}:${one.id}`);
  const text = `${estimate(all, ids.length === 1 ? kind : list, agentOf)} ${EFFECT[kind]}`;
  const act_ = (data, more) => cancelIds(ids, data, more);
  if (await confirm({ title: `Cancel all ${list} that match?`, text, fields: [sample(ids), reasonField()], button: `Cancel ${count(ids.length)}`, isDanger: true, stop: "Stop after this batch", act: act_ })) refresh();
}

/** Pauses the agents of the turns that match a filter, after a preview. */
export async function pauseAll({ wanted, matches, refresh }) {
  const all = await collect("turns", { wanted, matches });
  if (!all) return;
  const agents = [...new Map(all.found.map((one) => [agentOf(one), { tenant: one.tenant, agent: one.agent }])).values()];
  const run = async (data, { signal, show }) => {
    let [done, changed] = [0, 0];
    for (const who of agents) {
      if (signal.aborted) break;
      changed += (await act("pause", { ...who, reason: data.get("reason") })).changed;
      show(`${++done} of ${agents.length} …`);
    }
    say(`${changed} of ${agents.length} paused.${done < agents.length ? ` Stopped: ${agents.length - done} are unchanged.` : changed < done ? " The others were paused already." : ""}`);
  };
  const text = `${estimate(all, "turns", agentOf)} Admitted turns finish. New turns of ${agents.length === 1 ? "this agent" : `these ${count(agents.length)} agents`} wait, and their deadlines apply.`;
  if (await confirm({ title: "Pause the agents of all turns that match?", text, fields: [sample(agents.map(agentOf)), reasonField()], button: `Pause ${count(agents.length)}`, stop: "Stop after this agent", act: run })) refresh();
}

/** Returns true if the key may act on the whole fleet. */
export const mayFleet = () => may("operate") && !whoami().tenant;
