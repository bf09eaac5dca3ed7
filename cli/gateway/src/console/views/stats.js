import { ask, withQuery } from "../api.js";
import { share } from "../charts.js";
import { count, money, span, tally } from "../format.js";
import { AGENT, TENANT, TOOL, button, empty, filters, h, link, table, time } from "../ui.js";
import { outcomes } from "./tools.js";

const PARTS = ["day", "tenant", "agent", "tool"];
const NAMES = ["tenant", "agent", "tool", "days"];

function bar(query) {
  const by = (query.get("by") ?? "tool").split(",");
  const draw = () => h("fieldset", { key: "by" }, h("legend", {}, "A row for each"), PARTS.map((part) => h("label", { key: part, class: "check" }, h("input", { type: "checkbox", name: "by", value: part, defaultChecked: by.includes(part) }), ` ${part}`)));
  return filters("stats", query, [TENANT, AGENT, TOOL, { name: "days", label: "Days", type: "number", min: 1, max: 400, help: "1" }, { name: "by", draw }]);
}

/** Returns the columns of model usage; an empty list if no model was used. */
const models = (found) => (found.models?.requests ? [
  { name: "Model requests", number: true, value: (row) => row.used?.requests, cell: (row) => count(row.used?.requests) }, { name: "Tokens in", number: true, value: (row) => row.used?.input_tokens, cell: (row) => count(row.used?.input_tokens) },
  { name: "Tokens out", number: true, value: (row) => row.used?.output_tokens, cell: (row) => count(row.used?.output_tokens) }, { name: "Cost", number: true, value: (row) => Number(row.used?.cost ?? 0), cell: (row) => money(row.used?.cost) },
] : []);

function used({ models: all }) {
  if (!all) return "Tokens and cost are shown when rows are not tools.";
  const text = `Models answered ${count(all.requests)} requests: ${count(all.input_tokens)} tokens in, ${count(all.output_tokens)} out, cost ${all.cost}, by days of each tenant's time zone.`;
  return all.complete ? text : `${text} Partial: usage is kept for 40 days, and large fleets are read in part.`;
}

function draw(found, refresh) {
  const named = PARTS.filter((part) => found.rows.some((row) => row[part] !== undefined));
  const cell = { tool: (row) => link("tool", { name: row.tool }, row.tool) };
  const rows = found.rows.map((row) => ({ ...row, ...tally(row.outcomes) }));
  const number = (name, of, shown = count) => ({ name, number: true, value: of, cell: (row) => shown(of(row)) });
  const columns = [
    ...named.map((part) => ({ name: part[0].toUpperCase() + part.slice(1), value: (row) => row[part], cell: cell[part] })),
    number("Calls", (row) => row.calls), { name: "Failed", number: true, value: (row) => (row.failed + row.unknown) / row.all, cell: (row) => share(row.failed + row.unknown, row.all, "failed") },
    { name: "Refused", number: true, value: (row) => row.refused / row.all, cell: (row) => share(row.refused, row.all, "refused") }, number("Retries", (row) => row.retries),
    number("Mean", (row) => row.mean_ms, span), number("p50", (row) => row.p50_ms, span), number("p95", (row) => row.p95_ms, span), number("p99", (row) => row.p99_ms, span),
    ...models(found), { name: "Outcomes", value: (row) => Object.entries(row.outcomes).map(([name, all]) => `${name} ${all}`).join(", "), cell: outcomes },
  ];
  return [
    rows.length ? table({ caption: `${count(rows.length)} rows, days in UTC`, columns, rows, key: (row) => PARTS.map((part) => row[part]).join("|"), csv: true }) : empty("No calls in this time range."),
    h("p", { class: "soft" }, "The audit log is counted up to ", time(found.counted_upto_ms) ?? "nowhere yet", `.${found.gap ? " Entries may have been trimmed before they were counted." : ""}`),
    h("p", { class: "soft" }, used(found)),
    found.more ? button("Count further", refresh) : null,
  ];
}

export const stats = {
  title: "Statistics",
  open: (query, refresh) => ({ every_ms: 30_000, bar: () => bar(query), load: () => ask(withQuery("stats", Object.fromEntries([...NAMES, "by"].map((name) => [name, query.get(name)])))), draw: (found) => draw(found, refresh) }),
};
