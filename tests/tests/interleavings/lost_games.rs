//! Random interleavings in which Redis comes back as it was some steps ago: workers that live say what they did since,
//! one of them may be dead or paused, and no call is carried out twice whose worker spoke in time (rule 8).

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tickfleet_model::{ConsumerId, Priority};
use tickfleet_store::{
    Admission, AdmitReply, Admitted, Assertion, Begin, Begun, Claim, Entry, Queue, ReplyFrame, Scripts, Settled,
    SettledCall, Settlement, TurnName,
};
use tickfleet_testkit::RedisOptions;

use super::lost::Snapshot;
use super::number_from_environment;
use super::targeted::Shard;

const TURNS: usize = 4;
const CALLS: usize = 2;
const WORKERS: usize = 3;
const QUEUES: [Queue; 2] = [Queue::Ready(Priority::Normal), Queue::Suspect(Priority::Normal)];
/// What a result says that nobody knows.
const UNKNOWN: &str = r#""unknown""#;

/// A slice in a worker's hands, at one of its calls.
struct Run {
    name: TurnName,
    fence: String,
    queue: Queue,
    position: usize,
    /// The nonce of the call's begin, where it has begun; then it was carried out too.
    began: Option<String>,
    /// A result that was kept, or that nobody knows.
    told: Option<String>,
}

struct Worker {
    id: String,
    run: Option<Run>,
    /// What it carried out, by turn and position: nonce, and the result once it is settled.
    ran: BTreeMap<(String, usize), (String, bool)>,
    /// Whether this Redis knows it.
    has_told: bool,
    /// It neither beats nor acts until then, ms of the game.
    paused_until: i64,
}

struct Game {
    shard: Shard,
    chance: StdRng,
    turns: Vec<Admission>,
    workers: Vec<Worker>,
    born: usize,
    nonces: usize,
    elapsed_ms: i64,
    snapshot: Option<Snapshot>,
    lost: bool,
    /// Who carried out each call.
    executed: BTreeMap<(String, usize), Vec<String>>,
    /// Nonces of workers that died, or spoke too late.
    unheard: Vec<String>,
}

fn result(text: &str) -> SettledCall {
    SettledCall { result: text.into(), message: "m".into(), audit: "a".into(), facts: None, failed: false }
}

fn text(entry: &Entry, field: &str) -> String {
    String::from_utf8_lossy(entry.field(field).unwrap_or_default()).into_owned()
}

impl Game {
    async fn new(seed: u64, scripts: Scripts) -> Self {
        let shard = Shard::new(RedisOptions::default(), scripts).await;
        let mut turns = shard.inbound(TURNS).await;
        for turn in &mut turns {
            turn.meta = r#"{"dg":"d"}"#.into();
        }
        let mut game = Self {
            shard,
            chance: StdRng::seed_from_u64(seed),
            turns,
            workers: Vec::new(),
            born: 0,
            nonces: 0,
            elapsed_ms: 0,
            snapshot: None,
            lost: false,
            executed: BTreeMap::new(),
            unheard: Vec::new(),
        };
        (0..WORKERS).for_each(|_| game.new_worker());
        game
    }

    fn new_worker(&mut self) {
        self.born += 1;
        let (id, ran) = (format!("w{}", self.born), BTreeMap::new());
        self.workers.push(Worker { id, run: None, ran, has_told: true, paused_until: 0 });
    }

    async fn step(&mut self) {
        match self.chance.random_range(0..100) {
            0..15 => self.admit().await,
            15..75 => {
                let at = self.chance.random_range(0..self.workers.len());
                self.work(at).await;
            }
            75..90 => {
                let ms = self.chance.random_range(20..1_500);
                self.pass(ms).await;
            }
            90..95 if self.snapshot.is_none() => self.snapshot = Some(Snapshot::of(&self.shard).await),
            95..100 => self.lose().await,
            _ => {}
        }
    }

    async fn admit(&mut self) {
        let at = self.chance.random_range(0..self.turns.len());
        let AdmitReply::Decided { turns, .. } = self.shard.admit(&self.turns[at..=at]).await.unwrap() else {
            panic!("nothing was decided")
        };
        assert!(matches!(turns[0], Admitted::Dispatched | Admitted::Duplicate), "{turns:?}");
    }

    /// Time goes by; who lives and does not pause beats, and tells a Redis that does not know it.
    async fn pass(&mut self, ms: i64) {
        self.shard.advance(ms);
        self.elapsed_ms += ms;
        self.shard.beat("s").await;
        for at in 0..self.workers.len() {
            if self.workers[at].paused_until <= self.elapsed_ms {
                self.beat(at).await;
            }
        }
        self.shard.store.reap(10).await.unwrap();
    }

    async fn beat(&mut self, at: usize) {
        let id = self.workers[at].id.clone();
        self.shard.store.beat(&ConsumerId::new(id).unwrap()).await.unwrap();
        if !self.workers[at].has_told {
            let said: Vec<_> = self.workers[at].ran.iter().map(|(call, known)| assertion(call, known)).collect();
            self.shard.store.assert(&said, true).await.unwrap();
            self.workers[at].has_told = true;
        }
    }

    /// Redis comes back as it was, once a game. Each worker lives, dies with it, or pauses for longer than begins are
    /// held back: what the latter two did may not be known in time.
    async fn lose(&mut self) {
        if self.lost || self.snapshot.is_none() {
            return;
        }
        self.lost = true;
        self.snapshot.take().unwrap().comes_back(&self.shard).await;
        // Nothing is admitted in a window that began before anybody noticed.
        self.shard.beat("s").await;
        self.shard.advance(6_000);
        self.elapsed_ms += 6_000;
        for at in (0..self.workers.len()).rev() {
            self.workers[at].has_told = false;
            let fate = self.chance.random_range(0..10);
            if fate < 4 {
                self.unheard.extend(self.workers[at].ran.values().map(|(nonce, _)| nonce.clone()));
            }
            match fate {
                0..2 => drop(self.workers.remove(at)),
                2..4 => self.workers[at].paused_until = self.elapsed_ms + 30_000,
                _ => {}
            }
        }
        while self.workers.len() < WORKERS {
            self.new_worker();
        }
        self.pass(0).await;
    }

    async fn work(&mut self, at: usize) {
        let worker = &self.workers[at];
        if worker.paused_until > self.elapsed_ms || !worker.has_told {
            return;
        }
        match &worker.run {
            None => self.take(at).await,
            Some(run) if run.began.is_some() || run.told.is_some() => self.settle(at).await,
            Some(_) => self.begin(at).await,
        }
    }

    /// A slice that it holds and does not know of, or a new one.
    async fn take(&mut self, at: usize) {
        let mut reader = self.shard.reader(&self.workers[at].id);
        for queue in QUEUES {
            let mut found = reader.mine(&queue.to_string(), 1).await.unwrap();
            if found.is_empty() {
                found = reader.take(&queue.to_string(), 1).await.unwrap();
            }
            let Some(entry) = found.pop() else { continue };
            let name = TurnName::parse(&text(&entry, "t")).unwrap();
            let position = text(&entry, "p").parse().unwrap_or(0);
            self.workers[at].run = Some(Run { name, fence: entry.id, queue, position, began: None, told: None });
            return;
        }
    }

    async fn begin(&mut self, at: usize) {
        self.nonces += 1;
        let nonce = format!("n{}", self.nonces);
        let worker = &mut self.workers[at];
        let Some(run) = &mut worker.run else { return };
        let begin = Begin {
            name: run.name.clone(),
            fence: run.fence.clone(),
            position: run.position,
            nonce: Some(nonce.clone()),
            digest: "d".into(),
            knows: None,
        };
        let call = (run.name.to_string(), run.position);
        match self.shard.store.begin(&[begin]).await.unwrap().remove(0) {
            Begun::Ok => {
                run.began = Some(nonce.clone());
                worker.ran.insert(call.clone(), (nonce.clone(), false));
                self.executed.entry(call).or_default().push(nonce);
            }
            Begun::Kept(kept) => run.told = Some(kept.result.to_string()),
            Begun::Unknown => run.told = Some(UNKNOWN.to_owned()),
            Begun::Done => run.position += 1,
            Begun::Hold => {}
            Begun::Stale => worker.run = None,
            other => panic!("{call:?}: {other:?}"),
        }
        if worker.run.as_ref().is_some_and(|run| run.position >= CALLS) {
            worker.run = None;
        }
    }

    async fn settle(&mut self, at: usize) {
        let worker = &mut self.workers[at];
        let Some(run) = &mut worker.run else { return };
        let said = run.told.clone().or_else(|| run.began.as_ref().map(|nonce| format!("\"{nonce}\""))).unwrap();
        let settlement = Settlement {
            name: run.name.clone(),
            fence: run.fence.clone(),
            queue: Some(run.queue.clone()),
            first: run.position,
            reply_to: None,
            frame: ReplyFrame { head: r#"{"results":["#.into(), ..ReplyFrame::default() },
            calls: vec![result(&said)],
        };
        let settled = self.shard.store.settle(&[settlement]).await.unwrap().remove(0);
        let call = (run.name.to_string(), run.position);
        let known = worker.ran.get_mut(&call).filter(|(nonce, _)| run.began.as_ref() == Some(nonce));
        if let Some((_, ended)) = known {
            *ended = true;
        }
        match settled {
            Settled::Continue => (run.position, run.began, run.told) = (run.position + 1, None, None),
            Settled::Done | Settled::Already => worker.run = None,
            Settled::Stale | Settled::Gap => {
                // Whoever has it now finds the result, unless the call was begun again.
                if let Some(known) = worker.ran.get(&call) {
                    self.shard.store.assert(&[assertion(&call, known)], false).await.unwrap();
                }
                worker.run = None;
            }
            other => panic!("{call:?}: {other:?}"),
        }
    }

    async fn is_over(&self) -> bool {
        let mut redis = self.shard.server.connection().await;
        let mut pipe = redis::pipe();
        for turn in 0..TURNS {
            pipe.cmd("EXISTS").arg(self.shard.store.keys().key(format!("done:acme:t{turn}")));
        }
        let ended: Vec<u8> = pipe.query_async(&mut redis).await.unwrap();
        ended.iter().all(|ended| *ended == 1)
    }

    /// What the record of a turn that has ended says of its calls.
    async fn results(&self, turn: usize) -> Vec<String> {
        let mut redis = self.shard.server.connection().await;
        let key = self.shard.store.keys().key(format!("done:acme:t{turn}"));
        let record: String = redis::cmd("GET").arg(key).query_async(&mut redis).await.unwrap();
        let reply: serde_json::Value = serde_json::from_str(record.split_once('\n').unwrap().1).unwrap();
        reply["results"].as_array().unwrap().iter().map(|said| said.as_str().unwrap().to_owned()).collect()
    }

    /// The first promise that is broken, in words.
    async fn broken(&self) -> Option<String> {
        for turn in 0..TURNS {
            let said = self.results(turn).await;
            if said.len() != CALLS {
                return Some(format!("t{turn} has {} results", said.len()));
            }
            for (position, said) in said.into_iter().enumerate() {
                let call = (format!("acme:t{turn}"), position);
                let by = self.executed.get(&call).cloned().unwrap_or_default();
                let heard = by.iter().filter(|nonce| !self.unheard.contains(nonce)).count();
                if by.len() > 1 && heard == by.len() {
                    return Some(format!("{call:?} was carried out by {by:?}, all of whom spoke in time"));
                }
                if by.is_empty() || !(said == "unknown" || by.contains(&said)) {
                    return Some(format!("{call:?} is told as {said}, and was carried out by {by:?}"));
                }
            }
        }
        None
    }
}

fn assertion(call: &(String, usize), known: &(String, bool)) -> Assertion {
    let (nonce, ended) = known;
    let claim = if *ended { Claim::Ended(result(&format!("\"{nonce}\""))) } else { Claim::Begun };
    let (name, position) = (TurnName::parse(&call.0).unwrap(), call.1);
    Assertion { name, position, digest: "d".into(), nonce: nonce.as_str().into(), kept_ms: 3_600_000, claim }
}

/// Plays one game to its end. Answers the promise that was broken, and whether anything was lost at all.
async fn play(seed: u64, scripts: Scripts) -> (Option<String>, bool) {
    let mut game = Game::new(seed, scripts).await;
    for _ in 0..80 {
        game.step().await;
    }
    for _ in 0..3_000 {
        if game.is_over().await {
            return (game.broken().await, game.lost);
        }
        game.step().await;
    }
    (Some("not every turn has ended".into()), game.lost)
}

#[tokio::test]
async fn what_living_workers_did_is_never_done_again_whenever_redis_loses_it() {
    // Of few games, chance may let none lose anything.
    let count = (number_from_environment("TICKFLEET_INTERLEAVINGS").unwrap_or(10_000) / 100).max(20);
    let mut lost = 0;
    for seed in 0..count {
        let (broken, has_lost) = play(seed, Scripts::embedded()).await;
        assert_eq!(broken, None, "seed {seed}");
        lost += u64::from(has_lost);
    }
    assert!(lost * 2 > count, "{lost} of {count} games lost something");
}

#[tokio::test]
async fn without_the_marks_calls_are_done_again() {
    let mut broken = Vec::new();
    for seed in 0..60 {
        let scripts = Scripts::embedded().sabotage("if mark and mark.nonce ~= nonce then", "if false then").unwrap();
        broken.extend(play(seed, scripts).await.0);
    }
    assert!(broken.iter().any(|why| why.contains("all of whom spoke in time")), "{broken:?}");
}
