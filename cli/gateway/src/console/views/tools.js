// Tools by outcome and duration over the last minute, and tools that are disabled at run time.

import { ask, may, whoami } from "../api.js";
import { confirm, field, h, reasonField, say, span, table } from "../dom.js";

const outcomes = (row) => Object.entries(row.outcomes).map(([name, count]) => `${name} ${count}`).join(", ");

function used(found) {
  if (!found.rows.length) return h("p", {}, "No calls ended in the last minute.");
  const caption = `Calls of the last minute: ${found.seen}${found.sampled ? ", a sample of more" : ""}`;
  return table(caption, [
    ["Tool", (row) => row.tool], ["Calls", (row) => row.calls, true], ["Outcomes", outcomes],
    ["Mean", (row) => span(row.mean_ms), true], ["Longest", (row) => span(row.longest_ms), true],
  ], found.rows);
}

async function change(tool, isOn, refresh) {
  const act = async (data) => {
    const { changed } = await ask(`tools/${isOn ? "enable" : "disable"}`, { method: "POST", body: { tool, reason: data.get("reason") } });
    say(changed ? `${tool} is ${isOn ? "enabled" : "disabled for all agents"} as soon as workers receive the change.` : `${tool}: no change.`);
  };
  const text = isOn ? "The configuration decides again who may call it." : "No agent of any tenant may call it until it is enabled again: such calls end as denied. Running calls finish.";
  const word = isOn ? "Enable" : "Disable";
  const done = await confirm({ title: `${word} ${tool}?`, text, fields: [reasonField()], button: word, act });
  if (done) refresh();
  return done;
}

function form(refresh) {
  const enter = async (event) => {
    event.preventDefault();
    const element = event.target;
    const tool = new FormData(element).get("tool").trim();
    if (tool && (await change(tool, false, refresh))) element.reset();
  };
  return h("form", { class: "row", "aria-label": "Disable a tool", submit: enter },
    field("Tool (its name or id)", { name: "tool", required: true, maxlength: 256 }), h("button", {}, "Disable …"));
}

function off(found, refresh) {
  if (!found.length) return h("p", {}, "No tools disabled.");
  const columns = [
    ["Tool", (one) => one.tool], ["Where", (one) => (one.only_in ? `only in the shards ${one.only_in.join(", ")}` : "everywhere")],
    ["Who and why", (one) => h("a", { href: `#/audit?text=${encodeURIComponent(`disabled ${one.tool}`)}` }, "in the audit log")],
  ];
  if (may("operate") && !whoami().tenant) {
    columns.push(["Action", (one) => h("button", { id: `enable-${one.tool}`, "aria-label": `Enable ${one.tool}`, click: () => change(one.tool, true, refresh) }, "Enable …")]);
  }
  return table("Disabled tools", columns, found);
}

async function load() {
  const [fleet, { disabled }] = await Promise.all([whoami().tenant ? null : ask("overview"), ask("tools")]);
  return { fleet, disabled };
}

function draw({ fleet, disabled }, refresh) {
  const ofTenant = () => h("p", {}, "Recent outcomes cover the whole fleet and need a key for all tenants. The audit log shows this tenant's calls.");
  return [fleet ? used(fleet.tools) : ofTenant(), h("h2", {}, "Disabled at run time"), off(disabled, refresh)];
}

export const tools = {
  title: "Tools",
  open: (_, refresh) => ({ every_ms: 3000, still: may("operate") && !whoami().tenant ? form(refresh) : [], load, draw }),
};
