import { ask, whoami, withQuery } from "../api.js";
import { count } from "../format.js";
import { TENANT, button, chip, empty, filters, h, link, table, time } from "../ui.js";

const DAY_MS = 86_400_000;
const FIELDS = [{ name: "mode", label: "Mode", options: ["", "enforce", "ask", "shadow"] }, { ...TENANT, label: "Calls of the tenant" }, { name: "days", label: "Days", type: "number", min: 1, max: 400, help: "7" }, { name: "text", label: "Text", wide: true }];
const day = (number) => (number === undefined ? "" : new Date(number * DAY_MS).toISOString().slice(0, 10));

export function rulesTable(rules, caption) {
  return table({ caption, rows: rules, key: (rule) => `${rule.kind} ${rule.rule}`, csv: true, columns: [
    { name: "Rule", value: (rule) => rule.rule, cell: (rule) => link("audit", { text: rule.rule.split(".").at(-1) }, rule.rule) }, { name: "Kind", value: (rule) => rule.kind },
    { name: "Mode", value: (rule) => rule.mode, cell: (rule) => (rule.mode === "shadow" ? chip("doubt", "shadow") : rule.mode ?? "") },
    { name: "Would stop", number: true, value: (rule) => rule.shadow, cell: (rule) => count(rule.shadow) }, { name: "Denied", number: true, value: (rule) => rule.denied, cell: (rule) => count(rule.denied) },
    { name: "Last on", value: (rule) => day(rule.last_day) }, { name: "Condition", class: "long", value: (rule) => rule.says, cell: (rule) => h("code", {}, rule.says) },
  ] });
}

function draw(found, query, refresh) {
  const mode = query.get("mode");
  const text = (query.get("text") ?? "").toLowerCase();
  const rules = found.rules.filter((rule) => (!mode || rule.mode === mode) && (!text || `${rule.rule} ${rule.says}`.toLowerCase().includes(text)));
  return [
    rules.length ? rulesTable(rules, `${rules.length} rules and limits, days in UTC`) : empty("No rules or limits match."),
    h("p", { class: "soft" }, "The audit log is counted up to ", time(found.counted_upto_ms) ?? "nowhere yet", `.${found.gap ? " Entries may have been trimmed before they were counted." : ""} Calls delayed by limits wait and are not denials.`),
    found.more ? button("Count further", refresh) : null,
  ];
}

const ofTenant = () => h("p", {}, `This key is for the tenant ${whoami().tenant}: rules need a key for all tenants.`);

export const rules = {
  title: "Rules",
  open: (query, refresh) => {
    if (whoami().tenant) return { load: async () => ({}), draw: ofTenant };
    return { every_ms: 30_000, bar: () => filters("rules", query, FIELDS), load: () => ask(withQuery("rules", { tenant: query.get("tenant"), days: query.get("days") })), draw: (found) => draw(found, query, refresh) };
  },
};
