//! The storage-only baseline of a turn: pipelined commands that store the data of a turn in Redis, without scripts.

use anyhow::{Context, Result};
use redis::Pipeline;
use redis::aio::MultiplexedConnection;

use super::load::words;
use super::server::{PREFIX, Server};

/// The fleet's batches at saturation have this size.
const BATCH: u64 = 100;
const BATCHES: u64 = 400;
const WARM_UP: u64 = 20;
const AGENTS: u64 = 100;
/// Two counters: for the current tick and for the day.
const COUNTER_BYTES: usize = 32;
const RECORD_BYTES: usize = 300;
/// Longer than the measurement.
const RETAIN_MS: u64 = 60_000;

type Read = Option<Vec<(String, Vec<(String, Vec<String>)>)>>;

struct Sizes {
    turn: usize,
    audit: usize,
    reply: usize,
    record: usize,
}

pub(super) async fn measure(server: &Server, payload_bytes: usize) -> Result<f64> {
    let mut connection = server.connection().await?;
    let sizes = Sizes::of_the_last_turn(&mut connection, payload_bytes).await.context("the sizes of a turn")?;
    let baseline = Baseline { connection, sizes };
    baseline.run(server).await
}

impl Sizes {
    async fn of_the_last_turn(connection: &mut MultiplexedConnection, payload_bytes: usize) -> Result<Self> {
        let audit = newest(connection, &format!("{PREFIX}audit")).await?;
        let mut scan = redis::cmd("SCAN");
        scan.arg(0).arg("MATCH").arg(format!("{PREFIX}inboxes:*")).arg("COUNT").arg(1_000_000);
        let (_, found): (String, Vec<String>) = scan.query_async(connection).await?;
        let of_tenant = found.first().context("the fleet has not answered")?;
        let inboxes: Vec<String> = redis::cmd("ZREVRANGE").arg(of_tenant).arg(0).arg(0).query_async(connection).await?;
        let inbox = inboxes.first().context("the fleet has not answered")?;
        let tenant = of_tenant.strip_prefix(&format!("{PREFIX}inboxes:")).unwrap_or_default();
        let reply = newest(connection, &format!("{PREFIX}replies:{tenant}:{inbox}")).await?;
        // The trace in the record has about 120 bytes.
        Ok(Self { turn: payload_bytes, audit, reply, record: reply + 120 })
    }
}

async fn newest(connection: &mut MultiplexedConnection, stream: &str) -> Result<usize> {
    let found: Vec<(String, Vec<String>)> =
        redis::cmd("XREVRANGE").arg(stream).arg("+").arg("-").arg("COUNT").arg(1).query_async(connection).await?;
    let (_, fields) = found.first().with_context(|| format!("{stream} is empty"))?;
    Ok(fields.get(1).map_or(0, String::len))
}

struct Baseline {
    connection: MultiplexedConnection,
    sizes: Sizes,
}

fn key(name: &str) -> String {
    format!("{PREFIX}baseline:{name}")
}

impl Baseline {
    async fn run(mut self, server: &Server) -> Result<f64> {
        let streams = ["turns", "ready", "audit", "replies", "timers", "budgets"].map(key);
        let clean = redis::cmd("DEL").arg(&streams).to_owned();
        clean.query_async::<()>(&mut self.connection).await?;
        for stream in [key("turns"), key("ready")] {
            let create = redis::cmd("XGROUP").arg("CREATE").arg(&stream).arg("g").arg("$").arg("MKSTREAM").to_owned();
            create.query_async::<()>(&mut self.connection).await?;
        }
        let mut before = server.cpu().await?;
        for batch in 0..WARM_UP + BATCHES {
            if batch == WARM_UP {
                before = server.cpu().await?;
            }
            self.batch(batch * BATCH).await?;
        }
        let spent = server.cpu().await? - before;
        clean.query_async::<()>(&mut self.connection).await?;
        Ok(spent.seconds * 1e6 / (BATCHES * BATCH) as f64)
    }

    async fn batch(&mut self, first: u64) -> Result<()> {
        let turns = first..first + BATCH;
        let mut submit = redis::pipe();
        for turn in turns.clone() {
            submit.cmd("XADD").arg(key("turns")).arg("*").arg("turn").arg(words(turn, self.sizes.turn)).ignore();
        }
        submit.query_async::<()>(&mut self.connection).await?;

        let entries = self.read("turns").await?;
        let mut admit = redis::pipe();
        for turn in turns.clone() {
            self.admit(&mut admit, turn);
        }
        let scored = turns.clone().flat_map(|turn| [turn.to_string(), format!("t:{turn}")]);
        admit.cmd("ZADD").arg(key("timers")).arg(scored.collect::<Vec<_>>()).ignore();
        let counters = (0..2 * AGENTS).flat_map(|at| [format!("tick:tenant:agent-{at}"), words(at, COUNTER_BYTES)]);
        admit.cmd("HSET").arg(key("budgets")).arg(counters.collect::<Vec<_>>()).ignore();
        acknowledge(&mut admit, "turns", &entries);
        admit.query_async::<()>(&mut self.connection).await?;

        let entries = self.read("ready").await?;
        let mut settle = redis::pipe();
        for turn in turns.clone() {
            self.settle(&mut settle, turn);
        }
        settle
            .cmd("ZREM")
            .arg(key("timers"))
            .arg(turns.clone().map(|turn| format!("t:{turn}")).collect::<Vec<_>>())
            .ignore();
        settle.cmd("DEL").arg(turns.clone().map(|turn| key(&format!("turn:{turn}"))).collect::<Vec<_>>()).ignore();
        acknowledge(&mut settle, "ready", &entries);
        for stream in ["audit", "replies"] {
            settle.cmd("XTRIM").arg(key(stream)).arg("MAXLEN").arg("~").arg(10_000).ignore();
        }
        settle.query_async::<()>(&mut self.connection).await?;

        let reply = redis::cmd("XREVRANGE").arg(key("replies")).arg("+").arg("-").arg("COUNT").arg(BATCH).to_owned();
        reply.query_async::<Vec<(String, Vec<String>)>>(&mut self.connection).await?;
        Ok(())
    }

    fn admit(&self, pipe: &mut Pipeline, turn: u64) {
        let record = words(turn, self.sizes.turn + RECORD_BYTES);
        pipe.cmd("SET").arg(key(&format!("turn:{turn}"))).arg(record).ignore();
        let slice = words(turn, self.sizes.turn);
        pipe.cmd("XADD").arg(key("ready")).arg("*").arg("t").arg(format!("tenant:{turn}")).arg("m").arg(slice).ignore();
    }

    fn settle(&self, pipe: &mut Pipeline, turn: u64) {
        // The fleet reads these bytes to compare the record's version.
        pipe.cmd("GETRANGE").arg(key(&format!("turn:{turn}"))).arg(0).arg(20).ignore();
        pipe.cmd("XADD").arg(key("audit")).arg("*").arg("audit").arg(words(turn, self.sizes.audit)).ignore();
        let reply = words(turn, self.sizes.reply);
        pipe.cmd("XADD").arg(key("replies")).arg("*").arg("reply").arg(reply).arg("seq").arg(turn).ignore();
        let record = words(turn, self.sizes.record);
        pipe.cmd("SET").arg(key(&format!("done:{turn}"))).arg(record).arg("PX").arg(RETAIN_MS).ignore();
    }

    async fn read(&mut self, stream: &str) -> Result<Vec<String>> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("g").arg("c").arg("COUNT").arg(BATCH).arg("STREAMS").arg(key(stream)).arg(">");
        let found: Read = read.query_async(&mut self.connection).await?;
        let entries = found.into_iter().flatten().flat_map(|(_, entries)| entries);
        Ok(entries.map(|(id, _)| id).collect())
    }
}

fn acknowledge(pipe: &mut Pipeline, stream: &str, entries: &[String]) {
    pipe.cmd("XACK").arg(key(stream)).arg("g").arg(entries).ignore();
    pipe.cmd("XTRIM").arg(key(stream)).arg("MINID").arg(entries.last()).ignore();
}
