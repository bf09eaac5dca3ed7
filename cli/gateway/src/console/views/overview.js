// The current state of the fleet: backlog with ages, rates, processes.

import { ask, whoami } from "../api.js";
import { h, span, storyLink, table } from "../dom.js";
import { errors } from "./causes.js";

const tile = (name, value, more) => h("li", {}, name, h("b", {}, String(value)), h("small", {}, more ?? ""));
const rate = (found) => (found === null || found === undefined ? "–" : `${found}/s`);
const megabytes = (bytes) => `${(bytes / 1_048_576).toFixed(1)} MiB`;

function tiles(fleet) {
  const { backlog, rates, slots, server } = fleet;
  const waiting = backlog.map((one) => tile(one.state, one.count, one.oldest_ms ? `oldest ${span(one.oldest_ms)}` : one.unit));
  const bound = server.max_bytes ? `of ${megabytes(server.max_bytes)}` : "no maximum set";
  return h("ul", { class: "tiles" }, waiting,
    tile("paused", fleet.paused, "tenants, agents, tools"),
    tile("calls", rate(rates.calls), "that ended"),
    tile("turns", rate(rates.turns), "that came in"),
    tile("slots busy", `${slots.busy} of ${slots.all}`, "of all workers"),
    tile("Redis memory", megabytes(server.used_bytes), bound));
}

/** States in which turns and tasks wait. If any turn or task waits, "No warnings" is not shown as a good sign. */
const WAITS = ["inbound turns", "inbound tasks", "ready", "capped", "delayed"];

function warnings({ warnings: found, backlog }) {
  if (found.length) return h("ul", {}, found.map((warning) => h("li", { class: "doubt" }, warning)));
  const waiting = backlog.filter((one) => one.count && WAITS.includes(one.state));
  if (!waiting.length) return h("p", { class: "good" }, "No warnings.");
  return h("p", {}, `No warnings. Waiting: ${waiting.map((one) => `${one.count} ${one.unit} (${one.state})`).join(", ")}.`);
}

const nodes = (found) => table("Schedulers and workers", [
  ["Process", (node) => node.name],
  ["Kind", (node) => node.kind],
  ["Shard", (node) => node.shard, true],
  ["State", (node) => h("span", { class: node.alive ? "good" : "bad" }, node.alive ? "alive" : "dead")],
  ["Last heartbeat", (node) => (node.beat_age_ms === null ? "" : `${span(node.beat_age_ms)} ago`)],
  ["Slots busy", (node) => (node.slots ? `${node.slots.busy} of ${node.slots.all}` : ""), true],
], found);

const used = (count, max) => (max === undefined ? count : `${count} of ${max}`);

const agents = (found, isWhole) => table(isWhole ? "Agents and limits that turns wait for" : "Agents and limits that turns wait for (not all are known yet)", [
  ["Agent or limit", (agent) => (agent.limit ? `limit ${agent.limit}` : `${agent.tenant}:${agent.agent}`)],
  ["Turns", (agent) => agent.turns, true],
  ["Oldest", (agent) => span(agent.oldest_ms)],
  ["Next check in", (agent) => span(agent.due_in_ms)],
  ["Tick used", (agent) => used(agent.tick_used, agent.tick_max), true],
  ["Day used", (agent) => used(agent.day_used, agent.day_max), true],
  ["First turn", (agent) => (agent.first ? storyLink(agent.first) : "")],
], found);

const fleet = (failed) => ({
  every_ms: 2000,
  is_fleet: true,
  load: () => ask("overview"),
  draw: (found) => [
    tiles(found), h("h2", {}, "Warnings"), warnings(found),
    h("h2", {}, "Errors by cause"), failed(),
    h("h2", {}, "Waiting"), found.agents.length ? agents(found.agents, found.agents_whole) : h("p", {}, "No turns wait for a tick, a day or a limit."),
    h("h2", {}, "Processes"), nodes(found.nodes),
    h("p", { class: "soft" }, `Redis ${found.server.version} at ${found.redis}; policy generation ${found.policy_generation}`),
  ],
});

/** The overview for a key of one tenant: its own turns and approvals, no fleet-wide figures. */
const ofTenant = (failed) => ({
  every_ms: 5000,
  load: async () => ({ page: await ask("turns?limit=200"), approvals: await ask("approvals?limit=500"), pauses: await ask("pauses") }),
  draw: ({ page, approvals, pauses }) => {
    const states = ["lane", "ready", "running", "parked", "ending"];
    const count = (state) => page.turns.filter((turn) => turn.state === state).length;
    const running = page.turns.filter((turn) => turn.state === "running");
    return [
      h("p", { class: "soft" }, `This key is for the tenant ${whoami().tenant}: fleet-wide figures need a key for all tenants.`),
      h("ul", { class: "tiles" }, states.map((state) => tile(state, count(state), page.next ? "of those found so far" : "turns")),
        tile("approvals", approvals.approvals.length, "waiting for approvers"), tile("paused", pauses.pauses.length, "tenant or agents")),
      h("h2", {}, "Running"),
      running.length ? h("ul", {}, running.map((turn) => h("li", {}, storyLink(`${turn.tenant}:${turn.id}`)))) : h("p", {}, "Nothing runs."),
      h("h2", {}, "Errors by cause"), failed(),
    ];
  },
});

export const overview = {
  title: "Overview",
  open: () => (whoami().tenant ? ofTenant : fleet)(errors()),
};
