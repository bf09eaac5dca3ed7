//! Evaluates the alerts on metrics of a real fleet under faults. Each scrape waits for an expected state and counts as
//! one minute, so a slow machine gets the same result.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use tokio::time::Instant;

use super::fleet::{Fleet, Scrape, echo, enqueue, turn, work};
use super::history::{AlertResult, History};
use super::{PATIENCE, PAUSE};

const WELL: &str = "all is well";
const HANGS: &str = "a tool hangs";
const FULL: &str = "slow calls hold all slots";
const KILLED: &str = "workers are killed";
const AWAY: &str = "Redis is away";
const BACK: &str = "Redis is back";

/// (first phase in which the alert fires, alert, reason). Other alerts must not fire.
const FIRES: [(&str, &str, &str); 10] = [
    (HANGS, "TickfleetToolFailing", "calls time out, and so do their retries"),
    (HANGS, "TickfleetOutcomeUnknown", "some of them must not run twice"),
    (FULL, "TickfleetSlotsExhausted", "no slot is free for ready work"),
    (KILLED, "TickfleetNoWorker", "all workers are killed"),
    (KILLED, "TickfleetTargetDown", "and stay away for a while"),
    (KILLED, "TickfleetWorkersDying", "again and again"),
    (KILLED, "TickfleetQuarantined", "with the same slices at work"),
    (KILLED, "TickfleetInternalErrors", "which are then ended as internal"),
    (AWAY, "TickfleetRedisDown", "nobody reaches Redis"),
    (BACK, "TickfleetRedisRestarted", "it has lost what it had in memory"),
];

/// Alerts that must have ended when the given phase begins.
const ENDED: [(&str, &str); 2] = [(BACK, "TickfleetRedisDown"), (AWAY, "TickfleetNoWorker")];

/// These alerts may fire, but only on a slow machine.
const OF_THE_MACHINE: [&str; 2] = ["TickfleetStartSlowFastBurn", "TickfleetStartSlowSlowBurn"];
/// Up to this share of late starts, no alert of [`OF_THE_MACHINE`] may fire. Prometheus extrapolates, so the share is
/// lower than the 6 % of the rule.
const LATE_MAX: f64 = 0.05;
/// With fewer starts, the share of late starts does not count. Prometheus extrapolates, so the number is lower than the
/// 100 of the rules.
const STARTS_MIN: f64 = 50.0;
/// The window, in minutes, of the rule with the threshold of 14 %. The window of the other rule is longer than the
/// history.
const WINDOW: usize = 60;

const SLOW: f64 = 2.0;
/// Three kills are needed, and more if a worker is killed before its slice has begun.
const KILLS_MAX: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_of_a_real_fleet_fire_the_right_alerts() {
    let mut story = AlertScenario::begin().await;
    story.all_is_well().await;
    story.a_tool_hangs().await;
    story.slow_calls_hold_all_slots().await;
    story.workers_are_killed().await;
    story.redis_is_away().await;
    story.redis_is_back().await;
    let late = story.starts.late();
    story.note(&format!("the verdict; the share of late starts was {late:.3} at most"));
    let verdict = story.history.verdict();
    judge(&verdict, late > LATE_MAX);
    annotations_are_filled_in(&verdict.said);
}

fn judge(verdict: &AlertResult, slow_machine: bool) {
    let mut may: BTreeSet<&str> = OF_THE_MACHINE.into_iter().filter(|_| slow_machine).collect();
    for (phase, fired) in &verdict.fired {
        let fired: BTreeSet<&str> = fired.iter().map(String::as_str).collect();
        let should: BTreeSet<&str> = FIRES.iter().filter(|(of, _, _)| of == phase).map(|(_, name, _)| *name).collect();
        may.extend(&should);
        let missing: Vec<_> = should.difference(&fired).collect();
        assert!(missing.is_empty(), "{phase}: these should have fired: {missing:?}. Those that did: {fired:?}");
        let wrong: Vec<_> = fired.difference(&may).collect();
        assert!(wrong.is_empty(), "{phase}: these should not have fired: {wrong:?}\n{}", verdict.said);
        for (_, name) in ENDED.iter().filter(|(of, _)| of == phase) {
            assert!(!fired.contains(name), "{phase}: {name} fires still");
        }
    }
}

fn annotations_are_filled_in(said: &str) {
    assert!(said.contains("Annotations:{description=\"No scheduler and no worker reaches Redis."), "{said}");
    for wrong in ["{{", "<no value>", "<error"] {
        assert!(!said.contains(wrong), "{wrong}:\n{said}");
    }
}

#[derive(Default)]
struct Starts {
    last: BTreeMap<usize, (f64, f64)>,
    minutes: Vec<(f64, f64)>,
}

impl Starts {
    fn add(&mut self, scrape: &Scrape) {
        let (mut all, mut late) = self.minutes.last().copied().unwrap_or_default();
        for (place, page) in scrape.pages.iter().enumerate() {
            let of = |series: &str| page.as_ref()?.get(series).copied();
            let Some(count) = of("tickfleet_schedule_to_start_seconds_count") else { continue };
            let soon = of("tickfleet_schedule_to_start_seconds_bucket{le=\"1\"}").unwrap();
            // The counters of a new worker process begin at zero, so older values are ignored.
            let (old_count, old_soon) =
                self.last.get(&place).filter(|(old, _)| *old <= count).copied().unwrap_or_default();
            (all, late) = (all + count - old_count, late + (count - soon) - (old_count - old_soon));
            self.last.insert(place, (count, soon));
        }
        self.minutes.push((all, late));
    }

    /// Returns the largest share of late starts in any hour, or since the beginning.
    fn late(&self) -> f64 {
        let minutes = &self.minutes;
        let shares = (1..minutes.len()).flat_map(|now| {
            [0, now.saturating_sub(WINDOW)].map(|then| {
                let all = minutes[now].0 - minutes[then].0;
                let late = minutes[now].1 - minutes[then].1;
                // Like the alerts, ignores a share of only a few starts.
                if all < STARTS_MIN { 0.0 } else { late / all }
            })
        });
        shares.fold(0.0, f64::max)
    }
}

struct AlertScenario {
    fleet: Fleet,
    history: History,
    starts: Starts,
    rounds: u64,
    began: Instant,
}

impl AlertScenario {
    async fn begin() -> Self {
        // One slow call per worker occupies all slots, and is lost if the worker is killed.
        let fleet = Fleet::start(1).await;
        let history = History::new();
        let starts = Starts::default();
        Self { fleet, history, starts, rounds: 0, began: Instant::now() }
    }

    fn note(&self, what: &str) {
        eprintln!("{:5.1} s: {what}", self.began.elapsed().as_secs_f64());
    }

    fn phase(&mut self, name: &'static str) {
        self.note(name);
        self.history.phase(name);
    }

    async fn until(&self, what: &str, is: impl Fn(&Scrape) -> bool) -> Scrape {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let scrape = self.fleet.scrape();
            if is(&scrape) {
                return scrape;
            }
            assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}. Last seen: {}", scrape.summary());
            // The fleet does not report state changes, so it is polled.
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn minute(&mut self, what: &str, is: impl Fn(&Scrape) -> bool) -> Scrape {
        let scrape = self.until(what, is).await;
        self.history.add(&self.fleet, &scrape);
        self.starts.add(&scrape);
        scrape
    }

    async fn minutes_of_work(&mut self, minutes: u64) {
        for _ in 0..minutes {
            self.submit(&work(self.rounds)).await;
            self.rounds += 1;
            self.minute("the calls are done", Scrape::is_calm).await;
        }
    }

    async fn submit(&self, turns: &[serde_json::Value]) {
        enqueue(&mut self.fleet.redis.connection().await, turns).await.unwrap();
    }

    /// Half an hour without faults is longer than the delay of any alert that could fire by mistake.
    async fn all_is_well(&mut self) {
        self.until("the fleet runs", Scrape::is_calm).await;
        self.phase(WELL);
        self.minutes_of_work(30).await;
        let seen = self.until("no turn waits for its cap", |s| s.is_calm() && s.backlog("parked_capped") == 0.0).await;
        for (what, count) in [
            ("were released from throttle queues", seen.sum("tickfleet_released_total", &[])),
            ("were denied", seen.sum("tickfleet_calls_total", &["outcome=\"denied\""])),
            ("were repeated", seen.sum("tickfleet_retries_total", &[])),
        ] {
            assert!(count >= 10.0, "{count} {what}");
        }
    }

    /// Each call occupies a slot until the timeout, and so does each retry.
    async fn a_tool_hangs(&mut self) {
        self.phase(HANGS);
        let hang = json!({"outcomes": ["hang"]});
        let once = turn("dwight", &[("fail_once", hang.clone())]);
        self.submit(&[once]).await;
        let unknown = |s: &Scrape| s.sum("tickfleet_calls_total", &["outcome=\"outcome_unknown\""]) >= 1.0;
        self.minute("a call has timed out", |s| s.is_calm() && unknown(s)).await;
        for batch in 1..=9 {
            self.submit(&["emma", "link"].map(|agent| turn(agent, &[("fail", hang.clone())]))).await;
            let failed = |s: &Scrape| s.sum("tickfleet_calls_total", &["tool=\"fail\"", "outcome=\"transient\""]);
            self.minute("calls have timed out", |s| s.is_calm() && failed(s) >= 2.0 * f64::from(batch)).await;
            self.minute("nothing waits", Scrape::is_calm).await;
        }
    }

    async fn slow_calls_hold_all_slots(&mut self) {
        self.phase(FULL);
        self.submit(&["petra", "terry"].map(|agent| turn(agent, &[("sleep", json!({"ms": 600_000}))]))).await;
        let busy = |s: &Scrape| s.is_whole() && s.sum("tickfleet_slots_busy", &[]) == SLOW;
        self.minute("all slots are busy", busy).await;
        self.submit(&["penny", "timmy"].map(|agent| turn(agent, &[echo()]))).await;
        let oldest = |s: &Scrape| s.values("tickfleet_oldest_age_seconds", &["state=\"ready\""]).fold(0.0, f64::max);
        for _ in 0..12 {
            self.minute("calls have waited for half a minute", |s| busy(s) && oldest(s) > 30.0).await;
        }
    }

    async fn workers_are_killed(&mut self) {
        self.phase(KILLED);
        let quarantined = |s: &Scrape| s.sum("tickfleet_quarantined_total", &[]);
        let taken_back = |s: &Scrape| s.sum("tickfleet_reaped_total", &[]) + quarantined(s);
        let mut seen = self.until("all is known", Scrape::is_whole).await;
        for kill in 1..=KILLS_MAX {
            let expected = taken_back(&seen) + SLOW - quarantined(&seen);
            self.note(&format!("kill {kill}"));
            self.fleet.kill_workers();
            let taken_back = |s: &Scrape| s.is_whole() && taken_back(s) >= expected;
            for _ in 0..if kill == 1 { 7 } else { 2 } {
                seen = self.minute("what they held is taken back", taken_back).await;
            }
            self.fleet.start_who_is_down();
            if quarantined(&seen) == SLOW {
                // The alert about dead workers needs this time to fire and to end.
                return self.minutes_of_work(15).await;
            }
            let waiting = |s: &Scrape| s.backlog("ready") + s.backlog("suspect");
            let at_work = |s: &Scrape| waiting(s) == 0.0 && s.backlog("running") == SLOW - quarantined(s);
            seen = self.minute("it is at work again", |s| s.is_whole() && at_work(s)).await;
        }
        panic!("workers were killed {KILLS_MAX} times, and nothing is quarantined: {}", seen.summary());
    }

    async fn redis_is_away(&mut self) {
        self.phase(AWAY);
        self.fleet.redis.kill9();
        for _ in 0..4 {
            self.minute("nobody reaches Redis", |s| s.sum("tickfleet_redis_up", &[]) == 0.0).await;
        }
    }

    async fn redis_is_back(&mut self) {
        self.fleet.redis.restart().await;
        self.phase(BACK);
        let noticed = |s: &Scrape| s.is_calm() && s.sum("tickfleet_epoch_changes_total", &[]) > 0.0;
        self.minute("all have found it again", noticed).await;
        self.minutes_of_work(14).await;
    }
}
