// Whose calls do not go out, and how to change that.

import { ask, may, whoami } from "../api.js";
import { clock, confirm, field, fromNow, h, reasonField, say, table } from "../dom.js";

const whose = (pause) => (pause.agent ? `agent ${pause.agent} of ${pause.tenant}` : `tenant ${pause.tenant}`);

async function resume(pause, refresh) {
  const act = async (data) => {
    const body = { tenant: pause.tenant, agent: pause.agent, reason: data.get("reason") };
    const { changed } = await ask("resume", { method: "POST", body });
    say(changed ? `Calls of ${whose(pause)} go out again.` : `${whose(pause)} was not paused any more.`);
  };
  const text = `Paused by ${pause.by}: ${pause.reason}. The calls that wait go out under their caps, the next within a tick.`;
  if (await confirm({ title: `Resume ${whose(pause)}?`, text, fields: [reasonField()], button: "Resume", act })) refresh();
}

function form(refresh) {
  const own = whoami().tenant;
  const enter = async (event) => {
    event.preventDefault();
    const element = event.target;
    const given = Object.fromEntries(new FormData(element));
    const who = { tenant: given.tenant, agent: given.agent || undefined };
    const act = async (data) => {
      const { changed } = await ask("pause", { method: "POST", body: { ...who, reason: data.get("reason") } });
      say(changed ? `No call of ${whose(who)} goes out any more.` : `${whose(who)} was paused already.`);
    };
    const text = "What was admitted goes on to its end; what comes waits, with its deadline.";
    if (await confirm({ title: `Pause ${whose(who)}?`, text, fields: [reasonField()], button: "Pause", act })) {
      element.reset();
      refresh();
    }
  };
  return h("form", { class: "row", "aria-label": "Pause a tenant or an agent", submit: enter },
    field("Tenant", { name: "tenant", required: true, value: own ?? "", readonly: Boolean(own) }),
    field("Agent (empty: all of the tenant)", { name: "agent" }), h("button", {}, "Pause …"));
}

function draw({ pauses: found, now_ms }, refresh) {
  if (!found.length) return h("p", {}, "Nobody is paused.");
  const columns = [
    ["Tenant", (pause) => pause.tenant], ["Agent", (pause) => pause.agent ?? "all"],
    ["Since", (pause) => `${clock(pause.since_ms)} (${fromNow(pause.since_ms, now_ms)})`],
    ["By", (pause) => pause.by], ["Why", (pause) => pause.reason],
  ];
  if (may("operate")) {
    columns.push(["Act", (pause) => h("button", {
      id: `resume-${pause.tenant}-${pause.agent ?? ""}`, "aria-label": `Resume ${whose(pause)}`, click: () => resume(pause, refresh),
    }, "Resume")]);
  }
  return table("Paused", columns, found);
}

export const pauses = {
  title: "Pauses",
  open: (_, refresh) => ({ every_ms: 5000, still: may("operate") ? form(refresh) : [], load: () => ask("pauses"), draw }),
};
