/** Finds the URL of the fleet if the program names none. */
import { readFileSync, statSync } from "node:fs";

import { DEFAULT_URL } from "./redis.js";

/** `tickfleet dev` writes this file in its working folder, and removes it at its end. */
const DEV_FILE = ".tickfleet/dev.json";

type ApiKey = string | (() => string | Promise<string>);

interface Place {
  url: string;
  apiKey?: ApiKey | undefined;
}

/**
 * Returns the URL, and the API key if the URL is that of a gateway. The first that is set: the options, the variable
 * `REDIS_URL`, the variables `FLEET_URL` and `FLEET_KEY` of a gateway, the `tickfleet dev` of the working folder, the
 * default Redis.
 */
export function placeOf(url: string | undefined, apiKey: ApiKey | undefined): Place {
  const { REDIS_URL, FLEET_URL, FLEET_KEY } = process.env;
  if (url !== undefined || apiKey !== undefined) return { url: url ?? FLEET_URL ?? DEFAULT_URL, apiKey };
  if (REDIS_URL) return { url: REDIS_URL };
  if (FLEET_URL) return { url: FLEET_URL, apiKey: FLEET_KEY };
  return devHere() ?? { url: DEFAULT_URL };
}

function devHere(): Place | undefined {
  let dev: { redis_url: string; fleet_url: string | null; fleet_key: string };
  try {
    // In a shared folder, another user's fleet could receive the calls.
    if (statSync(DEV_FILE).uid !== process.geteuid?.()) return undefined;
    dev = JSON.parse(readFileSync(DEV_FILE, "utf8"));
  } catch {
    return undefined;
  }
  // A fleet without a console has no gateway.
  return dev.fleet_url === null ? { url: dev.redis_url } : { url: dev.fleet_url, apiKey: dev.fleet_key };
}
