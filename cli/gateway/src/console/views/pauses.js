// Paused tenants, agents and tools: list, pause and resume.

import { ask, may, whoami } from "../api.js";
import { clock, confirm, field, fromNow, h, reasonField, say, table } from "../dom.js";

const whose = (pause) => pause.tool ? `tool ${pause.tool} for ${pause.tenant ?? "all tenants"}` : (pause.agent ? `agent ${pause.agent} of ${pause.tenant}` : `tenant ${pause.tenant}`);

async function resume(pause, refresh) {
  const act = async (data) => {
    const body = { tenant: pause.tenant, agent: pause.agent, tool: pause.tool, reason: data.get("reason") };
    const { changed } = await ask("resume", { method: "POST", body });
    say(changed ? `Resumed ${whose(pause)}.` : `${whose(pause)} was no longer paused.`);
  };
  const text = `Paused by ${pause.by}: ${pause.reason}. Waiting calls run again under their caps, the first within ${pause.tool ? "a minute" : "a tick"}.`;
  if (await confirm({ title: `Resume ${whose(pause)}?`, text, fields: [reasonField()], button: "Resume", act })) refresh();
}

function form(refresh) {
  const own = whoami().tenant;
  const enter = async (event) => {
    event.preventDefault();
    const element = event.target;
    const given = Object.fromEntries(new FormData(element));
    const who = { tenant: given.tenant || undefined, agent: given.agent || undefined, tool: given.tool || undefined };
    const act = async (data) => {
      const { changed } = await ask("pause", { method: "POST", body: { ...who, reason: data.get("reason") } });
      say(changed ? `Paused ${whose(who)}.` : `${whose(who)} was paused already.`);
    };
    if (!who.tenant && !who.tool) {
      say("Enter a tenant or a tool.");
      return;
    }
    const text = who.tool ? "Its calls wait as soon as workers receive the pause. Their deadlines apply." : "Admitted turns finish. New turns wait, and their deadlines apply.";
    if (await confirm({ title: `Pause ${whose(who)}?`, text, fields: [reasonField()], button: "Pause", act })) {
      element.reset();
      refresh();
    }
  };
  return h("form", { class: "row", "aria-label": "Pause a tenant, an agent or a tool", submit: enter },
    field("Tenant (empty with a tool: all tenants)", { name: "tenant", value: own ?? "", readonly: Boolean(own) }),
    field("Agent (empty: the whole tenant)", { name: "agent" }), field("Or a tool", { name: "tool" }), h("button", {}, "Pause …"));
}

function draw({ pauses: found, now_ms }, refresh) {
  if (!found.length) return h("p", {}, "No pauses.");
  const columns = [
    ["Tenant", (pause) => pause.tenant ?? "all"], ["Agent", (pause) => pause.agent ?? "all"], ["Tool", (pause) => pause.tool ?? "all"],
    ["Since", (pause) => `${clock(pause.since_ms)} (${fromNow(pause.since_ms, now_ms)})`],
    ["By", (pause) => pause.by], ["Reason", (pause) => pause.reason],
  ];
  if (may("operate")) {
    columns.push(["Action", (pause) => h("button", {
      id: `resume-${pause.tenant ?? ""}-${pause.agent ?? ""}-${pause.tool ?? ""}`, "aria-label": `Resume ${whose(pause)}`, click: () => resume(pause, refresh),
    }, "Resume")]);
  }
  return table("Paused", columns, found);
}

export const pauses = {
  title: "Pauses",
  open: (_, refresh) => ({ every_ms: 5000, still: may("operate") ? form(refresh) : [], load: () => ask("pauses"), draw }),
};
