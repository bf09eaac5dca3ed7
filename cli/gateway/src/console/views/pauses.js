import { ask, may, whoami } from "../api.js";
import { pause, resume, whose } from "../actions.js";
import { age, button, empty, field, h, say, table } from "../ui.js";

function form(refresh) {
  const own = whoami().tenant;
  const enter = async (event) => {
    event.preventDefault();
    const element = event.target;
    const given = Object.fromEntries(new FormData(element));
    const who = { tenant: given.tenant.trim() || undefined, agent: given.agent.trim() || undefined, tool: given.tool.trim() || undefined };
    if (!who.tenant && !who.tool) return say("Enter a tenant or a tool.");
    if (await pause(who, refresh)) element.reset();
  };
  return h("form", { class: "filters", "aria-label": "Pause a tenant, an agent or a tool", onSubmit: enter },
    field("Tenant (empty with a tool: all tenants)", { name: "tenant", defaultValue: own ?? "", readonly: Boolean(own), list: "list-tenant", class: "wider" }),
    field("Agent (empty: the whole tenant)", { name: "agent", list: "list-agent", class: "wider" }), field("Or a tool", { name: "tool", list: "list-tool" }), h("button", { class: "act" }, "Pause …"));
}

function draw({ pauses: found, now_ms }, refresh) {
  if (!found.length) return empty("No pauses.");
  const columns = [
    { name: "Paused", value: whose }, { name: "Since", number: true, value: (one) => one.since_ms, cell: (one) => age(one.since_ms, now_ms) }, { name: "By", value: (one) => one.by }, { name: "Reason", class: "long", value: (one) => one.reason },
  ];
  if (may("operate")) columns.push({ name: "Action", cell: (one) => button("Resume", () => resume(one, refresh), { "aria-label": `Resume ${whose(one)}` }) });
  return table({ caption: `${found.length} paused`, columns, rows: found, key: whose, csv: true });
}

export const pauses = { title: "Pauses", open: (_, refresh) => ({ every_ms: 3000, bar: () => (may("operate") ? form(refresh) : null), load: () => ask("pauses"), draw }) };
