// The fleet as it changes: one stream of the gateway, which looks at Redis once for all who watch. Without it (a key of one
// tenant, too many watch, the connection is broken) views look again by themselves.

import { stream, whoami } from "./api.js";

const AGAIN_MS = 3000;
let abort;
let isOpen = false;

/** Whether pictures come. */
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
      // It is over, or never was: asking again changes nothing.
      if (error.status === 401) return refused(error);
      if (error.status === 403 || error.status === 404) return;
    } finally {
      told(false);
    }
    await new Promise((go) => setTimeout(go, AGAIN_MS));
  }
}

/** Has `on({changes, fleet})` called with each picture while the page is seen, and `refused` when the key is good no more. */
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
