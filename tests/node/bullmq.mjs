// Measures governed jobs on BullMQ: permission, schema, two caps per agent, audit entry and reply. See
// docs/understand/benchmarks.md.
//  npm i bullmq@6.7.0 ioredis@5 ajv@8, beside a redis-server on PORT (7711)
//  node bullmq.mjs worker 256      jobs at once
//  node bullmq.mjs load 8 8000     seconds, jobs outstanding; prints jobs per second and Redis' CPU time per job
import Ajv from "ajv";
import { DelayedError, Queue, Worker } from "bullmq";
import Redis from "ioredis";

const AGENTS = 30_000;
const connection = { host: "127.0.0.1", port: Number(process.env.PORT ?? 7711), maxRetriesPerRequest: null };
const [mode, size, outstandingMax] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4] ?? 8000)];

const DEBIT = `
  if tonumber(redis.call('GET', KEYS[1]) or 0) >= 10 then return redis.call('PTTL', KEYS[1]) end
  if tonumber(redis.call('GET', KEYS[2]) or 0) >= 1000 then return -9 end
  if redis.call('INCR', KEYS[1]) == 1 then redis.call('PEXPIRE', KEYS[1], 5000) end
  if redis.call('INCR', KEYS[2]) == 1 then redis.call('PEXPIRE', KEYS[2], 86400000) end
  return -1`;

function work() {
  const redis = new Redis({ ...connection, enableAutoPipelining: true });
  redis.defineCommand("debit", { numberOfKeys: 2, lua: DEBIT });
  const fits = new Ajv().compile({
    type: "object", properties: { text: { type: "string" } }, required: ["text"], additionalProperties: false,
  });
  const permitted = { echo: new Set(Array.from({ length: AGENTS }, (_, number) => `a${number}`)) };
  const run = async (job, token) => {
    const { agent, tool, args } = job.data;
    const began = Date.now();
    let outcome = "ok";
    if (!permitted[tool]?.has(agent)) outcome = "denied";
    else if (!fits(args)) outcome = "invalid_arguments";
    else {
      const wait = await redis.debit(`tick:${agent}`, `day:${agent}`);
      if (wait >= 0) {
        await job.moveToDelayed(Date.now() + wait, token);
        throw new DelayedError();
      }
      if (wait === -9) outcome = "daily_cap_reached";
    }
    const [success, output] = [outcome === "ok", outcome === "ok" ? args : null];
    const duration_ms = Date.now() - began;
    const reply = { tool_call_id: "c1", call: `${job.id}/0`, tool, success, outcome, output, duration_ms, attempts: 1 };
    const entry = {
      timestamp: new Date().toISOString(), level: "info", action: "TOOL_CALL", entity_type: "tool", entity_id: tool, actor_type: "agent",
      actor_id: agent, tenant: "t", message: `${agent} called ${tool}: ${outcome}`, meta: { arguments: args, result: output, duration_ms, success },
    };
    await Promise.all([
      redis.xadd("audit", "MAXLEN", "~", 1_000_000, "*", "audit", JSON.stringify(entry)),
      redis.xadd("replies", "*", "reply", JSON.stringify(reply)),
    ]);
  };
  new Worker("governed", run, { connection, concurrency: size, removeOnComplete: { age: 3600 } });
}

async function load() {
  const [queue, reader, probe] = [new Queue("governed", { connection }), new Redis(connection), new Redis(connection)];
  await queue.waitUntilReady();
  let [sent, replied, last] = [0, 0, "$"];
  const read = async () => {
    for (;;) {
      const got = await reader.xread("COUNT", 1000, "BLOCK", 2000, "STREAMS", "replies", last);
      for (const [id] of got?.[0][1] ?? []) [last, replied] = [id, replied + 1];
      await reader.xtrim("replies", "MINID", last === "$" ? "0" : last);
    }
  };
  const cpu = async () => {
    const info = await probe.info("cpu");
    return ["sys", "user"].reduce((sum, kind) => sum + Number(new RegExp(`used_cpu_${kind}:([\\d.]+)`).exec(info)[1]), 0);
  };
  const job = () => ({ name: "tool", data: { agent: `a${sent++ % AGENTS}`, tool: "echo", args: { text: "x".repeat(150) } } });
  read();
  const began = performance.now();
  let from;
  while (performance.now() - began < size * 1000) {
    // The first 1.5 s fill the queue and are not measured.
    if (!from && performance.now() - began > 1500) from = { cpu: await cpu(), replied, at: performance.now() };
    if (sent - replied < outstandingMax) await queue.addBulk(Array.from({ length: 100 }, job));
    else await new Promise((later) => setTimeout(later, 2));
  }
  const [jobs, seconds] = [replied - from.replied, (performance.now() - from.at) / 1000];
  console.log(`${Math.round(jobs / seconds)} jobs/s, ${(((await cpu()) - from.cpu) * 1e6 / jobs).toFixed(1)} µs of Redis each`);
  process.exit(0);
}

if (mode === "worker") work();
else await load();
