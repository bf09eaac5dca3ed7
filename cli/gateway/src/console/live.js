// The live state of the fleet: the gateway pushes a snapshot every two seconds. A key of one tenant may not open this
// stream, so the console polls the pauses of the tenant instead. Without new data for `LATE_MS`, the state counts as
// lost, even if the connection is open.

import { ask, stream, whoami } from "./api.js";

const AGAIN_MS = 1500;
const BEAT_MS = 2000;
/** Data that is older than this (ms) is not live. */
export const LATE_MS = 4000;
const KEPT = 90;

/**
 * `at` is the browser's time of the last data. `why` is set while the state is lost. `past` has the latest snapshots.
 */
export const live = { at: 0, why: "Connecting …", isOn: false, fleet: undefined, changes: 0, past: [] };
let abort;
let listeners;

/** Returns true while new data arrives. */
export const isLive = () => live.isOn && !live.why;

function arrived() {
  live.at = Date.now();
  live.why = "";
  document.documentElement.dataset.live = "yes";
}

function lost(why) {
  live.why = why;
  document.documentElement.dataset.live = "no";
  listeners?.changed();
}

async function listen(signal) {
  while (!signal.aborted) {
    const silent = new AbortController();
    let timer = setTimeout(() => silent.abort(), 2 * LATE_MS);
    try {
      for await (const { event, data } of stream("events", AbortSignal.any([signal, silent.signal]))) {
        if (signal.aborted) return;
        clearTimeout(timer);
        timer = setTimeout(() => silent.abort(), 2 * LATE_MS);
        if (event !== "fleet") {
          lost("Redis does not respond to the gateway.");
          continue;
        }
        arrived();
        live.isOn = true;
        Object.assign(live, { fleet: data.fleet, changes: data.changes });
        live.past = [...live.past, { at: live.at, fleet: data.fleet }].slice(-KEPT);
        listeners.fleet();
      }
      lost("The gateway closed the connection.");
    } catch (error) {
      if (signal.aborted) return;
      // The key has become invalid, so a retry would fail too.
      if (error.status === 401) return void listeners.refused(error);
      if (error.status === 403 || error.status === 404 || error.status === 429) return beat(signal);
      lost(silent.signal.aborted ? "The gateway does not respond." : error.status ? error.message : "The gateway does not respond.");
    } finally {
      clearTimeout(timer);
      live.isOn = false;
    }
    await new Promise((go) => setTimeout(go, AGAIN_MS));
  }
}

async function beat(signal) {
  while (!signal.aborted) {
    try {
      await ask("pauses", { signal, within: LATE_MS - 500 });
      if (signal.aborted) return;
      arrived();
      listeners.changed();
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) return void listeners.refused(error);
      lost(error.message);
    }
    await new Promise((go) => setTimeout(go, BEAT_MS));
  }
}

/**
 * Calls `fleet()` for each snapshot, `changed()` when the display of the connection changes, and `refused` if the key
 * is invalid.
 */
export function watch(given) {
  unwatch();
  listeners = given;
  const begin = () => {
    abort?.abort();
    abort = undefined;
    if (document.hidden || !whoami()) return;
    abort = new AbortController();
    if (whoami().tenant) beat(abort.signal);
    else listen(abort.signal);
  };
  watch.begin = begin;
  document.addEventListener("visibilitychange", begin);
  watch.dog = setInterval(() => {
    if (!live.why && Date.now() - live.at > LATE_MS) lost("No new data.");
    // Redraw every second: the connection indicator shows how many seconds old the data is.
    if ((watch.odd = !watch.odd)) listeners.changed();
  }, 500);
  begin();
}

export function unwatch() {
  abort?.abort();
  abort = undefined;
  clearInterval(watch.dog);
  document.removeEventListener("visibilitychange", watch.begin);
  Object.assign(live, { at: 0, why: "Connecting …", isOn: false, fleet: undefined, past: [] });
  document.documentElement.dataset.live = "no";
}
