//! A worker as a list of what it holds. It may forget everything, or go on after its lease has ended.

use std::time::Duration;

use rand::Rng;
use tickfleet_model::ConsumerId;
use tickfleet_store::fields::slice as fields;
use tickfleet_store::{Begin, Begun, Entry, HandBack, Parked, Queue, Reader, Retry, Returned, TurnName, Wait};
use tickfleet_tests::referee::{Answer, Event, Fence, State};

use crate::interleavings::actors::endings::settle;
use crate::interleavings::game::{Game, Ghost, Violation, same};
use crate::interleavings::worlds::spec::QUEUES;
use crate::interleavings::worlds::world::Name;

/// A slice in memory.
#[derive(Debug, Clone)]
struct Holding {
    name: Name,
    spec: usize,
    queue: Queue,
    /// Redis' fence and the referee's.
    fence: (String, Fence),
    upto: usize,
    crashes: u32,
    /// The call to look at next.
    next: usize,
    /// Results that are not confirmed, from this position on.
    unsent_from: usize,
    unsent: Vec<String>,
    /// Whether a suspect slice was marked as started.
    marked: bool,
    /// The nonce of the next call's begin, and whether it was answered.
    begun: Option<(u64, bool)>,
    /// A retry whose answer has not come.
    retry: Option<(i64, u32)>,
    tries: u32,
    /// Why no more calls may run.
    stop: Option<&'static str>,
}

pub struct Worker {
    id: ConsumerId,
    reader: Reader,
    slices: Vec<Holding>,
}

impl Worker {
    pub fn new(game: &mut Game<'_>) -> Self {
        let id = game.consumer('w');
        let reader = game.table.store.reader(&id, Duration::from_millis(100));
        Self { id, reader, slices: Vec::new() }
    }

    /// One random step.
    pub async fn step(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        match game.rng.random_range(0..100) {
            0..12 => self.beat(game).await,
            12..34 => self.read(game, true).await,
            34..36 => self.read(game, false).await,
            36..90 => self.work(game).await,
            90..95 => self.hand_back(game).await,
            _ => {
                game.note(|| format!("{} crashes", self.id));
                let forgotten = std::mem::replace(self, Self::new(game));
                if !forgotten.slices.is_empty() && game.rng.random_bool(0.6) {
                    game.ghosts.push(Ghost::Worker(forgotten));
                }
                Ok(())
            }
        }
    }

    /// A step with stale memory: it was taken for dead, and goes on.
    pub async fn haunt(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        if game.rng.random_bool(0.2) { self.hand_back(game).await } else { self.work(game).await }
    }

    /// What a healthy worker does in one round, where the referee knows of something to do: to find that there is
    /// nothing would be most of the test's time, and the comparison at the end sees what was overlooked. Answers
    /// whether anything happened.
    pub async fn round(&mut self, game: &mut Game<'_>) -> Result<bool, Violation> {
        self.beat(game).await?;
        while QUEUES.iter().any(|q| !game.world.waiting(q).is_empty()) {
            self.read(game, true).await?;
        }
        // Rule 12: what was delivered and never arrived is found among one's own pending entries.
        let mine = |game: &Game<'_>| QUEUES.iter().map(|q| game.world.held(q, self.id.as_str()).len()).sum::<usize>();
        if mine(game) > self.slices.len() {
            self.read(game, false).await?;
        }
        let busy = !self.slices.is_empty();
        for _ in 0..25 {
            if self.slices.is_empty() {
                break;
            }
            self.work(game).await?;
        }
        Ok(busy)
    }

    pub async fn beat(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        game.world.beat(game.raw_now_ms, self.id.as_str());
        game.note(|| format!("{} beats", self.id));
        let beat = game.table.store.beat(&self.id).await.map_err(|e| e.to_string())?;
        same("beat now", &game.now_ms(), &beat.now_ms)
    }

    async fn read(&mut self, game: &mut Game<'_>, new: bool) -> Result<(), Violation> {
        let queue = QUEUES[game.rng.random_range(0..QUEUES.len())].clone();
        let (count, lost) = (game.rng.random_range(1..=3), game.rng.random_bool(0.05));
        let name = queue.to_string();
        let found = if new { self.reader.take(&name, count).await } else { self.reader.mine(&name, 100).await };
        let found = found.map_err(|e| e.to_string())?;
        let names = if new { game.world.waiting(&queue) } else { game.world.held(&queue, self.id.as_str()) };
        let names: Vec<Name> = names.into_iter().take(if new { count } else { 100 }).collect();
        game.note(|| format!("{} leases {names:?}{}", self.id, if lost { ", lost" } else { "" }));
        same("slices leased", &names.len(), &found.len())?;
        for (name, entry) in names.into_iter().zip(found) {
            if new {
                let now_ms = game.now_ms();
                game.world.apply(&name, Event::Lease, now_ms)?;
                if let Some(turn) = game.world.turns.get_mut(&name) {
                    turn.holder = Some(self.id.to_string());
                }
            }
            let holding = holding(game, name, queue.clone(), &entry)?;
            if !lost && !self.slices.iter().any(|h| h.fence == holding.fence) {
                self.slices.push(holding);
            }
        }
        Ok(())
    }

    /// One step of one slice.
    async fn work(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        if self.slices.is_empty() {
            return Ok(());
        }
        let at = game.rng.random_range(0..self.slices.len());
        let mut slice = self.slices.remove(at);
        if slice.work(game, self.id.as_str()).await? {
            self.slices.push(slice);
        }
        Ok(())
    }

    async fn hand_back(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        let unstarted = |h: &Holding| h.begun.is_none() && h.unsent.is_empty() && h.retry.is_none();
        let Some(at) = self.slices.iter().position(unstarted) else { return Ok(()) };
        let slice = self.slices[at].clone();
        let now_ms = game.world.clock(game.raw_now_ms);
        let expected = game.world.apply(&slice.name, Event::HandBack { fence: slice.fence.1 }, now_ms)?;
        game.note(|| format!("{} hands {} back: {expected:?}", self.id, slice.name));
        let back = HandBack {
            name: TurnName::parse(&slice.name).unwrap(),
            fence: slice.fence.0.clone(),
            queue: slice.queue.clone(),
            why: Returned::Stray,
        };
        let found = game.table.store.hand_back(&[back]).await.map_err(|e| e.to_string())?;
        same("hand_back", &usize::from(expected == Answer::Ok), &found)?;
        if !game.rng.random_bool(0.08) {
            self.slices.remove(at);
        }
        Ok(())
    }
}

/// Checks an entry against the referee's slice, and takes it into memory.
fn holding(game: &mut Game<'_>, name: Name, queue: Queue, entry: &Entry) -> Result<Holding, Violation> {
    let text = |field: &str| entry.field(field).map(|v| String::from_utf8_lossy(v).into_owned()).unwrap_or_default();
    let Some(turn) = game.world.turns.get(&name) else { return Err(format!("{name} is not known")) };
    let State::Out(live, slice) = &turn.state else { return Err(format!("{name} was leased in {:?}", turn.state)) };
    let calls: Vec<String> = (slice.first..live.admitted).map(|i| format!("c{i}")).collect();
    let found = entry
        .fields
        .iter()
        .filter(|(f, _)| f == fields::CALL.as_bytes())
        .map(|(_, v)| String::from_utf8_lossy(v).into_owned());
    let expected = (name.clone(), format!("m{}", turn.spec), slice.first, slice.crashes, slice.attempt);
    let number = |field: &str| text(field).parse::<usize>().unwrap_or(0);
    let (crashes, attempt) = (number(fields::CRASHES) as u32, number(fields::ATTEMPTS) as u32);
    let leased = (text(fields::NAME), text(fields::META), number(fields::FIRST), crashes, attempt);
    same("slice", &expected, &leased)?;
    same("calls of a slice", &calls, &found.collect())?;
    let (fence, first, upto, crashes, attempt) =
        (slice.fence, slice.first, live.admitted, slice.crashes, slice.attempt);
    let spec = turn.spec;
    game.world.fences.insert((name.clone(), fence), entry.id.clone());
    Ok(Holding {
        name,
        spec,
        queue,
        fence: (entry.id.clone(), fence),
        upto,
        crashes,
        next: first,
        unsent_from: first,
        unsent: Vec::new(),
        marked: false,
        begun: None,
        retry: None,
        tries: attempt,
        stop: None,
    })
}

impl Holding {
    /// One step. Answers whether the slice is still held.
    async fn work(&mut self, game: &mut Game<'_>, who: &str) -> Result<bool, Violation> {
        if self.retry.is_some() {
            return self.park(game, who).await;
        }
        let all = self.next >= self.upto;
        if all || (!self.unsent.is_empty() && game.rng.random_bool(0.5)) {
            return self.settle(game, who).await;
        }
        let once = game.world.specs[self.spec].once[self.next];
        if self.crashes > 0 && !self.marked && !self.begin(game, who, None).await? {
            return Ok(self.stop.is_some());
        }
        if once {
            return self.once(game, who).await;
        }
        match self.stop {
            Some(reason) => self.result(game, reason),
            None if self.unsent.is_empty() && game.rng.random_bool(0.15) && self.tries < 3 => self.plan_retry(game),
            None => self.result(game, "ok"),
        }
        Ok(true)
    }

    /// A call that must not happen twice: begun first, and its result committed before anything else begins.
    async fn once(&mut self, game: &mut Game<'_>, who: &str) -> Result<bool, Violation> {
        if !self.unsent.is_empty() {
            return self.settle(game, who).await;
        }
        match self.begun {
            Some((_, true)) => self.execute(game).map(|()| true),
            other => {
                let nonce = other.map_or_else(
                    || {
                        game.nonce += 1;
                        game.nonce
                    },
                    |(nonce, _)| nonce,
                );
                self.begun = Some((nonce, false));
                self.begin(game, who, Some(nonce)).await
            }
        }
    }

    /// The call runs. It takes effect, or provably does not, or nobody can tell.
    fn execute(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        let luck = game.rng.random_range(0..10);
        game.note(|| format!("{}/{} runs: {luck}", self.name, self.next));
        if luck < 8 {
            let times = game.world.executed.entry((self.name.clone(), self.next)).or_default();
            *times += 1;
            if *times > 1 {
                return Err(format!("{}/{} took effect twice", self.name, self.next));
            }
        }
        match luck {
            0..7 => self.result(game, "ok"),
            7 => self.result(game, "unknown"),
            8 if self.tries < 3 => self.plan_retry(game),
            _ => self.result(game, "permanent"),
        }
        Ok(())
    }

    fn plan_retry(&mut self, game: &mut Game<'_>) {
        self.retry = Some((game.rng.random_range(100..3_000), self.tries + 1));
    }

    fn result(&mut self, game: &mut Game<'_>, outcome: &str) {
        game.nonce += 1;
        self.unsent.push(format!(r#"{{"p":{},"o":"{outcome}","b":{}}}"#, self.next, game.nonce));
        (self.next, self.begun, self.tries) = (self.next + 1, None, 0);
    }

    /// Begins or marks in both worlds. Answers whether the slice may go on.
    async fn begin(&mut self, game: &mut Game<'_>, who: &str, nonce: Option<u64>) -> Result<bool, Violation> {
        let now_ms = game.world.clock(game.raw_now_ms);
        let hold = now_ms < game.world.epoch_ms + crate::interleavings::worlds::spec::LEASE_MS;
        let event = Event::Begin { fence: self.fence.1, position: self.next, nonce, hold };
        let expected = game.world.apply(&self.name, event, now_ms)?;
        game.note(|| format!("{who} begins {}/{} as {nonce:?}: {expected:?}", self.name, self.next));
        let call = Begin {
            name: TurnName::parse(&self.name).unwrap(),
            fence: self.fence.0.clone(),
            position: self.next,
            nonce: nonce.map(|n| n.to_string()),
            digest: "d".into(),
            knows: None,
        };
        let found = game.table.store.begin(&[call]).await.map_err(|e| e.to_string())?.remove(0);
        let word = match found {
            Begun::Done => Answer::ResultThere,
            Begun::Ok => Answer::Ok,
            Begun::Unknown => Answer::Unknown,
            Begun::Stale => Answer::Stale,
            Begun::Cancelled => Answer::Cancelled,
            Begun::Expired => Answer::Expired,
            Begun::Hold => Answer::Hold,
            Begun::Kept(_) => return Err(format!("{}: nothing was asserted", self.name)),
        };
        same("begin", &expected, &word)?;
        if game.rng.random_bool(0.08) {
            return Ok(true);
        }
        match word {
            Answer::Ok if nonce.is_some() => self.begun = self.begun.map(|(nonce, _)| (nonce, true)),
            Answer::Ok => self.marked = true,
            Answer::Hold => {}
            Answer::ResultThere if self.unsent.is_empty() => {
                (self.next, self.unsent_from, self.begun) = (self.next + 1, self.next + 1, None)
            }
            Answer::ResultThere => {}
            Answer::Unknown => self.result(game, "unknown"),
            Answer::Cancelled | Answer::Expired => {
                let reason = if word == Answer::Cancelled { "cancelled" } else { "expired" };
                self.stop = Some(reason);
                if nonce.is_some() {
                    self.result(game, reason);
                } else {
                    self.marked = true;
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    async fn settle(&mut self, game: &mut Game<'_>, who: &str) -> Result<bool, Violation> {
        let (first, results) = (self.unsent_from, self.unsent.clone());
        let queue = Some(self.queue.clone());
        let answer = settle(game, &self.name, (&self.fence.0, self.fence.1), queue, first, &results).await?;
        game.note(|| format!("{who} settles {} from {first}, {} results: {answer:?}", self.name, results.len()));
        if game.rng.random_bool(0.08) {
            return Ok(true);
        }
        match answer {
            Answer::Continue | Answer::Cancelled | Answer::Already => {
                (self.unsent_from, self.unsent) = (first + results.len(), Vec::new());
                if answer == Answer::Cancelled {
                    self.stop = Some("cancelled");
                }
                Ok(self.next < self.upto)
            }
            Answer::Gap => Err(format!("settle {}: results from {first} on, but earlier ones are missing", self.name)),
            _ => Ok(false),
        }
    }

    async fn park(&mut self, game: &mut Game<'_>, who: &str) -> Result<bool, Violation> {
        let Some((delay_ms, attempt)) = self.retry else { return Ok(true) };
        if game.rng.random_bool(0.1) {
            // It gives up instead, perhaps after a retry whose answer was lost.
            self.retry = None;
            self.result(game, "transient");
            return Ok(true);
        }
        // An even delay: it waits for somebody else's call.
        let (expected, word) = if delay_ms % 2 == 0 {
            self.wait(game, who, delay_ms).await?
        } else {
            self.try_later(game, who, (delay_ms, attempt)).await?
        };
        same("park", &expected, &word)?;
        if game.rng.random_bool(0.08) {
            return Ok(true);
        }
        match word {
            Answer::Cancelled => {
                self.retry = None;
                self.stop = Some("cancelled");
                // It did not take effect, or it may be run twice: nothing is hidden by saying so.
                self.result(game, "cancelled");
                Ok(true)
            }
            Answer::Gap => Err(format!("park {}: results before {} are missing", self.name, self.next)),
            _ => Ok(false),
        }
    }

    /// Parks the slice in both worlds until what its next call waits for has ended, or a while has passed.
    async fn wait(&self, game: &mut Game<'_>, who: &str, delay_ms: i64) -> Result<(Answer, Answer), Violation> {
        let expected = game.world.wait(game.raw_now_ms, &self.name, (self.fence.1, self.next), delay_ms)?;
        game.note(|| format!("{who} has {}/{} wait for {delay_ms}: {expected:?}", self.name, self.next));
        let wait = Wait {
            name: TurnName::parse(&self.name).unwrap(),
            fence: self.fence.0.clone(),
            queue: self.queue.clone(),
            position: self.next,
            awaits: Some(tickfleet_model::TurnId::new("somebody").unwrap()),
            at_most: Duration::from_millis(delay_ms.unsigned_abs()),
            has_begun: false,
            beside: false,
        };
        let found = game.table.store.wait(&[wait]).await.map_err(|e| e.to_string())?.remove(0);
        Ok((expected, answer_of(found)))
    }

    /// Parks the slice in both worlds until its next call is tried again.
    async fn try_later(
        &self,
        game: &mut Game<'_>,
        who: &str,
        (delay_ms, attempt): (i64, u32),
    ) -> Result<(Answer, Answer), Violation> {
        let now_ms = game.world.clock(game.raw_now_ms);
        let event = Event::Retry { fence: self.fence.1, position: self.next, delay_ms, attempt };
        let expected = game.world.apply(&self.name, event, now_ms)?;
        game.note(|| format!("{who} parks {}/{} for {delay_ms}: {expected:?}", self.name, self.next));
        let retry = Retry {
            name: TurnName::parse(&self.name).unwrap(),
            fence: self.fence.0.clone(),
            queue: self.queue.clone(),
            position: self.next,
            delay_ms,
            attempt,
            begun: false,
            beside: false,
            cause: format!("try {attempt}; of {}", self.name),
        };
        let found = game.table.store.retry(&[retry]).await.map_err(|e| e.to_string())?.remove(0);
        Ok((expected, answer_of(found)))
    }
}

fn answer_of(parked: Parked) -> Answer {
    match parked {
        Parked::Ok => Answer::Ok,
        Parked::Already => Answer::Already,
        Parked::Cancelled => Answer::Cancelled,
        Parked::Stale => Answer::Stale,
        Parked::Gap => Answer::Gap,
    }
}
