// Rules, fact conditions and limits with their modes, and how many calls each denied or would deny in shadow mode.

import { ask, whoami, withQuery } from "../api.js";
import { clock, field, h, table } from "../dom.js";

const DAY_MS = 86_400_000;
const MODES = ["", "enforce", "ask", "shadow"];

function filters(query) {
  const value = (name) => query.get(name) ?? "";
  const option = (mode) => h("option", { value: mode, selected: mode === value("mode") }, mode || "any");
  const enter = (event) => {
    event.preventDefault();
    location.hash = `#/${withQuery("rules", Object.fromEntries(new FormData(event.target)))}`;
  };
  return h("form", { class: "row", "aria-label": "Which rules", submit: enter },
    field("Mode", { name: "mode" }, ...MODES.map(option)), field("Calls of the tenant", { name: "tenant", value: value("tenant") }),
    field("Days", { name: "days", type: "number", min: 1, max: 400, value: value("days") || 7 }), h("button", {}, "Show"));
}

const day = (number) => (number === undefined ? "" : new Date(number * DAY_MS).toISOString().slice(0, 10));

function draw(found, mode, refresh) {
  const rules = found.rules.filter((rule) => !mode || rule.mode === mode);
  const columns = [
    ["Rule", (rule) => rule.rule], ["Kind", (rule) => rule.kind],
    ["Mode", (rule) => (rule.mode === "shadow" ? h("span", { class: "doubt" }, "shadow") : rule.mode ?? "")],
    ["Would stop", (rule) => rule.shadow, true], ["Denied", (rule) => rule.denied, true], ["Last on", (rule) => day(rule.last_day)],
    ["Condition", (rule) => rule.says],
  ];
  return [
    rules.length ? table(`${rules.length} rules and limits, days in UTC`, columns, rules) : h("p", {}, "No rules or limits match."),
    h("p", { class: "soft" }, `The audit log is counted up to ${clock(found.counted_upto_ms) || "nowhere yet"}.${found.gap ? " Entries may have been trimmed before they were counted." : ""} Calls delayed by limits wait and are not denials.`),
    found.more ? h("button", { id: "count-rules", click: refresh }, "Count further") : null,
  ];
}

const ofTenant = () => h("p", {}, `This key is for the tenant ${whoami().tenant}: rules need a key for all tenants.`);

export const rules = {
  title: "Rules",
  open: (query) => {
    if (whoami().tenant) return { load: async () => ({}), draw: ofTenant };
    const wanted = { tenant: query.get("tenant"), days: query.get("days") };
    return { still: filters(query), load: () => ask(withQuery("rules", wanted)), draw: (found, refresh) => draw(found, query.get("mode"), refresh) };
  },
};
