import { ask, may, now, withQuery } from "../api.js";
import { cancel, cancelAll, pauseAll } from "../actions.js";
import { count, range, workerOf } from "../format.js";
import { AGENT, FROM, TENANT, TOOL, UNTIL, age, button, chip, copy, empty, filters, h, learn, link, pager, storyLink, table } from "../ui.js";

const NAMES = ["tenant", "agent", "tool", "state", "waits_for"];
const STATES = ["", "throttled", "ready", "running", "parked", "ending"];
const WORDS = { throttled: "waits for a cap or limit", ready: "ready", running: "running", parked: "waits", ending: "ends" };
const MOODS = { throttled: "doubt", running: "info", parked: "doubt" };
const FIELDS = [TENANT, AGENT, TOOL, { name: "state", label: "State", options: STATES }, { name: "waits_for", label: "Waits for", list: "limit" }, FROM, UNTIL, { name: "text", label: "Text", help: "part of an id", wide: true }];
export const nameOf = (one) => `${one.tenant}:${one.id}`;

/** Returns `wanted`, the query for the gateway, and `matches`, a function that applies the rest of the filter. */
export function wantedOf(query, names, hasRange) {
  const { from, until } = range(query, now());
  const text = (query.get("text") ?? "").toLowerCase();
  const wanted = Object.fromEntries(names.map((name) => [name, query.get(name)]));
  if (hasRange) Object.assign(wanted, { from_ms: from, until_ms: until });
  else if (until) wanted.older_than_s = Math.max(0, Math.ceil((now() - until) / 1000));
  const matches = (one) => (!from || one.accepted_ms >= from) && (!until || one.accepted_ms <= until)
    && (!text || [nameOf(one), one.agent, one.description, ...(one.tools ?? [])].some((part) => part?.toLowerCase().includes(text)));
  return { wanted, matches };
}

function draw(found, view, query, refresh) {
  const { chosen } = view;
  const { wanted, matches } = wantedOf(query, NAMES, true);
  const rows = found.items.filter(matches);
  const shown = new Set(rows.map(nameOf));
  for (const id of chosen) if (!shown.has(id)) chosen.delete(id);
  const only = (name, value) => link("turns", { ...Object.fromEntries(query), [name]: value }, value);
  const columns = [
    { name: "Turn", value: nameOf, cell: (turn) => h("span", { class: "id" }, storyLink(nameOf(turn)), copy(nameOf(turn))) },
    { name: "Agent", value: (turn) => turn.agent, cell: (turn) => only("agent", turn.agent) },
    { name: "State", value: (turn) => turn.state, cell: (turn) => chip(MOODS[turn.state] ?? "", WORDS[turn.state] ?? turn.state) },
    { name: "Admitted", value: (turn) => turn.accepted_ms, cell: (turn) => age(turn.accepted_ms, found.now_ms), number: true },
    { name: "Expires", value: (turn) => turn.deadline_ms, cell: (turn) => age(turn.deadline_ms, found.now_ms), number: true },
    { name: "Done", value: (turn) => turn.done, cell: (turn) => `${turn.done} of ${turn.calls}`, number: true },
    { name: "Calls left", value: (turn) => turn.tools.join(", "), cell: (turn) => turn.tools.map((tool, at) => [at ? ", " : "", link("tool", { name: tool }, tool)]) },
    { name: "Worker", value: (turn) => workerOf(turn.holder), cell: (turn) => (turn.holder ? link("worker", { name: workerOf(turn.holder) }, workerOf(turn.holder)) : "") },
  ];
  if (may("operate")) columns.push({ name: "Action", cell: (turn) => button("Cancel …", () => cancel([nameOf(turn)], "turn", refresh), { class: "quiet", "aria-label": `Cancel ${nameOf(turn)}` }) });
  const cut = found.items.length > rows.length ? ` of ${count(found.items.length)}` : "";
  return [
    may("operate") ? h("div", { class: "row actions" },
      button(chosen.size ? `Cancel selected (${chosen.size}) …` : "Cancel selected …", async () => { if (await cancel([...chosen], "turn", refresh)) chosen.clear(); }, { disabled: !chosen.size }),
      button("Cancel all that match …", () => cancelAll({ kind: "turn", wanted, matches, refresh }), { disabled: !rows.length }),
      button("Pause the agents of all that match …", () => pauseAll({ wanted, matches, refresh }), { disabled: !rows.length })) : null,
    rows.length ? table({ caption: `${count(rows.length)}${cut} turns in progress${found.next ? ", and maybe more" : ""}`, columns, rows, key: nameOf, chosen: may("operate") ? chosen : undefined, csv: true }) : empty("No turns match."),
    pager(view, found.next, refresh, "From the beginning"),
  ];
}

export const turns = {
  title: "Turns",
  open: (query, refresh) => {
    const view = { chosen: new Set(), every_ms: 4000, bar: () => filters("turns", query, FIELDS) };
    view.load = async () => {
      const found = await ask(withQuery("turns", { ...wantedOf(query, NAMES, true).wanted, limit: 200, from: view.from }));
      learn({ tenant: found.items.map((turn) => turn.tenant), agent: found.items.map((turn) => turn.agent), tool: found.items.flatMap((turn) => turn.tools) });
      return found;
    };
    view.draw = (found) => draw(found, view, query, refresh);
    return view;
  },
};
