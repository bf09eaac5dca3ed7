// The audit log: who did what, and what decided it.

import { ask, withQuery } from "../api.js";
import { field, h, table } from "../dom.js";
import { write } from "../json.js";

const NAMES = ["tenant", "agent", "tool", "outcome", "text", "since_s"];

function form(query) {
  const enter = (event) => {
    event.preventDefault();
    location.hash = `#/${withQuery("audit", Object.fromEntries(new FormData(event.target)))}`;
  };
  const value = (name) => query.get(name) ?? "";
  const text = (label, name) => field(label, { name, value: value(name) });
  return h("form", { class: "row", role: "search", "aria-label": "Search the audit log", submit: enter },
    text("Tenant", "tenant"), text("Agent", "agent"), text("Tool", "tool"), text("Outcome", "outcome"), text("Text", "text"),
    field("Maximum age (s)", { name: "since_s", type: "number", min: 1, value: value("since_s") }), h("button", {}, "Search"));
}

function draw(found, view, refresh) {
  const more = found.cursors.map((cursor) => h("button", {
    id: `more-${cursor}`, click: () => { view.cursor = cursor; refresh(); },
  }, `Continue in shard ${cursor.split(":")[0]}`));
  const say = (entry, name) => entry.audit[name] ?? "";
  const columns = [
    ["Time", (entry) => say(entry, "timestamp")], ["Tenant", (entry) => say(entry, "tenant")],
    ["Message", (entry) => say(entry, "message")],
    ["Entry", (entry) => h("details", { id: `entry-${entry.shard}-${entry.id}` }, h("summary", {}, entry.id), h("pre", {}, write(entry.audit, 2)))],
  ];
  return [
    found.entries.length ? table(`${found.entries.length} entries found, the newest first`, columns, found.entries) : h("p", {}, "No entries found."),
    h("p", { class: "soft" }, `Searched ${found.read} entries.${found.cursors.length ? "" : " No more entries in this time range."}`),
    h("div", { class: "row" }, more),
  ];
}

export const audit = {
  title: "Audit",
  open: (query) => {
    const view = { still: form(query) };
    const wanted = Object.fromEntries(NAMES.map((name) => [name, query.get(name)]));
    view.load = () => ask(withQuery("audit", { ...wanted, cursor: view.cursor }));
    view.draw = (found, refresh) => draw(found, view, refresh);
    return view;
  },
};
