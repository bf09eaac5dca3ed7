import { ask, may, whoami } from "../api.js";
import { drain } from "../actions.js";
import { share } from "../charts.js";
import { count, span, workerOf } from "../format.js";
import { age, button, card, chip, copy, empty, h, link, storyLink, table, time } from "../ui.js";

function state(worker) {
  if (!worker.alive) return chip("bad", "dead");
  if (!worker.drain_applied) return chip("doubt", "not reported yet");
  if (worker.drained) return chip("doubt", worker.busy ? "drains" : "drained");
  return worker.slots && worker.busy >= worker.slots ? chip("doubt", "no free slot") : chip("good", "active");
}

const act = (worker, refresh) => button(worker.drained ? "Resume …" : "Drain …", () => drain(worker, refresh), { "aria-label": `${worker.drained ? "Resume" : "Drain"} ${worker.name}` });

function draw({ workers: found, turns, now_ms }, refresh) {
  if (!found.length) return empty("No worker is alive: no calls run.", "bad");
  const longest = (worker) => turns.filter((turn) => workerOf(turn.holder) === worker.name).sort((a, b) => a.accepted_ms - b.accepted_ms)[0];
  const columns = [
    { name: "Worker", value: (worker) => worker.name, cell: (worker) => h("span", { class: "id" }, link("worker", { name: worker.name }, worker.name), copy(worker.name)) }, { name: "State", value: (worker) => (worker.alive ? (worker.drained ? "drained" : "active") : "dead"), cell: state },
    { name: "Slots busy", number: true, value: (worker) => worker.busy, cell: (worker) => (worker.alive ? h("span", { class: "nowrap" }, `${worker.busy} of ${worker.slots} `, share(worker.busy, worker.slots, "info")) : "") },
    { name: "Runs longest", value: (worker) => longest(worker)?.accepted_ms, cell: (worker) => { const turn = longest(worker); return turn ? h("span", {}, storyLink(`${turn.tenant}:${turn.id}`), " admitted ", age(turn.accepted_ms, now_ms)) : ""; } },
    { name: "Last heartbeat", number: true, value: (worker) => worker.heartbeat_age_ms, cell: (worker) => (worker.heartbeat_age_ms === undefined ? "" : `${span(worker.heartbeat_age_ms)} ago`) },
    { name: "Drained", value: (worker) => worker.drained?.since_ms, cell: (worker) => (worker.drained ? h("span", {}, age(worker.drained.since_ms, now_ms), ` by ${worker.drained.by}: ${worker.drained.reason}`) : "") },
  ];
  if (may("operate")) columns.push({ name: "Action", cell: (worker) => act(worker, refresh) });
  return table({ caption: `${count(found.length)} workers`, columns, rows: found, key: (worker) => worker.name, csv: true });
}

const ofTenant = { load: async () => ({}), draw: () => h("p", {}, `This key is for the tenant ${whoami().tenant}: workers need a key for all tenants.`) };
const load = async () => {
  const [found, { items: turns }] = await Promise.all([ask("workers"), ask("turns?in_workers=true&limit=300")]);
  return { ...found, turns };
};

export const workers = { title: "Workers", open: (_, refresh) => (whoami().tenant ? ofTenant : { every_ms: 2000, load, draw: (found) => draw(found, refresh) }) };

export const worker = {
  title: "Worker",
  of: "workers",
  titleOf: (query) => `Worker ${query.get("name") ?? ""}`,
  open: (query, refresh) => {
    if (whoami().tenant) return ofTenant;
    const name = workerOf(query.get("name") ?? "");
    return {
      every_ms: 2000, load,
      draw: ({ workers: found, turns, now_ms }) => {
        const one = found.find((each) => each.name === name);
        const own = turns.filter((turn) => workerOf(turn.holder) === name).sort((a, b) => a.accepted_ms - b.accepted_ms);
        if (!one) return empty(`No worker ${name} is alive or drained.`, "bad");
        const facts = [["State", state(one)], ["Slots busy", `${one.busy} of ${one.slots}`], ["Last heartbeat", one.heartbeat_age_ms === undefined ? "none" : `${span(one.heartbeat_age_ms)} ago`], ["Shards", count(one.shards)]];
        if (one.drained) facts.push(["Drained", h("span", {}, time(one.drained.since_ms), ` by ${one.drained.by}: ${one.drained.reason}`)]);
        return [
          h("section", { class: "card", "aria-label": name }, h("div", { class: "head" }, h("h2", {}, name), copy(name), h("span", { class: "grow" }), may("operate") ? act(one, refresh) : null),
            h("dl", { class: "facts" }, facts.map(([term, value]) => h("div", { key: term }, h("dt", {}, term), h("dd", {}, value))))),
          own.length ? table({ caption: `${count(own.length)} turns that it runs, the oldest first`, rows: own, key: (turn) => `${turn.tenant}:${turn.id}`, columns: [
            { name: "Turn", value: (turn) => turn.id, cell: (turn) => storyLink(`${turn.tenant}:${turn.id}`) }, { name: "Agent", value: (turn) => turn.agent }, { name: "Calls left", value: (turn) => turn.tools.join(", ") },
            { name: "Done", number: true, value: (turn) => turn.done, cell: (turn) => `${turn.done} of ${turn.calls}` }, { name: "Admitted", number: true, value: (turn) => turn.accepted_ms, cell: (turn) => age(turn.accepted_ms, now_ms) },
          ] }) : card("Turns", empty("It runs no turns.")),
        ];
      },
    };
  },
};
