// The live stream of the fleet's state. The gateway polls Redis once for all watchers. Without the stream (a key of one
// tenant, too many watchers, a broken connection), each view polls by itself.

import { stream, whoami } from "./api.js";

const AGAIN_MS = 3000;
let abort;
let isOpen = false;

/** Returns true while snapshots arrive. */
export const isLive = () => isOpen;

function told(open) {
  isOpen = open;
  document.documentElement.dataset.live = open ? "yes" : "no";
}

async function listen(signal, on, refused) {
  while (!signal.aborted) {
    try {
      for await (const { event, data } of stream("events", signal)) {
        told(event === "fleet");
        if (event === "fleet") on(data);
      }
    } catch (error) {
      if (signal.aborted) return;
      // The key has become invalid, or may not open the stream: a retry would fail as well.
      if (error.status === 401) return refused(error);
      if (error.status === 403 || error.status === 404) return;
    } finally {
      told(false);
    }
    await new Promise((go) => setTimeout(go, AGAIN_MS));
  }
}

/** Calls `on({changes, fleet})` for each snapshot while the page is visible, and `refused` if the key is invalid. */
export function watch(on, refused) {
  unwatch();
  if (whoami().tenant) return;
  const begin = () => {
    abort?.abort();
    abort = undefined;
    if (document.hidden || !whoami()) return;
    abort = new AbortController();
    listen(abort.signal, on, refused);
  };
  watch.begin = begin;
  document.addEventListener("visibilitychange", begin);
  begin();
}

export function unwatch() {
  abort?.abort();
  abort = undefined;
  document.removeEventListener("visibilitychange", watch.begin);
  told(false);
}
