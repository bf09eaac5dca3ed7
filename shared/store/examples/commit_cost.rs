//! Measures Redis's CPU time for a turn with one call. Compares the store's commits, the same commands without a
//! script, and only their writes. The results are medians in microseconds.
//!
//! ```text
//! cargo run --example commit_cost -p tickfleet-store [redis-server]
//! cargo run --example commit_cost -p tickfleet-store instructions [batch size] [way]
//! ```
//!
//! With `instructions`, the server runs in valgrind. The results are thousands of instructions, and do not depend on
//! the load of the machine.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "a measurement"
)]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, cmd, pipe};
use tickfleet_core::{
    ConditionalDebit, CounterKey, EntryId, Guard, InboxKey, RecordKey, StreamKey, TimerRule, Transaction, Version,
    Window, Write,
};
use tickfleet_store::seam::redis::RedisStore;
use tickfleet_store::seam::{Store as _, TakeRequest};

const REPETITIONS: usize = 5;
const INSTRUCTIONS: &str = "instructions";
const AGENTS: usize = 30_000;
const WAYS: [Way; 3] = [Way::Store, Way::Same, Way::Writes];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Store,
    Same,
    Writes,
}

struct Texts {
    turn: String,
    record: String,
    call: String,
    result: String,
    audit: String,
}

impl Texts {
    fn new(n: usize) -> Self {
        let words = (1..10).map(|word| format!("{:016x}", (n * 10 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let text = words.collect::<String>() + "abcdef";
        let result = format!(
            r#"{{"tool_call_id":"c1","call":"t{n}-0/0","tool":"echo","success":true,"outcome":"ok","output":{{"text":"{text}"}},"duration_ms":0,"attempts":1}}"#
        );
        Self {
            record: format!(
                r#"1{{"tn":"t","ag":"a{n}","rt":"svc","fm":"openai","dl":1795306210410,"dg":"{}","cx":{{"corr":"c-{n}"}},"st":{{"ready":{{"at":1795306210000,"upto":1}}}}}}"#,
                &text[..32]
            ),
            call: format!(r#"{{"id":"call_abc123","n":"echo","a":{{"text":"{text}"}}}}"#),
            audit: format!(
                r#"{{"timestamp":"2026-11-27T11:38:58.384Z","level":"info","action":"TOOL_CALL","entityType":"tool","entityId":"echo","actorType":"agent","actorExternalId":"a{n}","tenant":"t","message":"Agent a{n} called echo: success","meta":{{"arguments":{{"text":"{text}"}},"result":"{text}","duration_ms":0,"success":true,"error":null,"retry_count":0,"outcome":"ok"}}}}"#
            ),
            turn: format!(
                r#"{{"tenant":"t","agent":"a{n}","reply_to":"svc","calls":[{{"id":"c1","name":"echo","arguments":{{"text":"{text}"}}}}]}}"#
            ),
            result: format!(
                r#"{{"turn_id":"t{n}-0","status":"done","results":[{result}],"messages":[{{"role":"tool","tool_call_id":"c1","content":"{text}"}}]}}"#
            ),
        }
    }
}

struct Bench {
    store: RedisStore,
    raw: MultiplexedConnection,
    prefix: String,
    /// The server's process ID if its instructions are counted.
    counted: Option<u32>,
    next: usize,
}

struct Server(Child, #[allow(dead_code, reason = "dropped with the server")] tempfile::TempDir);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let program = std::env::args().nth(1).unwrap_or_else(|| "redis-server".to_owned());
    let counts = program == INSTRUCTIONS;
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(if counts { "valgrind" } else { &program });
    if counts {
        command.args(["--tool=callgrind", "redis-server"]);
    }
    let child = command
        .current_dir(dir.path())
        .args(["--port", "0", "--unixsocket", "s", "--save", "", "--appendonly", "no"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let url = format!("unix://{}", dir.path().join("s").display());
    let server = Server(child, dir);
    tokio::time::sleep(Duration::from_millis(if counts { 8_000 } else { 700 })).await;
    let mut bench = Bench::open(&url, counts.then(|| server.0.id())).await;
    let only = std::env::args().nth(2).map(|batch| batch.parse::<usize>().unwrap());
    let ways: Vec<Way> = match std::env::args().nth(3) {
        Some(name) => WAYS.into_iter().filter(|way| format!("{way:?}").eq_ignore_ascii_case(&name)).collect(),
        None => WAYS.to_vec(),
    };
    println!("| batch | {ways:?} | first/others |");
    let (repetitions, share) = if counts { (1, 20) } else { (REPETITIONS, 1) };
    for (batch, rounds) in [(100, 80), (10, 400), (1, 2_000)] {
        if only.is_some_and(|only| only != batch) {
            continue;
        }
        let mut found = vec![Vec::new(); ways.len()];
        for _ in 0..repetitions {
            for (way, found) in ways.iter().zip(&mut found) {
                found.push(bench.measure(*way, batch, rounds / share).await);
            }
        }
        let found: Vec<f64> = found.into_iter().map(median).collect();
        let ratios: Vec<String> = found.iter().skip(1).map(|other| format!("{:.2}", found[0] / other)).collect();
        println!("| {batch} | {found:.1?} | {} |", ratios.join(", "));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Bench {
    async fn open(url: &str, counted: Option<u32>) -> Self {
        let store = RedisStore::open(url, 0, "tf", 10_000).unwrap();
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
        let client = redis::Client::open(url).unwrap();
        let raw = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
        Self { prefix: store.prefix().to_owned(), store, raw, counted, next: 0 }
    }

    async fn measure(&mut self, way: Way, batch: usize, rounds: usize) -> f64 {
        let _: () = cmd("FLUSHALL").query_async(&mut self.raw).await.unwrap();
        self.store.ensure_queues(&[StreamKey::new("turns"), StreamKey::new("ready:normal")]).await.unwrap();
        // More counters and timers than fit in Redis's compact encoding, where lookups have a different cost.
        let mut set = cmd("ZADD").arg(self.key("timers")).to_owned();
        for n in 0..200 {
            set.arg(1_995_306_210_410_i64).arg(format!("turn:t:other{n}"));
        }
        let _: () = set.query_async(&mut self.raw).await.unwrap();
        for _ in 0..6 {
            self.turns(way, 100).await;
        }
        let before = self.cost().await;
        for _ in 0..rounds {
            self.turns(way, batch).await;
        }
        (self.cost().await - before) / (rounds * batch) as f64
    }

    /// Thousands of instructions if they are counted, otherwise CPU time in microseconds.
    async fn cost(&mut self) -> f64 {
        if let Some(pid) = self.counted {
            let printed = Command::new("callgrind_control").args(["-e", &pid.to_string()]).output().unwrap().stdout;
            let printed = String::from_utf8(printed).unwrap();
            let total = printed.lines().find_map(|line| line.trim().strip_prefix("Th 1")).unwrap();
            return total.replace(',', "").trim().parse::<f64>().unwrap() / 1e3;
        }
        let info: String = cmd("INFO").arg("cpu").query_async(&mut self.raw).await.unwrap();
        let line = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok()).unwrap();
        (line("used_cpu_sys:") + line("used_cpu_user:")) * 1e6
    }

    async fn turns(&mut self, way: Way, batch: usize) {
        let first = self.next;
        self.next += batch;
        let turns = self.key("turns");
        let mut feed = pipe();
        for n in first..first + batch {
            feed.cmd("XADD").arg(&turns).arg("*").arg("turn").arg(Texts::new(n).turn).ignore();
        }
        let _: () = feed.query_async(&mut self.raw).await.unwrap();
        let inbound = self.take("turns", batch).await;
        self.admit(way, first, &inbound).await;
        let slices = self.take("ready:normal", batch).await;
        self.settle(way, first, &slices).await;
    }

    async fn take(&self, queue: &str, count: usize) -> Vec<EntryId> {
        let take = TakeRequest { consumer: "c".into(), queues: vec![StreamKey::new(queue)], count, wait_ms: 0 };
        self.store.take(&take).await.unwrap().into_iter().map(|taken| taken.entry).collect()
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    async fn admit(&mut self, way: Way, first: usize, inbound: &[EntryId]) {
        let numbered = inbound.iter().zip(first..);
        if way == Way::Store {
            let batch: Vec<Transaction> = numbered.map(|(entry, n)| self.admission(entry, n)).collect();
            let done = self.store.commit(&batch).await.unwrap();
            assert!(done.results.iter().all(Result::is_ok), "{:?}", done.results[0]);
            return;
        }
        let mut plain = pipe();
        for (entry, n) in numbered {
            self.plain_admission(&mut plain, way, entry, n);
        }
        self.finish(&mut plain, "turns", inbound);
        let _: () = plain.query_async(&mut self.raw).await.unwrap();
    }

    async fn settle(&mut self, way: Way, first: usize, slices: &[EntryId]) {
        let numbered = slices.iter().zip(first..);
        if way == Way::Store {
            let batch: Vec<Transaction> = numbered.map(|(entry, n)| self.settlement(entry, n)).collect();
            let done = self.store.commit(&batch).await.unwrap();
            assert!(done.results.iter().all(Result::is_ok), "{:?}", done.results[0]);
            return;
        }
        let mut plain = pipe();
        for (entry, n) in numbered {
            self.plain_settlement(&mut plain, way, entry, n);
        }
        self.finish(&mut plain, "ready:normal", slices);
        let _: () = plain.query_async(&mut self.raw).await.unwrap();
    }

    fn admission(&self, entry: &EntryId, n: usize) -> Transaction {
        let texts = Texts::new(n);
        let turn = RecordKey::new(format!("turn:t:t{n}"));
        let agent = format!("t:a{}", n % AGENTS);
        let day = Window::Day { start_ms: 0, end_ms: i64::MAX >> 12 };
        let mut t = Transaction::new(Version::new(format!("a1b2c3d4-{n:x}")));
        t.dedupe_record = Some(turn.clone());
        t.guard(Guard::Absent(turn.clone()));
        for (limit, counter, window) in [
            ("_tick", agent.as_str(), Window::Fixed { start_ms: 0, end_ms: i64::MAX >> 12, length_ms: 5_000 }),
            ("_day", agent.as_str(), day),
            ("_unfinished", "t", Window::Total),
            ("_out", "t", Window::Total),
        ] {
            t.guard(Guard::Debit(ConditionalDebit {
                counter: CounterKey::new(limit, counter),
                amount: 1,
                max: 1 << 40,
                window,
                behind_queue: true,
                shadow: false,
                counters_max: u64::MAX,
            }));
        }
        t.guard(Guard::Held(StreamKey::new("turns"), entry.clone()));
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let fields = vec![
            ("t".into(), bytes(turn.as_str())),
            ("v".into(), bytes(t.version.as_str())),
            ("m".into(), bytes(&texts.record)),
            ("c".into(), bytes(&texts.call)),
        ];
        t.write(Write::Enqueue(StreamKey::new("ready:normal"), fields));
        t.write(Write::Put { key: turn.clone(), content: bytes(&texts.record), ttl_ms: None });
        t.timer(turn.as_str(), 1_795_306_210_410, TimerRule::Set);
        t
    }

    fn settlement(&self, entry: &EntryId, n: usize) -> Transaction {
        let texts = Texts::new(n);
        let turn = RecordKey::new(format!("turn:t:t{n}"));
        let done = RecordKey::new(format!("done:t:t{n}"));
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let mut t = Transaction::new(Version::new(format!("e5f6a7b8-{n:x}")));
        t.dedupe_record = Some(done.clone());
        t.guard(Guard::Version(turn.clone(), Version::new(format!("a1b2c3d4-{n:x}"))));
        t.guard(Guard::Held(StreamKey::new("ready:normal"), entry.clone()));
        t.write(Write::Append {
            log: StreamKey::new("audit"),
            fields: vec![("audit".into(), bytes(&texts.audit))],
            max_entries: 10_000,
        });
        t.write(Write::Reply(InboxKey { tenant: "t".into(), inbox: "svc".into() }, bytes(&texts.result)));
        t.write(Write::Put { key: done, content: bytes(&texts.result), ttl_ms: Some(3_600_000) });
        t.write(Write::Delete(turn.clone()));
        t.write(Write::ClearTimer(turn.as_str().into()));
        for limit in ["_unfinished", "_out", "_bytes"] {
            t.write(Write::Add { counter: CounterKey::new(limit, "t"), amount: -1, ends_ms: None });
        }
        t
    }

    fn plain_admission(&self, plain: &mut Pipeline, way: Way, entry: &EntryId, n: usize) {
        let texts = Texts::new(n);
        let turn = format!("turn:t:t{n}");
        let agent = format!("t:a{}", n % AGENTS);
        if way == Way::Same {
            plain.cmd("EXISTS").arg(self.key(&turn)).ignore();
            plain.cmd("HGET").arg(self.key("counters:_")).arg(format!("_tick:{agent}")).ignore();
            plain.cmd("HGET").arg(self.key("counters:_")).arg(format!("_day:{agent}")).ignore();
        }
        plain.cmd("HSET").arg(self.key("counters:_")).arg(format!("_tick:{agent}")).arg([7_u8; 32].as_slice()).ignore();
        plain.cmd("HSET").arg(self.key("counters:_")).arg(format!("_day:{agent}")).arg([7_u8; 32].as_slice()).ignore();
        plain.cmd("HINCRBY").arg(self.key("counters:_")).arg("_unfinished:t").arg(1).ignore();
        plain.cmd("HINCRBY").arg(self.key("counters:_")).arg("_out:t").arg(1).ignore();
        plain.cmd("XACK").arg(self.key("turns")).arg("workers").arg(entry.as_str()).ignore();
        let version = format!("a1b2c3d4-{n:x}");
        plain.cmd("XADD").arg(self.key("ready:normal")).arg("*").arg("t").arg(&turn).arg("v").arg(&version);
        plain.arg("m").arg(&texts.record).arg("c").arg(&texts.call).ignore();
        let stored = format!("{version} 1795306210000-0 - {}", texts.record);
        plain.cmd("SET").arg(self.key(&turn)).arg(stored).ignore();
        plain.cmd("ZADD").arg(self.key("timers")).arg(1_795_306_210_410_i64).arg(&turn).ignore();
    }

    fn plain_settlement(&self, plain: &mut Pipeline, way: Way, entry: &EntryId, n: usize) {
        let texts = Texts::new(n);
        let turn = format!("turn:t:t{n}");
        let done = format!("done:t:t{n}");
        if way == Way::Same {
            plain.cmd("GETRANGE").arg(self.key(&turn)).arg(0).arg(12).ignore();
        }
        plain.cmd("XACK").arg(self.key("ready:normal")).arg("workers").arg(entry.as_str()).ignore();
        plain.cmd("XADD").arg(self.key("audit")).arg("MAXLEN").arg("~").arg(10_000).arg("*").arg("audit");
        plain.arg(&texts.audit).ignore();
        plain.cmd("HINCRBY").arg(self.key("seqs:t")).arg("svc").arg(1).ignore();
        plain
            .cmd("XADD")
            .arg(self.key("replies:t:svc"))
            .arg("*")
            .arg("reply")
            .arg(&texts.result)
            .arg("seq")
            .arg(n)
            .ignore();
        let stored = format!("e5f6a7b8-{n:x} - - {}", texts.result);
        plain.cmd("SET").arg(self.key(&done)).arg(stored).arg("PX").arg(3_600_000).ignore();
        if way == Way::Same {
            plain.cmd("PEXPIRE").arg(self.key(&format!("parts:{done}"))).arg(3_600_000).ignore();
        }
        plain.cmd("DEL").arg(self.key(&turn)).arg(self.key(&format!("parts:{turn}"))).ignore();
        plain.cmd("ZREM").arg(self.key("timers")).arg(&turn).ignore();
        for limit in ["_unfinished", "_out", "_bytes"] {
            plain.cmd("HINCRBY").arg(self.key("counters:_")).arg(format!("{limit}:t")).arg(-1).ignore();
        }
    }

    fn finish(&self, plain: &mut Pipeline, queue: &str, entries: &[EntryId]) {
        let entries: Vec<&str> = entries.iter().map(EntryId::as_str).collect();
        if entries.len() > 8 {
            plain.cmd("XPENDING").arg(self.key(queue)).arg("workers").arg("-").arg("+").arg(1).ignore();
            plain
                .cmd("XTRIM")
                .arg(self.key(queue))
                .arg("MINID")
                .arg(format!("{}9", entries[entries.len() - 1]))
                .ignore();
        } else {
            plain.cmd("XDEL").arg(self.key(queue)).arg(entries).ignore();
        }
        plain.cmd("TIME").ignore();
        plain.cmd("HSET").arg(self.key("meta")).arg("last_ms").arg(1_795_306_210_410_i64).ignore();
    }
}
