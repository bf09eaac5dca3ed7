import { ask, now, withQuery } from "../api.js";
import { count, range } from "../format.js";
import { write } from "../json.js";
import { AGENT, FROM, TENANT, TOOL, UNTIL, button, chip, copy, empty, filters, h, learn, link, outcome, redraw, storyLink, table, time } from "../ui.js";

const FIELDS = [TENANT, AGENT, TOOL, { name: "outcome", label: "Outcome", list: "outcome" }, { name: "text", label: "Text", wide: true }, { name: "where", label: "Where", help: "amount > 100", wide: true }, FROM, UNTIL];
const NAMES = ["tenant", "agent", "tool", "outcome", "text", "where"];
// A search ends after this many pages or matches.
const PAGES = 12;
const ENOUGH = 50;

const at = (entry) => Date.parse(entry.audit.timestamp ?? "") || 0;

export function auditTable(rows, caption, more = {}) {
  const turn = (entry) => entry.audit.meta?.turn;
  const values = (entry) => { const given = entry.audit.meta?.arguments; return given === undefined || given === null ? "" : write(given); };
  return table({ caption, rows, key: (entry) => `${entry.shard}-${entry.id}`, csv: true, file: "audit", ...more, columns: [
    { name: "Time", value: at, cell: (entry) => h("span", { class: "nowrap" }, time(at(entry))) }, { name: "Tenant", value: (entry) => entry.audit.tenant }, { name: "Who", value: (entry) => entry.audit.actor_id },
    { name: "What", value: (entry) => entry.audit.message, cell: (entry) => h("details", {}, h("summary", {}, entry.audit.message ?? entry.audit.action ?? entry.id), h("div", { class: "row" }, copy(write(entry.audit, 2), "this entry"), turn(entry) ? storyLink(`${entry.audit.tenant}:${turn(entry)}`) : null), h("pre", {}, write(entry.audit, 2))) },
    { name: "Outcome", value: (entry) => entry.audit.meta?.outcome ?? entry.audit.action, cell: (entry) => (entry.audit.meta?.outcome ? outcome(entry.audit.meta.outcome) : chip("", (entry.audit.action ?? "").toLowerCase())) },
    { name: "Arguments", class: "long", value: values, cell: (entry) => h("code", {}, values(entry).slice(0, 160)) },
    { name: "Turn", value: turn, cell: (entry) => (turn(entry) ? storyLink(`${entry.audit.tenant}:${turn(entry)}`, turn(entry)) : "") },
  ] });
}

async function search(query, view) {
  const { from, until } = range(query, now());
  const wanted = { ...Object.fromEntries(NAMES.map((name) => [name, query.get(name)])), from_ms: from, until_ms: until, limit: 100 };
  const found = { entries: [], read: 0, cursors: [] };
  // Each shard has its own cursor, and each request continues one of them.
  const open = view.cursors ?? [undefined];
  for (let pages = 0; open.length && pages < PAGES && found.entries.length < ENOUGH; pages += 1) {
    const page = await ask(withQuery("audit", { ...wanted, cursor: open.shift() }));
    found.read += page.read;
    found.entries.push(...page.entries);
    open.push(...page.cursors);
  }
  found.cursors = open;
  found.entries.sort((one, other) => at(other) - at(one));
  learn({ tenant: found.entries.map((entry) => entry.audit.tenant), outcome: found.entries.map((entry) => entry.audit.meta?.outcome) });
  return found;
}

export const audit = {
  title: "Audit",
  open: (query, refresh) => {
    const view = { bar: () => filters("audit", query, FIELDS), load: () => search(query, view) };
    view.draw = (found) => [
      found.entries.length ? auditTable(found.entries, `${count(found.entries.length)} entries found, the newest first`, { note: `${count(found.read)} read` }) : empty("No entries found."),
      h("div", { class: "row" },
        found.cursors.length ? button("Search further back", () => { view.cursors = found.cursors; refresh(); redraw(); }) : h("p", { class: "soft" }, "No more entries in this time range."),
        view.cursors ? button("From the newest", () => { view.cursors = undefined; refresh(); }) : null, button("Search again", refresh, { class: "quiet" }),
        link("rules", {}, "Denials by rule")),
    ];
    return view;
  },
};
