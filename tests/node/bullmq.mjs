// What BullMQ takes for a job that does nothing, beside `tickfleet bench` on the same machine: jobs a second of one worker
// process, and Redis' CPU time a job. Jobs are there before the clock starts, so that neither submitting nor reading replies
// counts; a turn of `tickfleet bench` is submitted and answered within its time.
//
//   mkdir /tmp/bullmq && cp tests/node/bullmq.mjs /tmp/bullmq && cd /tmp/bullmq
//   npm install bullmq@6.7.0 ioredis@5 && node bullmq.mjs 100
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Queue, Worker } from "bullmq";

const JOBS = 60_000;
const concurrency = Number(process.argv[2] ?? 100);

const folder = mkdtempSync(join(tmpdir(), "bullmq-"));
const path = join(folder, "redis.sock");
const redis = spawn("redis-server", ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"], { stdio: "ignore" });

// CPU time of Redis, µs: fields 14 and 15 of its stat, in ticks of 10 ms.
function redisMicros() {
  const fields = readFileSync(`/proc/${redis.pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10_000;
}

const connection = { path };
const queue = new Queue("bench", { connection });
await queue.waitUntilReady();
const data = { text: "a".repeat(250) };
for (let from = 0; from < JOBS; from += 1000) {
  await queue.addBulk(Array.from({ length: 1000 }, () => ({ name: "echo", data })));
}

const before = redisMicros();
const started = process.hrtime.bigint();
let finished = 0;
await new Promise((done) => {
  const worker = new Worker("bench", async (job) => job.data.text, { connection, concurrency, removeOnComplete: { count: 1000 } });
  worker.on("completed", () => {
    finished += 1;
    if (finished === JOBS) done(worker.close());
  });
});
const seconds = Number(process.hrtime.bigint() - started) / 1e9;
console.log(`${Math.round(JOBS / seconds)} jobs/s, Redis ${((redisMicros() - before) / JOBS).toFixed(1)} µs/job, concurrency ${concurrency}`);

await queue.close();
redis.kill();
rmSync(folder, { recursive: true });
