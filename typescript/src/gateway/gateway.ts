/**
 * Transport over a gateway, as docs/reference/http-api.md specifies it.
 *
 * A request without a response is sent again with the same id, so that it runs once. A reply is awaited with long
 * polls, each on its own connection.
 */
import { setTimeout as sleep } from "node:timers/promises";

import {
  Conflict,
  FleetError,
  InvalidMessage,
  NoDefinitions,
  NotFound,
  Rejected,
  Throttled,
  Unavailable,
  Unsupported,
} from "../errors.js";
import type { TaskEvent } from "../events.js";
import { write } from "../json.js";
import { type Message, nameOf, written } from "../message.js";
import type { Replies } from "../replies.js";
import { type Reply, readReply } from "../reply.js";
import { type Awaited, type Claim, type Kind, type Transport, claimOf } from "../transport.js";
import { follow } from "./events.js";
import { type Answer, type ApiKey, type RequestOptions, Http, RetryBudget, segment, within } from "./http.js";

/** In seconds: below the timeout of most proxies, and below the gateway's own limit of 60 s. */
const POLL_S = 25;
/** Ms within which a message may be submitted again to learn of a rejection. Every fleet remembers an id for longer. */
const FRESH_MS = 10_000;
const READ_AGAIN_MS = 250;
/** In ms. At least one request is made, with this time limit even if the caller's timeout is shorter. */
const ONE_READ_MS = 2_000;

/** A client of one gateway, or of a load balancer in front of several. */
export class Gateway implements Transport {
  readonly inbox = undefined;
  readonly #http: Http;

  constructor(url: string, apiKey: ApiKey, retryTimeoutMs: number) {
    this.#http = new Http(url, apiKey, retryTimeoutMs);
  }

  tenantOf(tenant: string | undefined): string | undefined {
    return tenant === undefined ? undefined : nameOf(tenant, "tenant");
  }

  async close(): Promise<void> {
    this.#http.close();
  }

  async submit(kind: Kind, tenant: string | undefined, message: Message, _: boolean, waits: boolean): Promise<Awaited> {
    if (message["pending_approval"]) {
      throw new Unsupported("pendingApproval: a gateway does not report approvals before the turn ends");
    }
    const awaited = new Sent(this.#http, kind, tenant, message);
    if (!waits) await awaited.submit(0);
    return awaited;
  }

  async send(kind: Kind, tenant: string | undefined, message: Message): Promise<void> {
    await new Sent(this.#http, kind, tenant, message).submit(0);
  }

  async wait(tenant: string | undefined, id: string, timeoutMs: number): Promise<Reply | undefined> {
    return polled((wait, options) => readTurn(this.#http, tenant, id, wait, options), timeoutMs, this.#http);
  }

  async reply(tenant: string | undefined, id: string): Promise<Reply | undefined> {
    const answer = await this.#http.ask("GET", `/v1/turns/${segment(id)}`, tenant);
    // Only the gateway that accepted the message knows of a rejection. Another gateway has no reply.
    return answer.status === 200 ? readReply(answer.text) : undefined;
  }

  async tools(tenant: string | undefined, agent: string, dialect: string): Promise<unknown> {
    const answer = await this.#http.ask("GET", `/v1/agents/${segment(agent)}/tools?format=${encodeURIComponent(dialect)}`, tenant);
    if (answer.status === 404) throw new NoDefinitions(answer.message);
    return good(answer).parsed();
  }

  async cancel(kind: Kind, tenant: string | undefined, id: string, reason: string): Promise<void> {
    const body = JSON.stringify(reason ? { reason } : {});
    const answer = good(await this.#http.ask("POST", `/v1/${kind}s/${segment(id)}/cancel`, tenant, { body }));
    answer.parsed();
    if (answer.json["result"] === "full") {
      throw new Throttled("too_many_cancels", "too many early cancels are pending; this one was not stored; retry later");
    }
  }

  async claim(tenant: string | undefined, id: string, claimant: string, wait: number): Promise<Claim | Reply | undefined> {
    const again = `/v1/turns/${segment(id)}/claim`;
    const path = again + (wait > 0 ? `?wait=${wait}` : "");
    const answer = await this.#http.ask("POST", path, tenant, { body: JSON.stringify({ claimant }), wait, again });
    // The turn may not have arrived yet, or only another gateway knows of its rejection. The caller asks again.
    if (answer.status === 404) return undefined;
    const { state, lease, call, reply } = good(answer).json;
    if (state === "ended") return readReply(write(reply));
    return state === "claimed" ? claimOf(lease as string, call) : undefined;
  }

  async report(tenant: string | undefined, id: string, report: Message): Promise<void> {
    const answer = await this.#http.ask("POST", `/v1/turns/${segment(id)}/conclude`, tenant, { body: written(report) });
    if (answer.status !== 404) good(answer);
  }

  follow(tenant: string | undefined, taskId: string, position: number): AsyncGenerator<TaskEvent> {
    return follow(this.#http, tenant, taskId, position);
  }

  replies(): Replies {
    throw new Unsupported("replies: inboxes can be read only over Redis; through a gateway, wait for a turn by its id");
  }
}

class Sent implements Awaited {
  readonly #text: string;
  readonly #id: string;
  /** When the message was accepted, by a clock that also runs while the machine sleeps. */
  #takenAt: number | undefined;
  #isAskedFor = false;
  #reply: Reply | undefined;

  constructor(
    private readonly http: Http,
    private readonly kind: Kind,
    private readonly tenant: string | undefined,
    message: Message,
  ) {
    this.#text = written(message);
    this.#id = segment(message[`${kind}_id`] as string);
  }

  get pending(): readonly Reply[] {
    throw new Unsupported("pending: a gateway does not report approvals before the turn ends");
  }

  release(): void {}

  /**
   * Returns the reply if it arrives within the wait. A repeated request is harmless, because the id makes the message
   * run once.
   */
  async submit(wait: number, options: RequestOptions = {}): Promise<Reply | undefined> {
    // A proxy may cut off requests that wait, so the retry only asks whether the message was accepted.
    const again = `/v1/${this.kind}s`;
    const path = again + (wait > 0 ? `?wait=${wait}` : "");
    const headers = { "idempotency-key": this.#id };
    let answer: Answer;
    try {
      answer = await this.http.ask("POST", path, this.tenant, { ...options, body: this.#text, headers, wait, again });
    } catch (error) {
      if (error instanceof Unavailable) error.id = this.#id;
      throw error;
    }
    if (answer.status === 409) throw new Conflict(this.#id, answer.message);
    if (answer.status === 400) throw this.#refused(answer);
    this.#takenAt = Date.now();
    this.#isAskedFor = answer.waited > 0;
    return endedBy(good(answer));
  }

  async reply(timeoutMs: number): Promise<Reply | undefined> {
    // Sending may also wait for the reply, so both share the timeout.
    const end = performance.now() + timeoutMs;
    // Before the gateway has accepted the message, an error is a failure to send, not a timeout.
    if (this.#takenAt === undefined) this.#reply = await this.submit(seconds(timeoutMs));
    return (this.#reply ??= await polled((wait, options) => this.#readReply(wait, options), end - performance.now(), this.http));
  }

  async #readReply(wait: number, options: RequestOptions): Promise<Reply | undefined> {
    // Only the gateway that accepted the message knows of a rejection. If the message is sent again, this gateway
    // learns of the rejection, too. Nothing runs twice.
    if (this.#takenAt !== undefined && !this.#isAskedFor && Math.abs(Date.now() - this.#takenAt) < FRESH_MS) {
      this.#isAskedFor = true;
      return this.submit(wait, options);
    }
    return readTurn(this.http, this.tenant, this.#id, wait, options);
  }

  #refused(answer: Answer): FleetError {
    const { code, message } = answer;
    if (code === "invalid_request") return new InvalidMessage(message);
    const head = { [`${this.kind}_id`]: this.#id, tenant: this.tenant ?? "", dialect: "raw", results: [] };
    const own = { ...head, status: "rejected", error: { code, message } };
    const reply = answer.json["status"] === "rejected" ? answer.text : JSON.stringify(own);
    return new Rejected(code, message, readReply(reply));
  }
}

async function readTurn(http: Http, tenant: string | undefined, id: string, wait: number, options: RequestOptions): Promise<Reply | undefined> {
  const answer = await http.ask("GET", `/v1/turns/${segment(id)}${wait > 0 ? `?wait=${wait}` : ""}`, tenant, { ...options, wait });
  // The turn or task may not have arrived yet.
  return answer.status === 404 ? undefined : endedBy(good(answer));
}

function endedBy({ status, text }: Answer): Reply | undefined {
  return status === 200 || status === 422 ? readReply(text) : undefined;
}

function good(answer: Answer): Answer {
  const { status, message } = answer;
  if (status === 200 || status === 202 || status === 422) return answer;
  if (status === 404) throw new NotFound(message);
  if (status === 400 || status === 413) throw new InvalidMessage(message);
  throw new Unavailable(`the gateway answered with status ${status}: ${message}`);
}

function seconds(ms: number): number {
  return Math.max(0, Math.min(POLL_S, Math.floor(ms / 1_000)));
}

async function polled(
  readTurn: (wait: number, options: RequestOptions) => Promise<Reply | undefined>,
  timeoutMs: number,
  http: Http,
): Promise<Reply | undefined> {
  const end = performance.now() + timeoutMs;
  let isLate = false;
  try {
    // Limits the wait if the gateway hangs.
    return await within(Math.max(ONE_READ_MS, timeoutMs), http.closed, async (signal) => {
      signal.addEventListener("abort", () => (isLate = true));
      for (;;) {
        const began = performance.now();
        const left = end - began;
        const wait = seconds(left);
        const found = await readTurn(wait, { retries: new RetryBudget(Infinity), signal });
        if (found !== undefined || left <= 0) return found;
        // A gateway that responds early must not cause a busy loop.
        if (performance.now() - began < Math.max(wait, 1) * 500) {
          await sleep(Math.min(READ_AGAIN_MS, left), undefined, { signal });
        }
      }
    });
  } catch (error) {
    http.checkOpen(error);
    if (isLate) return undefined;
    throw error;
  }
}
