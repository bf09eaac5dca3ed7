// Workers: state and slots, drain and resume.

import { ask, may, whoami } from "../api.js";
import { clock, confirm, fromNow, h, reasonField, say, span, table } from "../dom.js";

function state(worker) {
  if (!worker.alive) return ["bad", "dead"];
  if (!worker.heard) return ["doubt", "not reported yet"];
  if (!worker.drained) return ["good", "active"];
  return ["doubt", worker.busy ? "drains" : "drained"];
}

async function change(worker, refresh) {
  const isDrained = Boolean(worker.drained);
  const act = async (data) => {
    const { changed } = await ask(`workers/${isDrained ? "resume" : "drain"}`, { method: "POST", body: { worker: worker.name, reason: data.get("reason") } });
    say(changed ? `${worker.name} takes ${isDrained ? "new work again" : "no new work"} as soon as it receives the change.` : `${worker.name}: no change.`);
  };
  const text = isDrained
    ? `Drained by ${worker.drained.by}: ${worker.drained.reason}. It takes new work again.`
    : "It finishes its current work and takes no new work; other workers take over. It takes new work again after a resume or a restart.";
  if (await confirm({ title: `${isDrained ? "Resume" : "Drain"} ${worker.name}?`, text, fields: [reasonField()], button: isDrained ? "Resume" : "Drain", act })) refresh();
}

function draw({ workers: found, now_ms }, refresh) {
  if (!found.length) return h("p", { class: "bad" }, "No worker is alive: no calls run.");
  const columns = [
    ["Worker", (worker) => worker.name],
    ["State", (worker) => { const [mood, word] = state(worker); return h("span", { class: mood }, word); }],
    ["Slots busy", (worker) => (worker.alive ? `${worker.busy} of ${worker.slots}` : ""), true],
    ["Last heartbeat", (worker) => (worker.beat_age_ms === undefined ? "" : `${span(worker.beat_age_ms)} ago`)],
    ["Drained", (worker) => (worker.drained ? `${clock(worker.drained.since_ms)} (${fromNow(worker.drained.since_ms, now_ms)})` : "")],
    ["By", (worker) => worker.drained?.by ?? ""], ["Reason", (worker) => worker.drained?.reason ?? ""],
  ];
  if (may("operate")) {
    columns.push(["Action", (worker) => {
      const word = worker.drained ? "Resume" : "Drain";
      return h("button", { id: `worker-${worker.name}`, "aria-label": `${word} ${worker.name}`, click: () => change(worker, refresh) }, `${word} …`);
    }]);
  }
  return table("Workers", columns, found);
}

const ofTenant = () => h("p", {}, `This key is for the tenant ${whoami().tenant}: workers need a key for all tenants.`);

export const workers = {
  title: "Workers",
  open: () => (whoami().tenant ? { load: async () => ({}), draw: ofTenant } : { every_ms: 2000, load: () => ask("workers"), draw }),
};
