import { ask, withQuery } from "../api.js";
import { share } from "../charts.js";
import { count, fromNow, span } from "../format.js";
import { live } from "../live.js";
import { AGENT, TENANT, card, chip, empty, filters, h, link, storyLink, table } from "../ui.js";

function beyond(limit) {
  if (limit.mode === "shadow") return "calls over the limit are only counted (shadow)";
  return limit.on_reach === "reject" ? "calls over the limit are rejected" : "calls over the limit wait";
}

function used(counter) {
  if (counter.unreadable) return chip("bad", "unreadable: counts as used up");
  const text = counter.allowed === null ? count(counter.used) : `${count(counter.used)} of ${count(counter.allowed)}`;
  const isFull = counter.full_in > 0;
  return h("span", { class: "nowrap" }, h("span", { class: isFull ? "doubt" : undefined }, isFull ? `${text}, full ` : `${text} `), counter.allowed ? share(Number(counter.used), Number(counter.allowed), isFull ? "refused" : "info") : null);
}

/** Lists the turns that wait for a limit or cap. */
const waitingTurns = (limit, who, ...text) => link("turns", { ...who, waits_for: limit.name.split(" ")[0] }, ...text);

/** Shows how many turns wait for a counter, as a link to these turns. The counter of a cap is `tenant:agent`. */
function whoWaits(limit, counter) {
  if (!counter.waiting) return counter.waiting === undefined ? "not counted" : "0";
  const [tenant, agent] = limit.isCap ? counter.counter.split(":") : [];
  return waitingTurns(limit, { tenant, agent }, count(counter.waiting));
}

/** Returns all limits and caps. */
const all = ({ limits, caps }) => [...limits, ...caps.map((cap) => ({ ...cap, isCap: true }))];

function one(limit, nowMs, isDetail) {
  const counters = () => table({
    caption: `Counters of ${limit.name}: ${limit.counters.length} of ${count(limit.total)}`, plain: !isDetail, csv: isDetail, key: (counter) => `${counter.counter} ${counter.shard ?? ""}`, rows: limit.counters, columns: [
      { name: "Counter", value: (counter) => (counter.counter || "all calls") + (counter.shard === undefined ? "" : ` (shard ${counter.shard})`) },
      { name: "Used", number: true, value: (counter) => Number(counter.used), cell: used },
      { name: "Window ends", number: true, value: (counter) => counter.window_ends_ms, cell: (counter) => (limit.is_held ? "when calls end" : fromNow(counter.window_ends_ms, nowMs)) },
      { name: "Waiting", number: true, value: (counter) => counter.waiting, cell: (counter) => whoWaits(limit, counter) },
    ],
  });
  const fullest = limit.counters[0];
  const isFull = limit.counters.some((counter) => counter.full_in > 0);
  const title = isDetail ? limit.name : link("limit", { name: limit.name }, limit.name);
  return h("section", { key: limit.name, class: "card limit", "aria-label": limit.name },
    h("div", { class: "head" }, h("h2", {}, title), isFull ? chip("doubt", "full") : fullest ? null : chip("", "unused"), limit.mode === "shadow" ? chip("doubt", "shadow") : null),
    h("p", {}, limit.allows ? `${limit.allows}; ${beyond(limit)}` : "This gateway's configuration does not have this limit."),
    limit.counters.length ? counters() : h("p", { class: "soft" }, "No calls counted recently."),
    limit.complete ? null : h("p", { class: "doubt" }, `${limit.counters_read} of ${limit.total} counters were read: others may be fuller.`));
}

const isFull = (limit) => limit.counters.some((counter) => counter.full_in > 0);
const isUsed = (limit) => limit.counters.length > 0;

export const limits = {
  title: "Limits",
  open: (query) => ({
    every_ms: 5000,
    bar: () => filters("limits", query, [TENANT, AGENT]),
    load: () => ask(withQuery("limits", { tenant: query.get("tenant"), agent: query.get("agent") })),
    draw: (found) => [
      found.policy.in_force.some((digest) => digest && digest !== found.policy.here) ? h("p", { class: "doubt" }, "The fleet uses another configuration than this gateway: its limits may differ.") : null,
      h("div", { class: "cards" }, all(found).sort((a, b) => isFull(b) - isFull(a) || isUsed(b) - isUsed(a)).map((limit) => one(limit, found.now_ms))),
    ],
  }),
};

function waiting(name) {
  const rows = live.fleet?.agents.filter((row) => (row.limit ?? `${row.tenant}:${row.agent}`) === name) ?? [];
  if (!rows.length) return card("Who waits", empty("No turns are known to wait for it."));
  return table({ caption: "Who waits", plain: true, rows, key: (row) => row.first, columns: [
    { name: "First turn", cell: (row) => (row.first ? storyLink(row.first) : "") }, { name: "Turns", number: true, cell: (row) => count(row.turns) },
    { name: "Oldest", number: true, cell: (row) => span(row.oldest_ms) }, { name: "Next check in", number: true, cell: (row) => span(row.due_in_ms) },
  ] });
}

export const limit = {
  title: "Limit",
  of: "limits",
  titleOf: (query) => `Limit ${query.get("name") ?? ""}`,
  open: (query) => {
    const name = query.get("name") ?? "";
    return {
      every_ms: 4000,
      load: () => ask(withQuery("limits", { limit: name, top: 100 })),
      draw: (found) => {
        const limitFound = all(found).find((one_) => one_.name === name);
        return [limitFound ? one(limitFound, found.now_ms, true) : empty("No such limit."), waiting(name), h("p", {}, limitFound && limitFound.on_reach !== "reject" && [waitingTurns(limitFound, {}, "Turns that wait for it"), " · "], link("rules", {}, "Rules and limits with their denials"), " · ", link("audit", { text: name }, "in the audit log"))];
      },
    };
  },
};
