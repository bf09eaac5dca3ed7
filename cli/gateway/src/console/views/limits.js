// Caps and limits, each with its fullest counters.

import { ask, withQuery } from "../api.js";
import { field, fromNow, h, table } from "../dom.js";

function beyond(limit) {
  if (limit.mode === "shadow") return "calls over the limit are only counted (shadow)";
  return limit.on_reach === "reject" ? "calls over the limit are rejected" : "calls over the limit wait";
}

function used(counter) {
  if (counter.unreadable) return h("span", { class: "bad" }, "unreadable: counts as used up");
  const text = counter.allowed === null ? `${counter.used}` : `${counter.used} of ${counter.allowed}`;
  const isFull = counter.full_in > 0;
  const words = h("span", { class: isFull ? "doubt" : undefined }, isFull ? `${text}, full` : text);
  if (!counter.allowed) return words;
  return [words, " ", h("meter", { min: 0, max: counter.allowed, value: Math.min(counter.used, counter.allowed), "aria-label": text })];
}

function one(limit, nowMs) {
  const counters = table(`Counters of ${limit.name}: ${limit.counters.length} of ${limit.total}`, [
    ["Counter", (counter) => (counter.counter || "all calls") + (counter.shard === undefined ? "" : ` (shard ${counter.shard})`)],
    ["Used", used],
    ["Window ends", (counter) => (limit.is_held ? "when calls end" : fromNow(counter.window_ends_ms, nowMs))],
    ["Waiting", (counter) => counter.waiting ?? "not counted", true],
  ], limit.counters);
  return h("section", { class: "card", "aria-label": limit.name },
    h("h2", {}, limit.name),
    h("p", {}, limit.allows ? `${limit.allows}; ${beyond(limit)}` : "This gateway's configuration does not have this limit."),
    limit.counters.length ? counters : h("p", { class: "soft" }, "No calls counted recently."),
    limit.complete ? null : h("p", { class: "doubt" }, `${limit.looked_at} of ${limit.total} counters were read: others may be fuller.`));
}

function form(query) {
  const enter = (event) => {
    event.preventDefault();
    location.hash = `#/${withQuery("limits", Object.fromEntries(new FormData(event.target)))}`;
  };
  const value = (name) => query.get(name) ?? "";
  return h("form", { class: "row", "aria-label": "Whose limits", submit: enter },
    field("Tenant", { name: "tenant", value: value("tenant") }), field("Agent", { name: "agent", value: value("agent") }), h("button", {}, "Show"));
}

export const limits = {
  title: "Limits",
  open: (query) => ({
    every_ms: 10_000,
    still: form(query),
    load: () => ask(withQuery("limits", { tenant: query.get("tenant"), agent: query.get("agent") })),
    draw: (found) => [
      found.policy.in_force.some((digest) => digest && digest !== found.policy.here)
        ? h("p", { class: "doubt" }, "The fleet uses another configuration than this gateway: its limits may differ.") : null,
      ...[...found.caps, ...found.limits].map((limit) => one(limit, found.now_ms)),
    ],
  }),
};
