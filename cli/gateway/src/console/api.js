import { parse, write } from "./json.js";

// The gateway's API with the key of this tab. The key is stored only for the tab and sent as a header. Other pages
// therefore cannot make the browser send the key.

const STORED = "tickfleet-key";
let me;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const hasKey = () => sessionStorage.getItem(STORED) !== null;
export const whoami = () => me;
export const may = (verb) => me?.verbs.includes(verb) ?? false;

/** Sends a request. Returns the JSON of the response, or throws its error message. */
export async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = { authorization: `Bearer ${sessionStorage.getItem(STORED) ?? ""}` };
  const sent = body === undefined ? undefined : write(body);
  let answer;
  try {
    answer = await fetch(`../v1/operate/${path}`, { method, headers, body: sent, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The gateway does not respond.");
  }
  const json = await read(answer);
  if (!answer.ok) throw new Refused(answer.status, json.error?.message ?? `The gateway answered ${answer.status}.`);
  return json;
}

/** Parses the JSON of a response. Numbers keep all digits. Returns `{}` if the JSON is invalid. */
async function read(answer) {
  try {
    return parse(await answer.text());
  } catch {
    return {};
  }
}

/** Yields server-sent events as {event, data} until the stream ends. Throws if the request is rejected. */
export async function* stream(path, signal) {
  const headers = { authorization: `Bearer ${sessionStorage.getItem(STORED) ?? ""}` };
  const answer = await fetch(`../v1/operate/${path}`, { headers, signal, cache: "no-store" });
  if (!answer.ok) {
    const json = await read(answer);
    throw new Refused(answer.status, json.error?.message ?? `The gateway answered ${answer.status}.`);
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const of = (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trimStart()).join("\n");
      if (of("event")) yield { event: of("event"), data: parse(of("data") || "null") };
    }
  }
}

/** A path with its query. Empty values are left out. */
export function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return text ? `${path}?${text}` : path;
}

/** Signs in with a key. Throws if the key is invalid or lacks the permission `view`. */
export async function signIn(key) {
  if (key) sessionStorage.setItem(STORED, key.trim());
  try {
    me = await ask("me");
    if (!may("view")) throw new Refused(403, "This key lacks the permission view.");
  } catch (error) {
    if (error.status !== 0) signOut();
    throw error;
  }
  return me;
}

export function signOut() {
  me = undefined;
  sessionStorage.removeItem(STORED);
}
