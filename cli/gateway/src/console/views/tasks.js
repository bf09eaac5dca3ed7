import { ask, may, withQuery } from "../api.js";
import { cancel, cancelAll } from "../actions.js";
import { count } from "../format.js";
import { cut } from "../text.js";
import { AGENT, FROM, TENANT, UNTIL, age, button, chip, copy, empty, filters, h, learn, link, outcome, pager, storyLink, table } from "../ui.js";
import { nameOf, wantedOf } from "./turns.js";

const STATES = ["", "waiting", "running", "ended"];
const NAMES = ["tenant", "agent", "state", "outcome"];
const FIELDS = [TENANT, AGENT, { name: "state", label: "State", options: STATES }, { name: "outcome", label: "Outcome", list: "outcome" }, FROM, UNTIL, { name: "text", label: "Text", help: "part of an id", wide: true }];
export const taskState = (task) => (task.outcome ? outcome(task.outcome) : chip(task.state === "running" ? "info" : task.state === "waiting" ? "doubt" : "", task.state));

function draw(found, view, query, refresh) {
  const { chosen } = view;
  const { wanted, matches } = wantedOf(query, NAMES);
  const rows = found.items.filter(matches);
  const living = new Set(rows.filter((task) => task.state !== "ended").map(nameOf));
  for (const id of chosen) if (!living.has(id)) chosen.delete(id);
  const columns = [
    { name: "Task", value: nameOf, cell: (task) => h("span", { class: "id" }, storyLink(nameOf(task)), copy(nameOf(task))) },
    { name: "Agent", value: (task) => task.agent, cell: (task) => link("tasks", { ...Object.fromEntries(query), agent: task.agent }, task.agent) },
    { name: "From", value: (task) => task.delegator ?? "" },
    { name: "State", value: (task) => task.outcome ?? task.state, cell: taskState },
    { name: "Accepted", value: (task) => task.accepted_ms, cell: (task) => age(task.accepted_ms, found.now_ms), number: true },
    { name: "Ended", value: (task) => task.ended_ms, cell: (task) => age(task.ended_ms, found.now_ms), number: true },
    { name: "Waits for", value: (task) => task.waits_for, cell: (task) => (task.waits_for ? storyLink(`${task.tenant}:${task.waits_for.split(":").at(-1)}`) : "") },
    { name: "Task in words", class: "long", value: (task) => cut(task.description ?? "", 80) },
  ];
  if (may("operate")) columns.push({ name: "Action", cell: (task) => (task.state === "ended" ? "" : button("Cancel …", () => cancel([nameOf(task)], "task", refresh), { class: "quiet", "aria-label": `Cancel ${nameOf(task)}` })) });
  return [
    found.list_restarted ? h("p", { class: "doubt" }, "The position in the list has expired: the list starts over.") : null,
    may("operate") ? h("div", { class: "row actions" },
      button(chosen.size ? `Cancel selected (${chosen.size}) …` : "Cancel selected …", async () => { if (await cancel([...chosen], "task", refresh)) chosen.clear(); }, { disabled: !chosen.size }),
      button("Cancel all that match …", () => cancelAll({ kind: "task", wanted, matches, refresh }), { disabled: !living.size })) : null,
    rows.length ? table({ caption: `${count(rows.length)} tasks${found.next ? ", and maybe more" : ""}`, columns, rows, key: nameOf, chosen: may("operate") ? chosen : undefined, canChoose: (task) => task.state !== "ended", csv: true }) : empty("No tasks match."),
    pager(view, found.next, refresh),
  ];
}

export const tasks = {
  title: "Tasks",
  open: (query, refresh) => {
    const view = { chosen: new Set(), every_ms: 5000, bar: () => filters("tasks", query, FIELDS) };
    view.load = async () => {
      const found = await ask(withQuery("tasks", { ...wantedOf(query, NAMES).wanted, limit: 100, from: view.from }));
      learn({ tenant: found.items.map((task) => task.tenant), agent: found.items.map((task) => task.agent) });
      return found;
    };
    view.draw = (found) => draw(found, view, query, refresh);
    return view;
  },
};
