//! Random games, and the mutants (removed guards) that they detect.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use proptest::prelude::*;
use tickfleet_core::keys::{self, TurnName, limits};
use tickfleet_core::turn::State;
use tickfleet_core::turn::admit::AdmitResult;
use tickfleet_core::turn::advance::AdvanceResult;
use tickfleet_core::turn::limit::{ResolvedLimit, WindowKind};
use tickfleet_core::{CounterKey, EntryId};
use tickfleet_core::{mutants, transaction};
use tickfleet_model::limit::{LimitMode, OnReach};

use crate::block_on;
use crate::fleet::{BEGIN_MS, Dispatched, Fleet, TICK_MS, Table, call, head, place, turn_name};

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

const PER_TICK: usize = 4;
const PER_DAY: usize = 60;
const SEARCHES: u64 = 5;
const SEARCH_MS: i64 = 7_000;
const PERMITS: u64 = 2;
const FETCHES: u64 = 3;
const FETCH_MS: i64 = 3_000;

pub fn resolved(name: &str, max: u64, window: WindowKind, on_reach: OnReach) -> Arc<ResolvedLimit> {
    Arc::new(ResolvedLimit { name: name.into(), max, window, on_reach, mode: LimitMode::Enforce, counters_max: 100 })
}

struct Game {
    fleet: Fleet,
    dice: Dice,
    turns: Vec<(TurnName, Vec<&'static str>)>,
    held: [Vec<EntryId>; 2],
}

impl Game {
    async fn new(seed: u64) -> Self {
        let mut table = Table::new(PER_TICK as u32, PER_DAY as u32);
        table.resolved_limits = vec![
            resolved("search", SEARCHES, WindowKind::Fixed { length_ms: SEARCH_MS }, OnReach::Wait),
            resolved("browse", PERMITS, WindowKind::Concurrency, OnReach::Wait),
            resolved("fetch", FETCHES, WindowKind::Rolling { length_ms: FETCH_MS }, OnReach::Wait),
        ];
        let mut fleet = Fleet::new(table).await;
        fleet.bounds.tenant_in_flight_max = 6;
        Self { fleet, dice: Dice(seed), turns: Vec::new(), held: [Vec::new(), Vec::new()] }
    }

    async fn step(&mut self) {
        let by = self.dice.roll(2) as usize;
        match self.dice.roll(11) {
            0..=2 => {
                self.fleet.submit(None, "{}").await;
            }
            3..=4 => {
                let taken = self.fleet.take(by, 3).await;
                self.held[by].extend(taken);
                self.admit(by).await;
            }
            5 => {
                let ms = self.dice.roll(3_000) as i64;
                self.fleet.clock.step(ms);
            }
            6..=7 => {
                self.fleet.fire().await;
                self.release(by).await;
            }
            8 => {
                let most_ms = self.dice.roll(4_000) as i64;
                self.fleet.park(most_ms).await;
            }
            _ => {
                let count = self.dice.roll(4) as usize + 1;
                self.fleet.work(count).await;
            }
        }
    }

    async fn admit(&mut self, by: usize) {
        let agents = ["kelly", "robin"];
        let tools = ["search", "browse", "fetch", "other"];
        let mut batch = Vec::new();
        for entry in std::mem::take(&mut self.held[by]) {
            let agent = agents[self.dice.roll(2) as usize];
            let calls: Vec<&str> = (0..1 + self.dice.roll(6)).map(|_| tools[self.dice.roll(4) as usize]).collect();
            self.turns.push((turn_name(&format!("t{entry}")), calls.clone()));
            let calls = calls.iter().map(|tool| call(tool, "")).collect();
            let lasts_ms = if self.dice.roll(4) == 0 { self.dice.roll(30_000) as i64 } else { 1_000_000_000 };
            batch.push((entry, head(agent, BEGIN_MS + lasts_ms), calls));
        }
        let waiting = self.waiting().await;
        let admitted = self.fleet.admit(by, &batch).await;
        let still = self.waiting().await;
        for (admitted, (entry, head, _)) in admitted.iter().zip(&batch) {
            assert!(matches!(admitted, AdmitResult::Advanced(_)), "{admitted:?}");
            let queue = CounterKey::new(limits::TICK, format!("acme:{}", head.agent));
            let others = waiting.iter().filter(|(name, of)| **of == queue && still.get(*name) == Some(&queue));
            if matches!(admitted, AdmitResult::Advanced(AdvanceResult::Dispatched { .. })) {
                assert_eq!(others.count(), 0, "t{entry} has overtaken those that wait");
            }
        }
    }

    async fn waiting(&self) -> HashMap<TurnName, CounterKey> {
        let mut waiting = HashMap::new();
        for (name, _) in &self.turns {
            if let Some(State::Throttled { counter, .. }) = self.fleet.turn(name).await.map(|turn| turn.state) {
                waiting.insert(name.clone(), counter);
            }
        }
        waiting
    }

    async fn release(&mut self, by: usize) {
        let before = self.waiting().await;
        let from = self.fleet.dispatched.len();
        let released = self.fleet.release(by).await;
        // Ignore turns that this release moved: they may have returned to the first queue at a new position.
        let moved = |name: &TurnName| released.iter().any(|(of, released)| of == name && released.has_left_queue());
        let after = self.waiting().await;
        for Dispatched { name, .. } in &self.fleet.dispatched[from..] {
            let overtaken = before.iter().find(|(other, counter)| {
                let waits = after.get(*other) == Some(*counter) && !moved(other);
                waits && before.get(name) == Some(counter) && place(other) < place(name)
            });
            assert_eq!(overtaken, None, "{name} has overtaken it");
        }
    }

    async fn check(&self) {
        let mut ticks: HashMap<(String, i64), usize> = HashMap::new();
        let mut days: HashMap<String, usize> = HashMap::new();
        let mut searches: HashMap<i64, usize> = HashMap::new();
        let mut positions: HashMap<&TurnName, usize> = HashMap::new();
        let mut fetches: Vec<i64> = Vec::new();
        for Dispatched { name, calls, at_ms } in &self.fleet.dispatched {
            let tools = &self.turns.iter().find(|(of, _)| of == name).unwrap().1;
            let position = positions.entry(name).or_default();
            let count = |tool: &str| tools[*position..*position + calls].iter().filter(|of| **of == tool).count();
            let found = count("search");
            fetches.extend(vec![*at_ms; count("fetch")]);
            *position += calls;
            *searches.entry(at_ms.div_euclid(SEARCH_MS)).or_default() += found;
            let agent = self.fleet.agents[name].clone();
            *ticks.entry((agent.clone(), at_ms.div_euclid(TICK_MS))).or_default() += calls;
            *days.entry(agent).or_default() += calls;
        }
        assert!(ticks.values().all(|calls| *calls <= PER_TICK), "a tick was exceeded: {ticks:?}");
        assert!(days.values().all(|calls| *calls <= PER_DAY), "a day was exceeded: {days:?}");
        assert!(searches.values().all(|calls| *calls as u64 <= SEARCHES), "a limit was exceeded: {searches:?}");
        fetches.sort_unstable();
        let too_many = fetches.windows(FETCHES as usize + 1).find(|times| times[times.len() - 1] - times[0] < FETCH_MS);
        assert_eq!(too_many, None, "a rolling limit was exceeded");
        let mut permits = 0;
        let mut out = 0;
        for (name, _) in &self.turns {
            self.fleet.check_place(name).await;
            if let Some(turn) = self.fleet.turn(name).await {
                permits += turn.permits.iter().map(|(_, permits)| permits).sum::<u64>();
                out += u64::from(turn.state.in_flight_upto().is_some());
            }
        }
        assert!(permits <= PERMITS && out <= self.fleet.bounds.tenant_in_flight_max, "{permits} permits, {out} slices");
        assert_eq!(self.fleet.counter("browse", "all").await.used, permits);
        assert_eq!(self.fleet.counter(limits::IN_FLIGHT, "acme").await.used, out);
    }

    async fn drain(&mut self) {
        for round in 0..400 {
            let by = round % 2;
            let taken = self.fleet.take(by, 100).await;
            self.held[by].extend(taken);
            self.admit(by).await;
            self.fleet.fire().await;
            self.release(by).await;
            self.fleet.work(100).await;
            self.fleet.clock.step(400);
            let mut unfinished = 0;
            for (name, _) in &self.turns {
                unfinished += usize::from(self.fleet.finished(name).await.is_none());
            }
            if unfinished == 0 {
                return;
            }
        }
        panic!("some turns never ended: {:?}", self.waiting().await);
    }
}

fn play(seed: u64) {
    block_on(async {
        let mut game = Game::new(seed).await;
        for _ in 0..60 {
            game.step().await;
        }
        game.check().await;
        game.drain().await;
        game.check().await;
        for (name, calls) in &game.turns {
            let finished = game.fleet.finished(name).await.unwrap();
            let ended = |word: &str| finished.reply.matches(word).count();
            let results = ended("\"ok ") + ended("DailyCapReached") + ended("Expired");
            assert_eq!(results, calls.len(), "{}", finished.reply);
        }
        for limit in [limits::UNFINISHED, limits::BYTES, limits::IN_FLIGHT] {
            assert_eq!(game.fleet.counter(limit, "acme").await.used, 0, "{limit}");
        }
        // If a queue became empty without a release, its timer stays until it fires.
        game.fleet.clock.step(86_400_000);
        game.fleet.release(0).await;
        let timers = game.fleet.members(keys::timers(), None).await;
        // This game does not run the timers of cascades (cancellations of everything below a task).
        assert!(timers.iter().all(|timer| timer.starts_with("cascade:")), "{timers:?}");
        let replies = transaction::StreamKey::new("replies:acme:box");
        assert_eq!(game.fleet.entries(replies).await, game.turns.len());
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn caps_and_queue_order_hold_under_random_schedules(seed in any::<u64>()) {
        play(seed);
    }
}

fn is_detected(mutant: &'static str) -> bool {
    let fails = |seed| catch_unwind(AssertUnwindSafe(|| mutants::with(mutant, || play(seed)))).is_err();
    (0..200).any(fails)
}

#[test]
fn games_detect_missing_guards() {
    for mutant in ["limits_guard_the_room", "release_in_order"] {
        assert!(is_detected(mutant), "{mutant}");
    }
}

#[test]
fn a_fixed_window_admits_at_most_twice_its_maximum_around_a_boundary() {
    block_on(async {
        let mut fleet = Fleet::new(Table::new(10, 1_000)).await;
        fleet.clock.set(BEGIN_MS + TICK_MS - 1);
        for at in 0..40 {
            if at == 20 {
                fleet.clock.step(1);
            }
            fleet.submit(None, "{}").await;
            let entry = fleet.take(0, 1).await.remove(0);
            let turn = (entry, head("kelly", BEGIN_MS + 1_000_000), vec![call("other", "")]);
            fleet.admit(0, &[turn]).await;
            fleet.release(1).await;
        }
        let around: usize = fleet.dispatched.iter().map(|one| one.calls).sum();
        assert_eq!(around, 20, "10 in the last millisecond of a tick, 10 in the first of the next");
    });
}
