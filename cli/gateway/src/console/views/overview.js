import { ask, may, whoami, now, withQuery } from "../api.js";
import { pause } from "../actions.js";
import { SERIES, share, spark, stack } from "../charts.js";
import { count, money, span, tally, workerOf } from "../format.js";
import { live } from "../live.js";
import { age, button, card, chip, empty, h, keepInLink, known, link, page, redraw, storyLink, table } from "../ui.js";

/** Returns the text, view and query of a link: to one subject if `name` is given, otherwise to the list. */
const ofOne = (one, all, name) => (name ? [one[0].toUpperCase() + one.slice(1), one, { name }] : [all[0].toUpperCase() + all.slice(1), all, {}]);
const workers = (name) => ofOne("worker", "workers", name);

/**
 * Returns the link for a full limit or cap. The name of a cap is a tenant, or `tenant:agent`; its link lists waiting
 * turns.
 */
function ofLimit(name) {
  if (!name || known.limit.has(name)) return ofOne("limit", "limits", name);
  const [tenant, agent] = name.split(":");
  return ["Turns", "turns", { tenant, agent, state: "throttled" }];
}

// By kind of finding: the text of the link, the view and its query.
const LEADS = {
  unknown_outcomes: () => ["Check them", "dead", { cause: "outcome_unknown", from: "1h" }],
  approvals_wait: () => ["Decide", "approvals"],
  tool_fails: (name) => (name ? ["Why", "tool", { name }] : ["Tools", "tools"]),
  process_dead: () => ["Workers", "workers"],
  worker_drained: workers,
  worker_stuck: workers,
  limit_full: ofLimit,
  paused: () => ["Pauses", "pauses"],
  waiting: () => ["Turns", "turns"],
  dead_messages: () => ["Dead letters", "dead", { kind: "letter" }],
  store: () => ["Configuration", "config"],
  other: (name) => (known.tool.has(name) ? ["Tool", "tool", { name }] : []),
};
const MOOD = { bad: "bad", doubt: "doubt", info: "info" };
const WORD = { bad: "Problem", doubt: "Warning", info: "Note" };
const WAITING = ["inbound turns", "inbound tasks", "ready", "capped", "delayed"];
/** States of turns that wait in a throttle queue. */
const CAPPED = ["capped", "delayed"];
const RANGES = { minute: "last minutes", hour: "last hour", day: "last day", week: "last 7 days" };
const SPANS = { hour: 3_600_000, day: 86_400_000, week: 604_800_000 };
const SLOW_MS = 60_000;
const FAST_MS = 10_000;

const sum = (list, of) => list.reduce((all, one) => all + of(one), 0);
const calls = (fleet) => tally(fleet.tools.rows.reduce((all, row) => {
  for (const [name, number] of Object.entries(row.outcomes)) all[name] = (all[name] ?? 0) + number;
  return all;
}, {}));
const backlog = (fleet, names) => fleet.backlog.filter((one) => names.includes(one.state));
const oldest = (rows) => Math.max(0, ...rows.map((one) => one.oldest_ms ?? 0));

/**
 * Returns a function for data that the live stream does not contain. The data is requested at most every `everyMs` ms.
 * Until new data arrives, the function returns the previous data.
 */
function beside(path, everyMs) {
  const found = { data: undefined, wrong: "", at: 0 };
  return () => {
    if (Date.now() - found.at >= everyMs && !document.hidden) {
      found.at = Date.now();
      ask(typeof path === "function" ? path() : path).then((data) => Object.assign(found, { data, wrong: "" }), (error) => { found.wrong = error.message; }).finally(redraw);
    }
    return found;
  };
}

/** Number of findings that are shown at first. */
const FIRST = 6;

function attention(findings) {
  const isAll = page.place.query.has("findings");
  const shown = isAll ? findings : findings.slice(0, FIRST);
  const rows = shown.map((one, at) => {
    const [word, view, query] = LEADS[one.kind]?.(one.subject) ?? [];
    return h("li", { key: at }, h("span", { class: `dot ${MOOD[one.severity] ?? "info"}`, role: "img", "aria-label": WORD[one.severity] ?? "Note" }),
      h("span", { class: "text", title: one.text }, one.text), view ? h("a", { href: `#/${withQuery(view, query ?? {})}`, title: one.action }, word) : null);
  });
  const more = findings.length > FIRST ? button(isAll ? "Show fewer" : `Show ${findings.length - FIRST} more`, () => keepInLink({ findings: isAll ? "" : "all" }), { class: "quiet" }) : null;
  return h("section", { class: "card attention", "aria-label": "Needs attention" },
    h("div", { class: "head" }, h("h2", {}, findings.length ? `Needs attention · ${findings.length}` : "Needs attention"), h("span", { class: "grow" }), more),
    findings.length ? h("ul", {}, rows) : h("p", { class: "calm" }, h("span", { class: "dot good", "aria-hidden": "true" }), "Nothing needs attention."));
}

const tile = (name, value, more, past, mood = "", to) => h("li", { key: name }, h(to ? "a" : "div", { href: to && `#/${to}`, class: "tile" },
  h("span", { class: "label" }, name), h("b", { class: mood }, value), h("small", {}, more), past ? spark(past, mood) : null));

function tiles(fleet, used) {
  const at = calls(fleet);
  const waiting = backlog(fleet, WAITING);
  const past = (of) => live.past.map((one) => of(one.fleet));
  const waits = sum(waiting, (one) => one.count);
  const busy = oldest(backlog(fleet, ["running"]));
  const isFailing = at.failed + at.unknown > 0;
  const models = used.data?.models;
  const rate = (number) => (number === null || number === undefined ? "–" : count(number));
  return h("ul", { class: "tiles" },
    tile("Calls a second", rate(fleet.rates.calls), `${rate(fleet.rates.turns)} turns/s come in`, past((one) => one.rates.calls ?? 0), "", "stats"),
    tile("Failed, last minute", count(at.failed + at.unknown), `of ${count(at.all)} calls`, past((one) => calls(one).failed + calls(one).unknown), isFailing ? "bad" : "", withQuery("dead", { from: "1h" })),
    tile("Refused by policy", count(at.refused), "caps and rules", past((one) => calls(one).refused), at.refused ? "doubt" : "", "rules"),
    tile("Waiting", count(waits), waits ? `oldest ${span(oldest(waiting))}` : "no turns or tasks", past((one) => sum(backlog(one, WAITING), (row) => row.count)), sum(backlog(fleet, CAPPED), (one) => one.count) ? "doubt" : "", "turns?state=throttled"),
    tile("Running", `${count(fleet.slots.busy)} of ${count(fleet.slots.all)}`, busy ? `longest ${span(busy)}` : "slots", past((one) => one.slots.busy), "", "workers"),
    tile("Models today", models ? money(models.cost) : "–", models ? `${count(models.input_tokens + models.output_tokens)} tokens` : used.wrong || "…", undefined, "", "stats?by=tenant"));
}

/** Draws calls over time: the snapshots of the last minutes, or the history that the gateway keeps. */
function over(fleet, history) {
  const chosen = Object.hasOwn(RANGES, page.place.query.get("range") ?? "") ? page.place.query.get("range") : "minute";
  const at = calls(fleet);
  const choice = h("div", { class: "choice", role: "group", "aria-label": "Range of the chart" }, Object.entries(RANGES).map(([name, text]) => h("button", {
    type: "button", key: name, "aria-pressed": name === chosen ? "true" : "false", onClick: () => keepInLink({ range: name === "minute" ? "" : name }),
  }, text)));
  const legend = (numbers) => h("span", { class: "legend" }, SERIES.filter(([name]) => name !== "unknown" || numbers.unknown).map(([name]) => h("span", { key: name }, h("i", { class: name }), ` ${name === "unknown" ? "outcome unknown" : name} `, h("b", {}, count(numbers[name])))));
  let chart, numbers, title;
  if (chosen === "minute") {
    const step = 2000;
    const until = Math.floor(Date.now() / step) * step + step;
    const points = new Map();
    for (const one of live.past) {
      const slot = Math.floor(one.at / step) * step;
      // If a snapshot comes up to two steps late, the previous values fill the gap.
      for (const late of [2, 3]) if (points.has(slot - late * step)) for (let at = 1; at < late; at += 1) if (!points.has(slot - at * step)) points.set(slot - at * step, points.get(slot - late * step));
      points.set(slot, calls(one.fleet));
    }
    chart = stack({ points: [...points].map(([time, point]) => ({ ...point, at: time })), from: until - 60 * step, until, step, label: `Calls of the last minute, every two seconds: ${count(at.ok)} ok, ${count(at.refused)} refused, ${count(at.failed)} failed now` });
    [numbers, title] = [at, "Calls of the last minute, every 2 s"];
  } else {
    const found = history(chosen)();
    if (!found.data) return h("section", { class: "over" }, h("div", { class: "over-head" }, h("h2", {}, `Calls, ${RANGES[chosen]}`), choice), empty(found.wrong || "Loading …"));
    const { points, step_ms: step, from_ms: from, until_ms: until, changes, gaps } = found.data;
    numbers = points.reduce((all, point) => Object.fromEntries(SERIES.map(([name]) => [name, all[name] + point[name]])), { ok: 0, refused: 0, failed: 0, unknown: 0 });
    title = `Calls, ${RANGES[chosen]}, per ${step < 3_600_000 ? "minute" : "hour"}`;
    chart = h("div", {}, stack({
      points: points.map((point) => ({ ...point, at: point.at_ms })), from, until, step, label: `${title}: ${SERIES.map(([name]) => `${name} ${count(numbers[name])}`).join(", ")}`,
      marks: changes.map((one) => ({ at: one.at_ms, text: `Configuration changed, generation ${one.generation}` })),
    }), gaps?.length || gaps === true ? h("p", { class: "soft" }, "Parts of this range were not recorded.") : null, found.wrong ? h("p", { class: "bad" }, found.wrong) : null);
  }
  return h("section", { class: "over", "aria-label": title }, h("div", { class: "over-head" }, h("h2", {}, title), legend(numbers), choice), chart);
}

function failing(fleet) {
  const rows = fleet.tools.rows.map((row) => ({ ...row, ...tally(row.outcomes) })).sort((one, other) => (other.failed + other.unknown) / other.all - (one.failed + one.unknown) / one.all || other.all - one.all).slice(0, 8);
  if (!rows.length) return card("Tools that fail most, last minute", empty("No calls ended in the last minute."));
  return table({ caption: "Tools that fail most, last minute", plain: true, key: (row) => row.tool, rows, note: fleet.tools.sampled ? "from a sample" : "", columns: [
    { name: "Tool", cell: (row) => link("tool", { name: row.tool }, row.tool) }, { name: "Calls", number: true, cell: (row) => count(row.all) },
    { name: "Failed", number: true, cell: (row) => share(row.failed + row.unknown, row.all, "failed") }, { name: "Refused", number: true, cell: (row) => share(row.refused, row.all, "refused") },
    { name: "Mean", number: true, cell: (row) => span(row.mean_ms) },
  ] });
}

function waiting(fleet) {
  const caption = fleet.agents_complete ? "What turns wait for" : "What turns wait for (not all are known yet)";
  if (!fleet.agents.length) return card(caption, empty("No turns wait for a cap or a limit.", "good"));
  return table({ caption, plain: true, key: (row) => row.first ?? row.limit ?? `${row.tenant}:${row.agent}`, rows: fleet.agents.slice(0, 8), columns: [
    { name: "Cap or limit", cell: (row) => (row.limit ? link("limit", { name: row.limit }, row.limit) : link("turns", { tenant: row.tenant, agent: row.agent, state: "throttled" }, `${row.tenant}: ${row.agent}`)) },
    { name: "Turns", number: true, cell: (row) => count(row.turns) }, { name: "Oldest", number: true, cell: (row) => span(row.oldest_ms) },
    { name: "Next in", number: true, cell: (row) => span(row.due_in_ms) }, { name: "First", cell: (row) => (row.first ? storyLink(row.first) : "") },
  ] });
}

function running(found) {
  const caption = "Running longest";
  if (!found.data) return card(caption, empty(found.wrong || "Loading …"));
  const rows = [...found.data.items].sort((one, other) => one.accepted_ms - other.accepted_ms).slice(0, 6);
  if (!rows.length) return card(caption, empty("No turns run."));
  return table({ caption, plain: true, key: (row) => `${row.tenant}:${row.id}`, rows, columns: [
    { name: "Turn", cell: (row) => storyLink(`${row.tenant}:${row.id}`) }, { name: "Calls left", cell: (row) => row.tools.join(", ") },
    { name: "Worker", cell: (row) => link("worker", { name: workerOf(row.holder) }, workerOf(row.holder)) }, { name: "Admitted", number: true, cell: (row) => age(row.accepted_ms, now()) },
  ] });
}

function tenants(found, refresh) {
  const caption = "Tenants today";
  if (!found.data) return card(caption, empty(found.wrong || "Loading …"));
  const rows = [...found.data.rows].sort((one, other) => other.calls - one.calls).slice(0, 10).map((row) => ({ ...row, ...tally(row.outcomes) }));
  if (!rows.length) return card(caption, empty("No calls today."));
  const columns = [
    { name: "Tenant", cell: (row) => link("turns", { tenant: row.tenant }, row.tenant) }, { name: "Calls", number: true, cell: (row) => count(row.calls) },
    { name: "Failed", number: true, cell: (row) => share(row.failed + row.unknown, row.all, "failed") }, { name: "Refused", number: true, cell: (row) => share(row.refused, row.all, "refused") },
    { name: "Tokens", number: true, cell: (row) => count((row.used?.input_tokens ?? 0) + (row.used?.output_tokens ?? 0)) },
    { name: "Model cost", number: true, cell: (row) => money(row.used?.cost) },
  ];
  if (may("operate")) columns.push({ name: "Action", cell: (row) => button("Pause …", () => pause({ tenant: row.tenant }, refresh), { class: "quiet", "aria-label": `Pause tenant ${row.tenant}` }) });
  return table({ caption, plain: true, key: (row) => row.tenant, rows, columns });
}

const causes = (found) => {
  const caption = "What failed most often in the last hour";
  if (!found.data) return card(caption, empty(found.wrong || "Loading …"));
  if (!found.data.causes.length) return card(caption, empty("No dead letters in the last hour.", "good"));
  return table({ caption, plain: true, key: (cause) => cause.example, rows: found.data.causes, note: link("dead", { from: "1h" }, "All causes"), columns: [
    { name: "Count", number: true, cell: (cause) => count(cause.count) }, { name: "Cause", cell: (cause) => link("dead", { from: "1h", kind: cause.kind, cause: cause.cause, tool: cause.tool, normalized_error: cause.normalized_error }, cause.cause) },
    { name: "Tool", cell: (cause) => (cause.tool ? link("tool", { name: cause.tool }, cause.tool) : "") }, { name: "Error", class: "long", cell: (cause) => cause.normalized_error ?? "" }, { name: "Newest", number: true, cell: (cause) => age(cause.newest_ms) },
  ] });
};

function nodes(fleet) {
  const rows = fleet.nodes;
  return table({ caption: "Schedulers and workers", plain: true, key: (node) => node.name + node.shard, rows, columns: [
    { name: "Process", cell: (node) => (node.kind === "worker" ? link("worker", { name: workerOf(node.name) }, node.name) : node.name) }, { name: "Kind", cell: (node) => node.kind }, { name: "Shard", number: true, cell: (node) => node.shard },
    { name: "State", cell: (node) => (node.alive ? (node.drained ? chip("doubt", "drained") : chip("good", "alive")) : chip("bad", "dead")) },
    { name: "Last heartbeat", number: true, cell: (node) => (node.heartbeat_age_ms === null ? "" : `${span(node.heartbeat_age_ms)} ago`) },
    { name: "Slots busy", number: true, cell: (node) => (node.slots ? `${node.slots.busy} of ${node.slots.all}` : "") },
  ] });
}

function ofFleet(refresh) {
  const used = beside("stats?by=tenant", SLOW_MS);
  const failed = beside(withQuery("dead/causes", { since_s: 3600, limit: 5 }), SLOW_MS);
  const longest = beside("turns?in_workers=true&limit=100", FAST_MS);
  const past = {};
  const history = (name) => (past[name] ??= beside(() => {
    const until = Math.ceil(now() / 60_000) * 60_000;
    return withQuery("history", { step: SPANS[name] > SPANS.hour ? "hour" : "minute", from_ms: until - SPANS[name], until_ms: until });
  }, SLOW_MS / 2));
  return {
    every_ms: 2000, is_fleet: true, load: () => ask("overview"),
    draw: (fleet) => [
      h("div", { class: "top" }, attention(fleet.findings), tiles(fleet, used())),
      over(fleet, history),
      h("div", { class: "pair" }, failing(fleet), waiting(fleet), running(longest()), tenants(used(), refresh)),
      causes(failed()), nodes(fleet),
      h("p", { class: "soft" }, `${fleet.server.version ? `Redis ${fleet.server.version} at ${fleet.redis}` : "Store in memory"}; policy generation ${fleet.policy_generation}`),
    ],
  };
}

/** Returns the overview for a key of one tenant: the tenant's turns and approvals, without fleet-wide figures. */
function ofTenant(refresh) {
  const used = beside("stats?by=tenant", SLOW_MS);
  const failed = beside(withQuery("dead/causes", { since_s: 3600, limit: 5 }), SLOW_MS);
  return {
    every_ms: 5000,
    load: async () => {
      const [turns, approvals, pauses] = await Promise.all([ask("turns?limit=200"), ask("approvals?limit=500"), ask("pauses")]);
      return { turns, approvals, pauses };
    },
    draw: ({ turns, approvals, pauses }) => {
      const states = { throttled: "Wait for caps and limits", ready: "Ready", running: "Running", parked: "Parked" };
      const find = [];
      if (approvals.items.length) find.push({ kind: "approvals_wait", severity: "doubt", text: `${count(approvals.items.length)} approvals wait` });
      if (pauses.pauses.length) find.push({ kind: "paused", severity: "info", text: `${count(pauses.pauses.length)} pauses` });
      const unknown = used().data?.rows[0]?.outcomes.outcome_unknown;
      if (unknown) find.push({ kind: "unknown_outcomes", severity: "bad", text: `${count(unknown)} calls of today may or may not have taken effect` });
      return [
        h("div", { class: "top" }, attention(find),
          h("ul", { class: "tiles" }, Object.entries(states).map(([name, text]) => {
            const found = turns.items.filter((turn) => turn.state === name);
            return tile(text, count(found.length), turns.next ? "of those found so far" : "turns", undefined, name === "throttled" && found.length ? "doubt" : "", `turns?state=${name}`);
          }), tile("Approvals", count(approvals.items.length), "wait for approvers", undefined, approvals.items.length ? "doubt" : "", "approvals"), tile("Models today", money(used().data?.models?.cost), "cost", undefined, "", "stats?by=tenant"))),
        h("p", { class: "soft" }, `This key is for the tenant ${whoami().tenant}: fleet-wide figures need a key for all tenants.`),
        h("div", { class: "pair" }, running({ data: { items: turns.items.filter((turn) => turn.state === "running") } }), tenants(used(), refresh)), causes(failed()),
      ];
    },
  };
}

export const overview = { title: "Overview", open: (_, refresh) => (whoami().tenant ? ofTenant : ofFleet)(refresh) };
