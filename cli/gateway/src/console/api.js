// The gateway's API with the key of this tab. The key is sent as a header, so other pages cannot make the browser send
// it.

import { parse, write } from "./json.js";

const STORED = "tickfleet-key";
// Time limits of requests. An action gets more time than a read, because the result of an action must not be lost.
const READ_MS = 12_000;
const ACT_MS = 45_000;
let me;
/** Clock of the gateway minus clock of this browser, in milliseconds. */
let skew = 0;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = () => sessionStorage.getItem(STORED);
export const hasKey = () => key() !== null;
export const whoami = () => me;
/** Returns true if the key or token of this tab has expired. */
export const isExpired = () => Boolean(me?.expires) && Date.parse(me.expires) <= now();
export const may = (verb) => me?.verbs.includes(verb) ?? false;
/** Returns the gateway's current time (ms), estimated from its latest response. */
export const now = () => Date.now() + skew;

const headers = () => ({ authorization: `Bearer ${key() ?? ""}` });

/** Sends a request to the operator API. Returns the JSON of the response, or throws its error message. */
export async function ask(path, options = {}) {
  const json = await send(`../v1/operate/${path}`, { ...options, headers: headers() });
  if (typeof json.now_ms === "number") skew = json.now_ms - Date.now();
  return json;
}

/** Sends a request without the key. Returns the JSON of the response, or throws its error message. */
export async function send(url, { method = "GET", body, signal, headers = {}, within = method === "GET" ? READ_MS : ACT_MS } = {}) {
  const sent = body === undefined ? undefined : write(body);
  const late = AbortSignal.timeout(within);
  const either = signal ? AbortSignal.any([signal, late]) : late;
  let answer, text;
  try {
    const type = sent === undefined ? {} : { "content-type": "application/json" };
    answer = await fetch(url, { method, headers: { ...headers, ...type }, body: sent, signal: either, cache: "no-store" });
    text = await answer.text();
  } catch (error) {
    if (late.aborted) throw new Refused(0, `No response within ${within / 1000} s.${method === "GET" ? "" : " The action may have taken effect: check before you repeat it."}`);
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The gateway does not respond.");
  }
  const json = read(text);
  if (!answer.ok) throw new Refused(answer.status, json.error?.message ?? `The gateway answered ${answer.status}.`);
  return json;
}

/** Parses the JSON of a response. Numbers keep all digits. Returns `{}` if the JSON is invalid. */
function read(text) {
  try {
    return parse(text);
  } catch {
    return {};
  }
}

let document_;

/** Returns the effect of an operator's verb in words, and if it needs a reason, from the gateway's OpenAPI document. */
export async function verbOf(path) {
  document_ ??= await send("../v1/openapi.json");
  const { summary, description, requestBody } = document_.paths[`/v1/operate/${path}`].post;
  const schema = document_.components.schemas[requestBody.content["application/json"].schema.$ref.split("/").at(-1)];
  return { effect: (description ?? summary).replaceAll("`", ""), needsReason: schema.required?.includes("reason") ?? false };
}

export const act = (path, body, signal) => ask(path, { method: "POST", body, signal });

/** Yields server-sent events as {event, data} until the stream ends. Throws if the request is rejected. */
export async function* stream(path, signal) {
  const answer = await fetch(`../v1/operate/${path}`, { headers: headers(), signal, cache: "no-store" });
  if (!answer.ok) {
    const json = read(await answer.text());
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

/** Returns a path with its query. Leaves out empty values. */
export function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return text ? `${path}?${text}` : path;
}

/** Signs in with a key. Throws if the key is invalid or lacks the permission `view`. */
export async function signIn(given) {
  if (given) sessionStorage.setItem(STORED, given.trim());
  try {
    me = await ask("me");
    if (!hasKey()) throw new Refused(401, "Signed out in another tab.");
    if (!may("view")) throw new Refused(403, "This key or token lacks the permission view.");
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
