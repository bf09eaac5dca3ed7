//! A scheduler as a list of what it remembers. It may forget everything, or go on after its lease has ended.

mod timed;

use std::time::Duration;

use rand::Rng;
use tickfleet_model::{AgentId, ConsumerId, InboxName, TaskId, TenantId, TurnId};
use tickfleet_store::{
    Admission, AdmitReply, Admitted as Found, Ending, Entry, Generations, Inbound, LanePolicy, LaneRelease, Promoted,
    Reader, Rejection, ReleaseReply, SweepAt, TurnName,
};
use tickfleet_tests::referee::{Answer, Fence};

use crate::interleavings::actors::endings::{settle, take_ending};
use crate::interleavings::game::{Game, Ghost, Violation, same};
use crate::interleavings::worlds::spec::{ODD_AGENT, RELEASE_BOUND, Rows, number_of};
use crate::interleavings::worlds::verbs::{Admitted, Batch, Candidate};
use crate::interleavings::worlds::world::Name;

/// An inbound entry in memory.
#[derive(Debug, Clone)]
struct Held {
    candidate: Candidate,
    origin: String,
}

pub struct Scheduler {
    id: ConsumerId,
    reader: Reader,
    generation: u64,
    /// The generation of the tenants that it knows. One that has just started knows none.
    tenants: u64,
    /// When it last reckoned the day, ms.
    day_at_ms: i64,
    held: Vec<Held>,
    refused: Vec<(Held, &'static str)>,
    endings: Vec<(Ending, Fence)>,
    /// After a script error: turn by turn.
    alone: bool,
}

impl Scheduler {
    pub fn new(game: &mut Game<'_>) -> Self {
        let id = game.consumer('s');
        let reader = game.table.store.reader(&id, Duration::from_millis(100));
        Self {
            id,
            reader,
            generation: game.world.generation,
            tenants: 0,
            day_at_ms: game.now_ms(),
            held: Vec::new(),
            refused: Vec::new(),
            endings: Vec::new(),
            alone: false,
        }
    }

    /// One random step.
    pub async fn step(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        if !game.rng.random_bool(0.15) {
            self.day_at_ms = game.now_ms();
        }
        match game.rng.random_range(0..100) {
            0..10 => self.beat(game).await,
            10..26 => self.read(game, ">").await,
            26..28 => self.read(game, "0").await,
            28..45 => self.admit(game).await,
            45..50 => self.reject(game).await,
            50..60 => self.release(game).await,
            60..69 => self.promote(game).await,
            69..71 => self.sweep(game).await,
            71..79 => self.settle(game).await,
            79..93 => self.reap(game).await,
            93..95 => {
                (self.generation, self.tenants) = (game.world.generation, game.world.tenants_generation);
                Ok(())
            }
            _ => {
                game.note(|| format!("{} crashes", self.id));
                let forgotten = std::mem::replace(self, Self::new(game));
                if game.rng.random_bool(0.5) {
                    game.ghosts.push(Ghost::Scheduler(forgotten));
                }
                Ok(())
            }
        }
    }

    /// Beats and reaps.
    pub async fn survive(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        self.beat(game).await?;
        self.reap(game).await
    }

    /// A step with stale memory: it was taken for dead, and goes on.
    pub async fn haunt(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        match game.rng.random_range(0..3) {
            0 => self.admit(game).await,
            1 => self.reject(game).await,
            _ => self.settle(game).await,
        }
    }

    /// What a healthy scheduler does in one round. Answers whether anything happened.
    pub async fn round(&mut self, game: &mut Game<'_>) -> Result<bool, Violation> {
        (self.generation, self.day_at_ms) = (game.world.generation, game.now_ms());
        self.tenants = game.world.tenants_generation;
        self.beat(game).await?;
        let others = |holder: &Option<String>| holder.as_ref().is_some_and(|h| h != self.id.as_str());
        let held = game.world.turns.values().any(|t| others(&t.holder))
            || game.world.inbound.iter().any(|e| others(&e.holder))
            // Delivered, and held by nobody: its reader was deleted.
            || game.world.inbound.iter().any(|e| e.holder.is_none() && e.order <= game.world.delivered);
        if held {
            self.reap(game).await?;
        }
        if !game.world.inbound.is_empty() {
            self.read(game, ">").await?;
            self.read(game, "0").await?;
        }
        let busy = !self.held.is_empty() || !self.endings.is_empty();
        while !self.held.is_empty() || !self.refused.is_empty() {
            self.admit(game).await?;
            self.reject(game).await?;
        }
        if game.world.lost().next().is_some() {
            self.sweep(game).await?;
        }
        if game.world.next_timer_ms().is_some_and(|at_ms| at_ms <= game.now_ms()) {
            self.release(game).await?;
            self.promote(game).await?;
        }
        let busy = busy || !self.endings.is_empty();
        while !self.endings.is_empty() {
            self.settle(game).await?;
        }
        Ok(busy)
    }

    async fn beat(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        game.world.beat(game.raw_now_ms, self.id.as_str());
        game.note(|| format!("{} beats", self.id));
        let beat = game.table.store.beat(&self.id).await.map_err(|e| e.to_string())?;
        same("beat now", &game.now_ms(), &beat.now_ms)?;
        same("beat epoch", &game.world.epoch_ms, &beat.epoch_ms)?;
        same("beat generation", &game.world.generation, &beat.policy_generation)
    }

    async fn read(&mut self, game: &mut Game<'_>, from: &str) -> Result<(), Violation> {
        let count = game.rng.random_range(1..=3);
        let lost = game.rng.random_bool(0.05);
        let found =
            if from == ">" { self.reader.take("turns", count).await } else { self.reader.mine("turns", 100).await };
        let found = found.map_err(|e| e.to_string())?;
        let mut expected: Vec<usize> = Vec::new();
        for (at, entry) in game.world.inbound.iter().enumerate() {
            // What was delivered comes again to nobody, also where its reader was deleted: reap writes it anew.
            let new = from == ">" && entry.order > game.world.delivered && expected.len() < count;
            let mine = from == "0" && entry.holder.as_deref() == Some(self.id.as_str());
            if new || mine {
                expected.push(at);
            }
        }
        game.note(|| {
            format!(
                "{} reads {:?}{}",
                self.id,
                found.iter().map(|e| e.id.as_str()).collect::<Vec<_>>(),
                if lost { ", lost" } else { "" }
            )
        });
        same("entries read", &expected.len(), &found.len())?;
        for (at, entry) in expected.into_iter().zip(&found) {
            let held = self.deliver(game, at, entry)?;
            let fresh = !self
                .held
                .iter()
                .chain(self.refused.iter().map(|(h, _)| h))
                .any(|h| h.candidate.entry == held.candidate.entry);
            if fresh && !lost {
                self.held.push(held);
            }
        }
        self.mark_suspect(game).await
    }

    fn deliver(&self, game: &mut Game<'_>, at: usize, entry: &Entry) -> Result<Held, Violation> {
        let text = |name: &str| entry.field(name).map(|v| String::from_utf8_lossy(v).into_owned());
        let known = &mut game.world.inbound[at];
        if known.id.is_some() {
            same("entry", &known.id, &Some(entry.id.clone()))?;
        }
        known.id = Some(entry.id.clone());
        known.holder = Some(self.id.as_str().to_owned());
        let order = known.order;
        same("payload", &Some(known.spec.to_string()), &text("turn"))?;
        same("crashes", &(known.crashes), &text("x").map_or(0, |x| x.parse().unwrap_or(0)))?;
        same("origin", &known.origin, &text("o").unwrap_or_else(|| entry.id.clone()))?;
        let (origin, spec) = (known.origin.clone(), known.spec);
        game.world.delivered = game.world.delivered.max(order);
        let turn = game.world.specs[spec].given.clone().unwrap_or_else(|| format!("t{origin}"));
        Ok(Held { candidate: Candidate { entry: entry.id.clone(), turn, spec }, origin })
    }

    /// An entry whose reader has died before is named before it is looked into.
    async fn mark_suspect(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        let crashed =
            |h: &&Held| game.world.inbound.iter().any(|e| e.id.as_deref() == Some(&h.candidate.entry) && e.crashes > 0);
        let suspect = self.held.iter().find(crashed).map(|h| h.candidate.entry.clone());
        game.table.store.suspect(Inbound::Turns, &self.id, suspect.as_deref()).await.map_err(|e| e.to_string())?;
        match suspect {
            Some(entry) => game.world.suspects.insert(self.id.to_string(), entry),
            None => game.world.suspects.remove(self.id.as_str()),
        };
        Ok(())
    }

    fn rows(&self, game: &Game<'_>) -> Rows {
        game.policy(self.generation).rows(self.day_at_ms, &game.caps_set(self.tenants))
    }

    fn by(&self) -> Generations {
        Generations { policy: self.generation, tenants: self.tenants }
    }

    async fn admit(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        let take = if self.alone { 1 } else { game.rng.random_range(1..=3) };
        let batch: Vec<Held> = self.held.iter().take(take).cloned().collect();
        if batch.is_empty() {
            return Ok(());
        }
        let policy = game.policy(self.generation);
        let rows = self.rows(game);
        let staggered = |h: &Held| {
            let spec = &game.world.specs[h.candidate.spec];
            (h.candidate.clone(), policy.stagger_ms(spec.tenant, spec.agent))
        };
        let candidates: Vec<_> = batch.iter().map(staggered).collect();
        let admissions: Vec<_> =
            candidates.iter().map(|(c, stagger_ms)| admission(game, c, *stagger_ms, &rows)).collect();
        let expected = game.world.admit(game.raw_now_ms, self.by(), &rows, &candidates)?;
        game.note(|| {
            format!("{} admits {:?}: {expected:?}", self.id, batch.iter().map(|h| &h.candidate).collect::<Vec<_>>())
        });
        let found = game.table.store.admit(self.by(), &rows.rows, &rows.limit_rows(), &admissions).await;
        let (expected, turns) = match (expected, found) {
            (Batch::PolicyStale, Ok(AdmitReply::PolicyStale)) => {
                self.generation = game.world.generation;
                return Ok(());
            }
            (Batch::TenantsStale, Ok(AdmitReply::TenantsStale)) => {
                self.tenants = game.world.tenants_generation;
                return Ok(());
            }
            (Batch::DayStale, Ok(AdmitReply::DayStale { .. })) => {
                self.day_at_ms = game.now_ms();
                return Ok(());
            }
            (Batch::Fails, Err(error)) if error.is_script_error() => {
                self.failed(batch);
                return Ok(());
            }
            (Batch::Decided(expected), Ok(AdmitReply::Decided { turns, .. })) => (expected, turns),
            (expected, found) => return Err(format!("admit: the referee says {expected:?}, Redis says {found:?}")),
        };
        self.alone = false;
        game.look_at_queues(&rows).await?;
        let lost = game.rng.random_bool(0.08);
        for ((held, expected), found) in batch.into_iter().zip(expected).zip(turns) {
            let ending = self.admitted(game, &expected, found)?;
            if lost {
                continue;
            }
            self.held.retain(|h| h.candidate.entry != held.candidate.entry);
            match expected {
                Admitted::Conflict => self.refused.push((held, "conflict")),
                Admitted::Refused(code) => self.refused.push((held, code)),
                _ => self.endings.extend(ending),
            }
        }
        Ok(())
    }

    /// A script error does not tell the culprit: it is found by going turn by turn, and goes to the dead.
    fn failed(&mut self, batch: Vec<Held>) {
        if batch.len() == 1 {
            self.alone = false;
            self.held.retain(|h| h.candidate.entry != batch[0].candidate.entry);
            self.refused.extend(batch.into_iter().map(|h| (h, "script_error")));
        } else {
            self.alone = true;
        }
    }

    fn admitted(
        &self,
        game: &mut Game<'_>,
        expected: &Admitted,
        found: Found,
    ) -> Result<Option<(Ending, Fence)>, Violation> {
        match (expected, found) {
            (Admitted::Dispatched, Found::Dispatched)
            | (Admitted::Laned, Found::Laned)
            | (Admitted::Duplicate, Found::Duplicate)
            | (Admitted::Later, Found::Later)
            | (Admitted::Conflict, Found::Conflict) => Ok(None),
            (Admitted::Refused(code), Found::Refused(found)) if *code == found => Ok(None),
            (Admitted::Ending(name), Found::Ending(ending)) => take_ending(game, name, *ending).map(Some),
            (expected, found) => Err(format!("admit: the referee says {expected:?}, Redis says {found:?}")),
        }
    }

    async fn reject(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        let Some((held, code)) = self.refused.first().cloned() else { return Ok(()) };
        let spec = game.world.specs[held.candidate.spec].clone();
        // What cannot be read is refused too, and says nothing of its id that could be believed.
        let readable = game.rng.random_bool(0.8);
        let expected = game.world.reject(game.raw_now_ms, &held.candidate.entry, readable);
        game.note(|| format!("{} rejects {} as {code}: {expected}", self.id, held.candidate.entry));
        let rejection = Rejection {
            entry: held.candidate.entry.clone(),
            reason: code.to_owned(),
            raw: Vec::new(),
            reply_to: spec.inbox.map(|inbox| (TenantId::new(spec.tenant).unwrap(), InboxName::new(inbox).unwrap())),
            absent: None,
            reply: format!("rejected {}", held.origin),
            given: spec.given.clone().filter(|_| readable).map(|id| {
                let name = TurnName { tenant: TenantId::new(spec.tenant).unwrap(), turn: TurnId::new(id).unwrap() };
                (name, spec.digest.clone())
            }),
        };
        let found = game.table.store.reject(Inbound::Turns, &[rejection]).await.map_err(|e| e.to_string())?;
        same("reject", &vec![expected], &found)?;
        if !game.rng.random_bool(0.08) {
            self.refused.remove(0);
        }
        Ok(())
    }

    async fn settle(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        let Some((ending, fence)) = self.endings.first().cloned() else { return Ok(()) };
        let name = ending.name.to_string();
        let results = (ending.first..ending.upto).map(|position| {
            let unknown = ending.begun.is_some_and(|begun| begun.position == position);
            let outcome = if unknown { "unknown" } else { ending.reason.as_str() };
            format!(r#"{{"p":{position},"o":"{outcome}"}}"#)
        });
        let results: Vec<String> = results.collect();
        let answer = settle(game, &name, (&ending.fence, fence), None, ending.first, &results).await?;
        game.note(|| format!("{} ends {name} from {}: {answer:?}", self.id, ending.first));
        if !game.rng.random_bool(0.08) {
            self.endings.remove(0);
        }
        Ok(())
    }

    async fn reap(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        let expected = game.world.reap(game.raw_now_ms)?;
        game.note(|| format!("{} reaps: {expected:?}", self.id));
        let found = game.table.store.reap(100).await.map_err(|e| e.to_string())?;
        let counts = (found.active, found.requeued, found.endings.len(), found.dead);
        same("reap", &(expected.active, expected.requeued, expected.endings.len(), expected.dead), &counts)?;
        let lost = game.rng.random_bool(0.08);
        self.take_endings(game, &expected.endings, found.endings, lost)
    }
}

fn admission(game: &Game<'_>, candidate: &Candidate, stagger_ms: i64, rows: &Rows) -> Admission {
    let spec = &game.world.specs[candidate.spec];
    debug_assert!(spec.agent != ODD_AGENT || spec.budget.is_none());
    Admission {
        entry: candidate.entry.clone(),
        tenant: TenantId::new(spec.tenant).unwrap(),
        agent: AgentId::new(spec.agent).unwrap(),
        turn: TurnId::new(&candidate.turn).unwrap(),
        given: spec.given.is_some(),
        digest: spec.digest.clone(),
        policy: number_of(spec.tenant),
        priority: spec.priority,
        deadline_ms: spec.deadline_ms,
        stagger_ms,
        reply_to: spec.inbox.map(|inbox| InboxName::new(inbox).unwrap()),
        task: spec.task.as_ref().map(|task| TaskId::new(task).unwrap()),
        meta: format!("m{}", candidate.spec),
        calls: (0..spec.calls()).map(|i| format!("c{i}")).collect(),
        counters: rows.counters(spec, 0),
    }
}
