// Checks how the TypeScript client handles failures: `gateway.mjs TENANT DIST`, with the environment of gateway.py.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { createServer, request } from "node:http";
import { resolve } from "node:path";

const { GATEWAY_URL: url, GATEWAY_KEY: apiKey, READING_KEY: reading, REDIS_URL: redis } = process.env;
const [tenant, dist] = process.argv.slice(2);
const {
  Conflict, Fleet, FleetError, Forbidden, InvalidMessage, NoDefinitions, NotFound, MemoryPressure, QueueFull, Rejected, ReplyTimeout, Throttled,
  Unauthorized, Unavailable, Unsupported,
} = await import(resolve(dist, "index.js"));
const { DIALECTS } = await import(resolve(dist, "definitions.js"));

const calls = [{ name: "echo", arguments: { text: "hi" } }];
const turn = { agent: "kelly", calls };

process.on("warning", (warning) => assert.notEqual(warning.name, "MaxListenersExceededWarning"));

/**
 * Each entry of `fates` decides about one request. Without an entry, requests pass through. `cut` closes the connection
 * after the gateway has answered. `half` closes it in the middle of the answer. If the entry is an object, the proxy
 * sends it as the answer.
 */
const wire = { fates: [], seen: [], spent: () => {} };
const server = createServer((from, to) => {
  wire.seen.push(`${from.method} ${from.url.split("?")[0]}`);
  const fate = wire.fates.shift() ?? "through";
  if (wire.fates.length === 0) wire.spent();
  if (typeof fate === "function") {
    from.resume();
    fate(to, from);
    return;
  }
  if (typeof fate === "object") {
    from.resume();
    to.writeHead(fate.status, fate.headers).end(fate.body);
    return;
  }
  const { pathname, search } = new URL(from.url, url);
  const on = request(new URL(pathname + search, url), { method: from.method, headers: from.headers }, (answer) => {
    if (fate === "through") return answer.pipe(to.writeHead(answer.statusCode, answer.headers));
    if (fate === "cut") return answer.resume().on("end", () => from.socket.destroy());
    to.writeHead(answer.statusCode, answer.headers);
    answer.on("data", (some) => {
      if (!String(some).includes("event: plan")) return to.write(some);
      to.write(some, () => from.socket.destroy());
      answer.destroy();
    });
  });
  on.on("error", () => from.socket.destroy());
  to.on("close", () => on.destroy());
  from.pipe(on);
});
await once(server.listen(0, "127.0.0.1"), "listening");
const through = (options = {}) => new Fleet({ url: `http://127.0.0.1:${server.address().port}`, apiKey, ...options });

const refusal = (status, code, after = "1") => ({
  status,
  headers: { "retry-after": after, "content-type": "application/json" },
  body: JSON.stringify({ error: { code, message: "said by the test" } }),
});
const fails = (work, kind, said = {}) =>
  assert.rejects(work, (error) => {
    assert(error instanceof kind, error);
    for (const [name, value] of Object.entries(said)) assert.equal(error[name], value, name);
    return true;
  });

async function aTurnWhoseAnswerIsLostIsCarriedOutOnce() {
  const fleet = through();
  wire.fates = ["cut", "cut"];
  const reply = await fleet.run({ agent: "frugal", calls }, { timeoutMs: 30_000 });
  assert.deepEqual(reply.results.map((result) => result.outcome), ["ok"]);
  assert.deepEqual(wire.seen.slice(0, 3), Array(3).fill("POST /v1/turns"));
  wire.fates = ["through", "cut", "cut"];
  const submitted = await fleet.submit(turn);
  assert.deepEqual((await submitted.reply()).results[0].output, { text: "hi" });
  await fleet.close();
}

async function aRefusalThatAnotherGatewayHeardIsTold() {
  const body = JSON.stringify({ turn_id: "t", state: "accepted", duplicate: false });
  wire.fates = [{ status: 202, headers: { "content-type": "application/json" }, body }];
  const submitted = await through().submit({ agent: "nobody", calls });
  await fails(submitted.reply({ timeoutMs: 30_000 }), Rejected, { code: "unknown_agent" });
}

async function aGatewayThatIsBusyIsAskedAgainWhenItSays() {
  wire.fates = [refusal(429, "queue_full")];
  assert((await through().run(turn)).ok);
  // The first pause of a client takes 50 ms, so only the seconds of `retry-after` can exceed this retry timeout.
  const hasty = through({ retryTimeoutMs: 500 });
  for (const [status, code, kind] of [
    [429, "queue_full", QueueFull], [503, "pressure", MemoryPressure], [429, "rate_limited", Throttled],
    [503, "unavailable", Unavailable],
  ]) {
    wire.fates = [refusal(status, code, "7")];
    await fails(hasty.run({ ...turn, turnId: "t" }), kind, kind === Unavailable ? { id: "t" } : { code, retryAfterMs: 7_000 });
  }
  [wire.fates, wire.seen] = [[refusal(429, "too_many_waiting", "7")], []];
  assert((await hasty.run(turn)).ok);
  assert.deepEqual(wire.seen.slice(0, 2), Array(2).fill("POST /v1/turns"));
  wire.fates = Array(9).fill({ status: 502, headers: {}, body: "<html>a proxy</html>" });
  await fails(hasty.run({ ...turn, turnId: "t" }), Unavailable, { id: "t" });
  for (const work of [() => hasty.tools("kelly"), () => hasty.cancel("t")]) {
    wire.fates = [{ status: 200, headers: {}, body: "<html>a proxy</html>" }];
    await fails(work(), FleetError, { code: "unreadable" });
  }
  wire.fates = [{ status: 302, headers: { location: "http://127.0.0.1:1/" }, body: "" }];
  await assert.rejects(hasty.tools("kelly"), /URL redirects/);
}

async function whatWaitsOutlastsTroubleAndKeepsToItsTime() {
  const fleet = through({ retryTimeoutMs: 200 });
  const long = await fleet.delegate({ agent: "absent", description: "Wait.", taskId: "long" });
  await fails(long.reply({ timeoutMs: 300 }), ReplyTimeout, { id: "long" });
  assert.equal(await fleet.reply("long"), undefined);
  wire.fates = Array(3).fill({ status: 503, headers: {}, body: "" });
  const spent = new Promise((resolve) => (wire.spent = resolve));
  const waits = fleet.wait("long");
  await spent;
  await long.cancel("The user left.");
  assert.equal((await waits).results[0].outcome, "cancelled");
  assert.deepEqual((await long.reply()).raw, (await waits).raw);
  await fails(fleet.wait("never", { timeoutMs: 100 }), ReplyTimeout);
  await fleet.submit({ ...turn, turnId: "used" });
  await fails(fleet.submit({ agent: "kelly", calls: [...calls, ...calls], turnId: "used" }), Conflict, { id: "used" });
  const asked = new Promise((resolve) => (wire.spent = resolve));
  wire.fates = ["through"];
  const open = fleet.wait("never");
  await asked;
  await fleet.close();
  await assert.rejects(open, /was closed/);
}

async function aTimeIsWaitedOnceAndEndsAPause() {
  const asked = [];
  const never = (to, { method, url }) => {
    const wait = Number(new URL(url, "http://gateway").searchParams.get("wait"));
    asked.push(`${method} ${wait}`);
    setTimeout(() => to.writeHead(method === "POST" ? 202 : 404).end("{}"), wait * 1_000);
  };
  wire.fates = Array(9).fill(never);
  await fails(through().run(turn, { timeoutMs: 1_500 }), ReplyTimeout);
  assert.deepEqual(asked, ["POST 1", ...Array(asked.length - 1).fill("GET 0")]);
  wire.fates = [refusal(503, "unavailable", "3600")];
  await fails(through().wait("never", { timeoutMs: 100 }), ReplyTimeout);
}

async function whateverIsOpenWhenAClientIsClosedIsTold() {
  const fleet = through({ retryTimeoutMs: 300_000 });
  const spent = () => new Promise((resolve) => (wire.spent = resolve));
  let all = spent();
  wire.fates = [refusal(503, "unavailable", "60")];
  const open = [fleet.submit(turn)];
  await all;
  const asks = [
    () => fleet.submit(turn), () => fleet.run(turn), () => fleet.tools("kelly"), () => fleet.reply("t"), () => fleet.cancel("t"),
    () => fleet.follow("t").next(), ...Array(12).fill(() => fleet.wait("t")),
  ];
  all = spent();
  wire.fates = asks.map(() => () => {});
  open.push(...asks.map((ask) => ask()));
  await all;
  await fleet.close();
  for (const one of [...open, ...asks.map((ask) => ask())]) await fails(one, FleetError, { code: "closed" });
  wire.spent = () => {};
}

async function eventsEndWhereTheirLinesDoAndNowhereElse() {
  const text = "a\u2028b\u2029c\u0085d\u00e9";
  for (const end of ["\n", "\r\n", "\r"]) {
    const lines = [": hello", "", "event: plan", "data: 7", "", "event: note", `data: {"position": 1,`, `data:"text": "${text}"}`, ""];
    const whole = Buffer.from([...lines, "event: failed", 'data: {"position": 2}', "", ""].join(end));
    const write = (to, at = 0) => (at < whole.length ? to.write(whole.subarray(at, at + 1), () => write(to, at + 1)) : to.end());
    wire.fates = [(to) => write(to.writeHead(200, { "content-type": "text/event-stream" }))];
    const reported = [];
    for await (const event of through().follow("odd")) reported.push([event.kind, event.position, event.text]);
    assert.deepEqual(reported, [["note", 1, text], ["ended", 2, ""]], JSON.stringify(end));
  }
}

async function eventsAreThoseOfRedisAndGoOnWhereTheWireWasCut() {
  const fleet = through();
  const task = await fleet.delegate({ agent: "absent", description: "Wait.", taskId: "steps" });
  const steps = [
    { k: "plan", model: "m", text: "Let me see.", calls: [{ tool: "echo", arguments: "{}" }] },
    { k: "result", tool: "echo", ok: true, content: "hi" },
    { k: "note", text: "Two calls are left." },
  ].flatMap((step, n) => [`s${String(n).padStart(6, "0")}`, JSON.stringify(step)]);
  execFileSync("redis-cli", ["-u", redis, "HSET", `{tickfleet:0}:parts:steps:${tenant}:steps`, ...steps]);
  wire.seen = [];
  wire.fates = ["half"];
  const reported = [];
  for await (const event of task.events()) {
    reported.push(event);
    if (reported.length === 3) await task.cancel();
  }
  assert(wire.seen.filter((seen) => seen.endsWith("/events")).length >= 2, String(wire.seen));
  assert.equal((await task.reply()).results[0].outcome, "cancelled");
  const direct = new Fleet({ tenant });
  const found = [];
  for await (const event of direct.follow("steps")) found.push(event);
  assert.deepEqual(reported, found);
  assert.deepEqual(reported.map(({ kind, position }) => [kind, position]), [["plan", 1], ["result", 2], ["note", 3], ["ended", 3]]);
  for (const format of [...DIALECTS, "openai"]) assert.deepEqual(await fleet.tools("kelly", { format }), await direct.tools("kelly", { format }));
  await direct.close();
}

async function keysOpenWhatTheyAreFor() {
  const wrong = new Fleet({ url, apiKey: "tfk_wrong" });
  await fails(wrong.run(turn), Unauthorized);
  await fails(wrong.wait("order-17"), Unauthorized);
  await fails(wrong.follow("order-17").next(), Unauthorized);
  const reader = new Fleet({ url, apiKey: async () => reading });
  await fails(reader.run(turn), Forbidden);
  await fails(reader.cancel("order-17"), Forbidden);
  assert((await reader.tools("kelly", { format: "anthropic" })).length > 0);
  const other = new Fleet({ url, apiKey, tenant: "another" });
  await fails(other.run(turn), Forbidden);
  await fails(other.reply("order-17"), Forbidden);
  for (const key of ["tfk_a b", "tfk_a\n"]) assert.throws(() => new Fleet({ url, apiKey: key }), /characters/);
  const nowhere = new Fleet({ url: "http://127.0.0.1:1", apiKey, retryTimeoutMs: 100 });
  await fails(nowhere.run({ ...turn, turnId: "t" }), Unavailable, { id: "t" });
}

async function whatAGatewayCannotDoIsSaid() {
  const fleet = new Fleet({ url, apiKey });
  assert.throws(() => fleet.replies("box"), Unsupported);
  await fails(fleet.submit({ ...turn, pendingApproval: true }), Unsupported);
  const submitted = await fleet.submit(turn);
  assert.throws(() => submitted.pending, Unsupported);
  await fails(fleet.cancel(".."), Unsupported);
  await fails(fleet.tools("nobody"), NoDefinitions);
  await fails(fleet.tools("kelly", { format: "nonsense" }), InvalidMessage);
  const toolCalls = [{ id: "call_1", type: "function", function: { name: "echo", arguments: "{}" } }];
  const refused = await fleet.run({ agent: "kelly", toolCalls, priority: "asap" }).catch((error) => error);
  assert(refused instanceof Rejected && refused.reply.messages[0].tool_call_id === "call_1", refused);
  await fails(new Fleet({ url, apiKey, retryTimeoutMs: 300 }).follow("never").next(), NotFound);
  for (const options of [{ shards: 2 }, { inbox: "box" }, { turnsMax: 0 }, { namespace: "x" }]) {
    assert.throws(() => new Fleet({ url, apiKey, ...options }), Unsupported);
  }
  assert.throws(() => new Fleet({ url }), TypeError);
  assert.throws(() => new Fleet({ url: "redis://127.0.0.1:1", apiKey }), TypeError);
}

await aTurnWhoseAnswerIsLostIsCarriedOutOnce();
await aRefusalThatAnotherGatewayHeardIsTold();
await aGatewayThatIsBusyIsAskedAgainWhenItSays();
await whatWaitsOutlastsTroubleAndKeepsToItsTime();
await aTimeIsWaitedOnceAndEndsAPause();
await whateverIsOpenWhenAClientIsClosedIsTold();
await eventsEndWhereTheirLinesDoAndNowhereElse();
await keysOpenWhatTheyAreFor();
await whatAGatewayCannotDoIsSaid();
await eventsAreThoseOfRedisAndGoOnWhereTheWireWasCut();
server.closeAllConnections();
server.close();
console.log("gateway: ok");
