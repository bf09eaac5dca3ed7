import { ask, may, whoami, withQuery } from "../api.js";
import { mayFleet, pause, switchTool } from "../actions.js";
import { share } from "../charts.js";
import { count, span, tally } from "../format.js";
import { button, card, chip, empty, field, h, learn, link, outcome, table } from "../ui.js";
import { auditTable } from "./audit.js";
import { causes } from "./dead.js";
import { rulesTable } from "./rules.js";

export const outcomes = (row) => h("span", { class: "outcomes" }, Object.entries(row.outcomes).map(([name, number], at) => [at ? " " : "", h("span", { key: name, class: "nowrap" }, outcome(name), ` ${count(number)}`)]));

function used(found) {
  if (!found.rows.length) return empty("No calls ended in the last minute.");
  const rows = found.rows.map((row) => ({ ...row, ...tally(row.outcomes) }));
  return table({ caption: `Calls of the last minute: ${count(found.seen)}${found.sampled ? ", a sample of more" : ""}`, rows, key: (row) => row.tool, csv: true, columns: [
    { name: "Tool", value: (row) => row.tool, cell: (row) => link("tool", { name: row.tool }, row.tool) }, { name: "Calls", number: true, value: (row) => row.calls, cell: (row) => count(row.calls) },
    { name: "Failed", number: true, value: (row) => (row.failed + row.unknown) / row.all, cell: (row) => share(row.failed + row.unknown, row.all, "failed") },
    { name: "Refused", number: true, value: (row) => row.refused / row.all, cell: (row) => share(row.refused, row.all, "refused") },
    { name: "Outcomes", value: (row) => Object.entries(row.outcomes).map(([name, number]) => `${name} ${number}`).join(", "), cell: outcomes },
    { name: "Mean", number: true, value: (row) => row.mean_ms, cell: (row) => span(row.mean_ms) }, { name: "Longest", number: true, value: (row) => row.longest_ms, cell: (row) => span(row.longest_ms) },
  ] });
}

function form(refresh) {
  const enter = async (event) => {
    event.preventDefault();
    const element = event.target;
    const name = new FormData(element).get("tool").trim();
    if (name && (await switchTool(name, false, refresh))) element.reset();
  };
  return h("form", { class: "filters", "aria-label": "Disable a tool", onSubmit: enter },
    field("Tool (its name or id)", { name: "tool", required: true, maxlength: 256, list: "list-tool", class: "wider" }), h("button", { class: "act" }, "Disable …"));
}

function off(found, refresh) {
  if (!found.length) return empty("No tools disabled.");
  const columns = [
    { name: "Tool", value: (one) => one.tool }, { name: "Where", value: (one) => (one.only_in ? `only in the shards ${one.only_in.join(", ")}` : "everywhere") },
    { name: "Who and why", cell: (one) => link("audit", { text: `disabled ${one.tool}` }, "in the audit log") },
  ];
  if (mayFleet()) columns.push({ name: "Action", cell: (one) => button("Enable …", () => switchTool(one.tool, true, refresh), { "aria-label": `Enable ${one.tool}` }) });
  return table({ caption: "Disabled tools", columns, rows: found, key: (one) => one.tool, plain: true });
}

export const tools = {
  title: "Tools",
  open: (_, refresh) => ({
    every_ms: 3000,
    bar: () => (mayFleet() ? form(refresh) : null),
    load: async () => {
      const [fleet, { disabled }] = await Promise.all([whoami().tenant ? null : ask("overview"), ask("tools")]);
      if (fleet) learn({ tool: fleet.tools.rows.map((row) => row.tool) });
      return { fleet, disabled };
    },
    draw: ({ fleet, disabled }) => [
      fleet ? used(fleet.tools) : h("p", {}, "Recent outcomes cover the whole fleet and need a key for all tenants. The audit log shows this tenant's calls."),
      h("h2", {}, "Disabled at run time"), off(disabled, refresh),
    ],
  }),
};

function summary(name, { fleet, disabled, pauses }, refresh) {
  const row = fleet?.tools.rows.find((one) => one.tool === name);
  const isOff = disabled.some((one) => one.tool === name);
  const paused = pauses.pauses.find((one) => one.tool === name);
  const numbers = row && tally(row.outcomes);
  return h("section", { class: "card", "aria-label": "State" },
    h("div", { class: "head" }, h("h2", {}, name), isOff ? chip("bad", "disabled") : paused ? chip("doubt", "paused") : chip("", "enabled"),
      h("span", { class: "grow" }),
      may("operate") && !paused ? button("Pause …", () => pause({ tool: name, tenant: whoami().tenant }, refresh)) : null,
      mayFleet() ? button(isOff ? "Enable …" : "Disable …", () => switchTool(name, isOff, refresh)) : null),
    row ? h("dl", { class: "facts" },
      [["Calls, last minute", count(row.calls)], ["Failed", share(numbers.failed + numbers.unknown, numbers.all, "failed")], ["Refused", share(numbers.refused, numbers.all, "refused")], ["Mean", span(row.mean_ms)], ["Longest", span(row.longest_ms)], ["Outcomes", outcomes(row)]]
        .map(([term, value]) => h("div", { key: term }, h("dt", {}, term), h("dd", {}, value)))) : h("p", { class: "soft" }, "No calls ended in the last minute."),
    h("p", { class: "soft" }, link("turns", { tool: name }, "Turns with this tool"), " · ", link("dead", { tool: name }, "Dead letters"), " · ", link("audit", { tool: name }, "Audit"), " · ", link("stats", { tool: name, by: "day,agent", days: 7 }, "Statistics")));
}

const failures = (failed, name) => {
  const rows = failed.entries.filter((entry) => entry.audit.action === "TOOL_CALL" && entry.audit.meta?.outcome !== "ok");
  return rows.length ? auditTable(rows.slice(0, 12), `Last calls of ${name} without success`) : null;
};

export const tool = {
  title: "Tool",
  of: "tools",
  titleOf: (query) => `Tool ${query.get("name") ?? ""}`,
  open: (query, refresh) => {
    const name = query.get("name") ?? "";
    const whole = !whoami().tenant;
    const none = (empty_) => () => empty_;
    const day = new URLSearchParams({ from: "1d" });
    return {
      every_ms: 5000,
      load: async () => {
        const [fleet, { disabled }, pauses, why, by, log, rules] = await Promise.all([
          whole ? ask("overview") : null, ask("tools"), ask("pauses"), ask(withQuery("dead/causes", { tool: name, since_s: 86_400, limit: 10 })).catch(none({ causes: [], now_ms: 0 })),
          ask(withQuery("stats", { tool: name, by: "tenant,agent", days: 7 })).catch(none({ rows: [] })), ask(withQuery("audit", { tool: name, limit: 100 })).catch(none({ entries: [] })),
          whole ? ask("rules").catch(none({ rules: [] })) : { rules: [] },
        ]);
        return { fleet, disabled, pauses, why, by, log, rules };
      },
      draw: (found) => [
        summary(name, found, refresh),
        found.why.causes.length ? causes(found.why, day, refresh, "Why it fails: causes of the last day") : card("Why it fails", empty("No dead letters in the last day.", "good")),
        failures(found.log, name),
        found.by.rows.length ? table({ caption: "Calls of the last 7 days by tenant and agent", rows: found.by.rows.map((row) => ({ ...row, ...tally(row.outcomes) })), key: (row) => `${row.tenant}:${row.agent}`, columns: [
          { name: "Tenant", value: (row) => row.tenant }, { name: "Agent", value: (row) => row.agent }, { name: "Calls", number: true, value: (row) => row.calls, cell: (row) => count(row.calls) },
          { name: "Failed", number: true, value: (row) => (row.failed + row.unknown) / row.all, cell: (row) => share(row.failed + row.unknown, row.all, "failed") }, { name: "Retries", number: true, value: (row) => row.retries, cell: (row) => count(row.retries) },
          { name: "p50", number: true, value: (row) => row.p50_ms, cell: (row) => span(row.p50_ms) }, { name: "p95", number: true, value: (row) => row.p95_ms, cell: (row) => span(row.p95_ms) },
        ] }) : null,
        (() => {
          const rules = found.rules.rules.filter((rule) => rule.rule.split(".").includes(name));
          return rules.length ? rulesTable(rules, "Rules of this tool, last 7 days") : null;
        })(),
      ],
    };
  },
};
