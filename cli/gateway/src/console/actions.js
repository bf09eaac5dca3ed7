// Actions that more than one view offers. Each asks for a reason.

import { act, ask, may, verbOf, whoami, withQuery } from "./api.js";
import { count } from "./format.js";
import { confirm, h, reasonField, say } from "./ui.js";

export const whose = (pause) => (pause.tool ? `tool ${pause.tool} for ${pause.tenant ?? "all tenants"}` : pause.agent ? `agent ${pause.agent} of ${pause.tenant}` : `tenant ${pause.tenant}`);

/** The label of each verb, and the verb that undoes it. The texts come from the gateway. */
const VERBS = {
  pause: { label: "Pause", undo: "resume" },
  resume: { label: "Resume" },
  "workers/drain": { label: "Drain", undo: "workers/resume" },
  "workers/resume": { label: "Resume" },
  "tools/disable": { label: "Disable", undo: "tools/enable", isDanger: true },
  "tools/enable": { label: "Enable" },
  cancel: { label: "Cancel", isDanger: true },
  "dead/replay": { label: "Replay" },
  "dead/drop": { label: "Drop", isDanger: true },
};

/**
 * Asks for confirmation of a verb, and runs it with `body`. The other properties are those of `confirm`; `note` stands
 * before the verb's effect, and `act` replaces the one request. Resolves to true if the verb was run.
 */
export async function operate(verb, what, { body, note = "", fields = [], refresh, ...dialog }) {
  const { label, undo, isDanger } = VERBS[verb];
  const definition = await verbOf(verb).catch((error) => void say(error.message));
  if (!definition) return false;
  const run = async (data) => {
    const reason = data.get("reason");
    const report = await act(verb, { ...body, reason });
    const back = async () => {
      await act(undo, { ...body, reason: `undone: ${reason}` }).then((undone) => say(undone.message), (error) => say(error.message));
      refresh();
    };
    say(report.message, report.changed && undo && { label: VERBS[undo].label, run: back });
  };
  const text = `${note ? `${note} ` : ""}${definition.effect}`;
  const done = await confirm({ title: `${label} ${what}?`, text, fields: [fields, reasonField(definition.needsReason)], button: label, isDanger, act: run, ...dialog });
  if (done) refresh();
  return done;
}

export const pause = (who, refresh) => operate("pause", whose(who), { body: who, refresh });

export const resume = (found, refresh) => operate("resume", whose(found), { body: { tenant: found.tenant, agent: found.agent, tool: found.tool }, note: `Paused by ${found.by}: ${found.reason}.`, refresh });

export function drain({ name, drained }, refresh) {
  const note = drained && `Drained by ${drained.by}: ${drained.reason}.`;
  return operate(drained ? "workers/resume" : "workers/drain", name, { body: { worker: name }, note, refresh });
}

export const switchTool = (tool, isOn, refresh) => operate(isOn ? "tools/enable" : "tools/disable", tool, { body: { tool }, refresh });

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

/** Cancels turns or tasks by id. */
export function cancel(ids, kind, refresh) {
  const isOne = ids.length === 1;
  const act_ = (data, more) => cancelIds(ids, data, more);
  return operate("cancel", isOne ? ids[0] : `${ids.length} ${kind}s`, { fields: isOne ? [] : sample(ids), button: isOne ? "Cancel it" : "Cancel them", stop: "Stop after this batch", act: act_, refresh });
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
      found.push(...page.items.filter(matches));
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
  const note = estimate(all, ids.length === 1 ? kind : list, agentOf);
  const act_ = (data, more) => cancelIds(ids, data, more);
  await operate("cancel", `all ${list} that match`, { note, fields: sample(ids), button: `Cancel ${count(ids.length)}`, stop: "Stop after this batch", act: act_, refresh });
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
  await operate("pause", "the agents of all turns that match", { note: estimate(all, "turns", agentOf), fields: sample(agents.map(agentOf)), button: `Pause ${count(agents.length)}`, stop: "Stop after this agent", act: run, refresh });
}

/** Returns true if the key may act on the whole fleet. */
export const mayFleet = () => may("operate") && !whoami().tenant;
