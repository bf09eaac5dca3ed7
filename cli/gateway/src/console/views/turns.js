// Turns in progress, by filter. Several can be canceled at once.

import { ask, may, withQuery } from "../api.js";
import { confirm, field, fromNow, h, reasonField, say, storyLink, table } from "../dom.js";

const STATES = ["lane", "ready", "running", "parked", "ending"];
const NAMES = ["tenant", "agent", "tool", "state", "older_than_s"];

function filters(query) {
  const value = (name) => query.get(name) ?? "";
  const option = (state) => h("option", { value: state, selected: state === value("state") }, state || "any");
  const enter = (event) => {
    event.preventDefault();
    location.hash = `#/${withQuery("turns", Object.fromEntries(new FormData(event.target)))}`;
  };
  return h("form", { class: "row", "aria-label": "Which turns", submit: enter },
    field("Tenant", { name: "tenant", value: value("tenant") }), field("Agent", { name: "agent", value: value("agent") }),
    field("Tool", { name: "tool", value: value("tool") }), field("State", { name: "state" }, ...["", ...STATES].map(option)),
    field("Older than (s)", { name: "older_than_s", type: "number", min: 0, value: value("older_than_s") }),
    h("button", {}, "Show"));
}

async function endMany(ids, chosen, refresh) {
  const act = async (data) => {
    const done = await ask("cancel", { method: "POST", body: { ids, reason: data.get("reason") } });
    const ended = done.filter((one) => one.answer === "ok" || one.answer === "flagged").length;
    say(`${ended} of ${done.length} cancelled; the others had already ended or are unknown.`);
    chosen.clear();
  };
  const shown = `${ids.slice(0, 10).join(", ")}${ids.length > 10 ? ` and ${ids.length - 10} more` : ""}`;
  const title = `Cancel ${ids.length} ${ids.length === 1 ? "turn" : "turns"}?`;
  if (await confirm({ title, text: `${shown}. Running calls are stopped; a once call then ends as outcome_unknown.`, fields: [reasonField()], button: "Cancel them", act })) refresh();
}

function draw(page, view, refresh) {
  const { chosen } = view;
  const idOf = (turn) => `${turn.tenant}:${turn.id}`;
  const shown = new Set(page.turns.map(idOf));
  for (const id of chosen) if (!shown.has(id)) chosen.delete(id);
  const end = h("button", { id: "end-chosen", disabled: !chosen.size, click: () => endMany([...chosen], chosen, refresh) }, "Cancel selected");
  const choose = (turn) => h("input", {
    type: "checkbox", id: `choose-${idOf(turn)}`, "aria-label": `Select ${idOf(turn)}`, checked: chosen.has(idOf(turn)),
    change: (event) => {
      if (event.target.checked) chosen.add(idOf(turn));
      else chosen.delete(idOf(turn));
      end.disabled = !chosen.size;
    },
  });
  const columns = [
    ["Turn", (turn) => storyLink(idOf(turn))], ["Agent", (turn) => turn.agent], ["State", (turn) => turn.state],
    ["Admitted", (turn) => fromNow(turn.accepted_ms, page.now_ms)], ["Done", (turn) => `${turn.done} of ${turn.calls}`, true],
    ["Calls left", (turn) => turn.tools.join(", ")],
  ];
  if (may("operate")) columns.unshift(["Select", choose]);
  const next = page.next ? h("button", { id: "more-turns", click: () => { view.from = page.next; refresh(); } }, "Next page") : null;
  const first = view.from ? h("button", { id: "first-turns", click: () => { view.from = undefined; refresh(); } }, "From the beginning") : null;
  return [
    page.turns.length ? table(`${page.turns.length} turns in progress${page.next ? ", and maybe more" : ""}`, columns, page.turns) : h("p", {}, "No turns match."),
    h("div", { class: "row" }, may("operate") ? end : null, first, next),
  ];
}

export const turns = {
  title: "Turns",
  open: (query) => {
    const view = { chosen: new Set(), still: filters(query), every_ms: 10_000 };
    const wanted = Object.fromEntries(NAMES.map((name) => [name, query.get(name)]));
    view.load = () => ask(withQuery("turns", { ...wanted, limit: 100, from: view.from }));
    view.draw = (page, refresh) => draw(page, view, refresh);
    return view;
  },
};
