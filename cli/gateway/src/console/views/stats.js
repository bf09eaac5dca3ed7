// Calls by day, tenant, agent and tool: counts, outcomes, durations, and model usage.

import { ask, withQuery } from "../api.js";
import { clock, field, h, span, table } from "../dom.js";

const PARTS = ["day", "tenant", "agent", "tool"];
const NAMES = ["tenant", "agent", "tool", "days"];

function filters(query) {
  const value = (name) => query.get(name) ?? "";
  const by = (query.get("by") ?? "tool").split(",");
  const choice = (part) => h("label", {}, h("input", { type: "checkbox", name: "by", value: part, checked: by.includes(part) }), ` ${part}`);
  const enter = (event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    const given = Object.fromEntries(NAMES.map((name) => [name, data.get(name)]));
    location.hash = `#/${withQuery("stats", { ...given, by: data.getAll("by").join(",") })}`;
  };
  return h("form", { class: "row", "aria-label": "Which calls", submit: enter },
    field("Tenant", { name: "tenant", value: value("tenant") }), field("Agent", { name: "agent", value: value("agent") }),
    field("Tool (its id)", { name: "tool", value: value("tool") }),
    field("Days", { name: "days", type: "number", min: 1, max: 400, value: value("days") || 1 }),
    h("fieldset", {}, h("legend", {}, "A row for each"), PARTS.map(choice)), h("button", {}, "Show"));
}

const outcomes = (row) => Object.entries(row.outcomes).map(([name, count]) => `${name} ${count}`).join(", ");

/** Columns of model usage. None if no model was used. */
function models(found) {
  if (!found.models?.requests) return [];
  return [
    ["Model requests", (row) => row.used.requests, true], ["Tokens in", (row) => row.used.input_tokens, true],
    ["Tokens out", (row) => row.used.output_tokens, true], ["Cost", (row) => row.used.cost, true],
  ];
}

function used({ models: all }) {
  if (!all) return "Tokens and cost are shown when rows are not tools.";
  const text = `Models answered ${all.requests} requests: ${all.input_tokens} tokens in, ${all.output_tokens} out, cost ${all.cost}, by days of each tenant's time zone.`;
  return all.complete ? text : `${text} Partial: usage is kept for 40 days, and large fleets are read in part.`;
}

function draw(found, refresh) {
  const named = PARTS.filter((part) => found.rows.some((row) => row[part] !== undefined));
  const columns = [
    ...named.map((part) => [part[0].toUpperCase() + part.slice(1), (row) => row[part]]),
    ["Calls", (row) => row.calls, true], ["OK", (row) => row.ok, true], ["Retries", (row) => row.retries, true],
    ["Mean", (row) => span(row.mean_ms), true], ["p50", (row) => span(row.p50_ms), true],
    ["p95", (row) => span(row.p95_ms), true], ["p99", (row) => span(row.p99_ms), true], ...models(found), ["Outcomes", outcomes],
  ];
  return [
    found.rows.length ? table(`${found.rows.length} rows, days in UTC`, columns, found.rows) : h("p", {}, "No calls in this time range."),
    h("p", { class: "soft" }, `The audit log is counted up to ${clock(found.counted_upto_ms) || "nowhere yet"}.${found.gap ? " Entries may have been trimmed before they were counted." : ""}`),
    h("p", { class: "soft" }, used(found)),
    found.more ? h("button", { id: "count-on", click: refresh }, "Count further") : null,
  ];
}

export const stats = {
  title: "Statistics",
  open: (query) => {
    const wanted = Object.fromEntries([...NAMES, "by"].map((name) => [name, query.get(name)]));
    return { still: filters(query), load: () => ask(withQuery("stats", wanted)), draw };
  },
};
