// Tasks by filter. Several can be canceled at once.

import { ask, may, withQuery } from "../api.js";
import { confirm, field, fromNow, h, reasonField, say, storyLink, table } from "../dom.js";
import { cut } from "../text.js";

const STATES = ["waiting", "running", "ended"];
const NAMES = ["tenant", "agent", "state", "outcome", "older_than_s"];
const nameOf = (task) => `${task.tenant}:${task.id}`;

function filters(query) {
  const value = (name) => query.get(name) ?? "";
  const option = (state) => h("option", { value: state, selected: state === value("state") }, state || "any");
  const enter = (event) => {
    event.preventDefault();
    location.hash = `#/${withQuery("tasks", Object.fromEntries(new FormData(event.target)))}`;
  };
  return h("form", { class: "row", "aria-label": "Which tasks", submit: enter },
    field("Tenant", { name: "tenant", value: value("tenant") }), field("Agent", { name: "agent", value: value("agent") }),
    field("State", { name: "state" }, ...["", ...STATES].map(option)), field("Outcome", { name: "outcome", value: value("outcome") }),
    field("Older than (s)", { name: "older_than_s", type: "number", min: 0, value: value("older_than_s") }), h("button", {}, "Show"));
}

async function endMany(ids, chosen, refresh) {
  const act = async (data) => {
    const done = await ask("cancel", { method: "POST", body: { ids, reason: data.get("reason") } });
    const ended = done.filter((one) => one.answer === "ok" || one.answer === "flagged").length;
    say(`${ended} of ${done.length} cancelled; the others had already ended or are unknown.`);
    chosen.clear();
  };
  const shown = `${ids.slice(0, 10).join(", ")}${ids.length > 10 ? ` and ${ids.length - 10} more` : ""}`;
  const title = `Cancel ${ids.length} ${ids.length === 1 ? "task" : "tasks"}?`;
  if (await confirm({ title, text: `${shown}. Everything they began ends with them.`, fields: [reasonField()], button: "Cancel them", act })) refresh();
}

function draw(page, view, refresh) {
  const { chosen } = view;
  const living = page.tasks.filter((task) => task.state !== "ended").map(nameOf);
  for (const id of chosen) if (!living.includes(id)) chosen.delete(id);
  const end = h("button", { id: "end-tasks", disabled: !chosen.size, click: () => endMany([...chosen], chosen, refresh) }, "Cancel selected");
  const choose = (task) => living.includes(nameOf(task)) && h("input", {
    type: "checkbox", id: `choose-${nameOf(task)}`, "aria-label": `Select ${nameOf(task)}`, checked: chosen.has(nameOf(task)),
    change: (event) => {
      if (event.target.checked) chosen.add(nameOf(task));
      else chosen.delete(nameOf(task));
      end.disabled = !chosen.size;
    },
  });
  const columns = [
    ["Task", (task) => storyLink(nameOf(task))], ["Agent", (task) => task.agent], ["State", (task) => task.outcome ?? task.state],
    ["Accepted", (task) => fromNow(task.accepted_ms, page.now_ms)], ["Ended", (task) => fromNow(task.ended_ms, page.now_ms)],
    ["Waits for", (task) => task.waits_for], ["What", (task) => cut(task.description ?? "", 80)],
  ];
  if (may("operate")) columns.unshift(["Select", (task) => choose(task) || null]);
  const next = page.next ? h("button", { id: "more-tasks", click: () => { view.from = page.next; refresh(); } }, "Next page") : null;
  const first = view.from ? h("button", { id: "first-tasks", click: () => { view.from = undefined; refresh(); } }, "From the newest") : null;
  return [
    page.list_restarted ? h("p", { class: "doubt" }, "The position in the list has expired: the list starts over.") : null,
    page.tasks.length ? table(`${page.tasks.length} tasks${page.next ? ", and maybe more" : ""}`, columns, page.tasks) : h("p", {}, "No tasks match."),
    h("div", { class: "row" }, may("operate") ? end : null, first, next),
  ];
}

export const tasks = {
  title: "Tasks",
  open: (query) => {
    const view = { chosen: new Set(), still: filters(query), every_ms: 10_000 };
    const wanted = Object.fromEntries(NAMES.map((name) => [name, query.get(name)]));
    view.load = () => ask(withQuery("tasks", { ...wanted, limit: 100, from: view.from }));
    view.draw = (page, refresh) => draw(page, view, refresh);
    return view;
  },
};
