#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;

use super::*;
use tickfleet_model::{Caps, DayCapAction};

const TICK_MS: i64 = 5_000;
const LEASE: Lease = Lease { ms: 3_000, epoch_ms: 0 };

fn caps(calls_per_tick: u32, calls_per_day: u32) -> Caps {
    Caps {
        tick_ms: TICK_MS,
        calls_per_tick,
        calls_per_day,
        tenant_calls_per_day: None,
        on_day_cap: DayCapAction::Defer,
    }
}

/// Asks for `wanted` calls at `now_ms`, in a day of 24 hours; answers how many were admitted.
fn ask(agent: &mut AgentBudgets, caps: Caps, stagger_ms: i64, day_end_ms: i64, now_ms: i64, wanted: usize) -> u32 {
    ask_in(agent, caps, stagger_ms, (day_end_ms - 86_400_000, day_end_ms), now_ms, wanted)
}

/// As [`ask`], in a day that begins and ends then.
fn ask_in(
    agent: &mut AgentBudgets,
    caps: Caps,
    stagger_ms: i64,
    day_ms: (i64, i64),
    now_ms: i64,
    wanted: usize,
) -> u32 {
    agent.roll(now_ms, stagger_ms, caps.tick_ms, day_ms);
    let mut tenant_day = Budget { used: 0, end_ms: i64::MAX };
    let mut chain = Chain { agent, tenant_day: &mut tenant_day, task: None, limits: &mut [], cut: None };
    match decide(wanted, Rules { caps, epoch_ms: 0, room: true }, &mut chain) {
        Verdict::Dispatch(count) => u32::try_from(count).unwrap(),
        Verdict::Wait(_) | Verdict::WaitFor(..) | Verdict::Refuse(..) | Verdict::End(..) => 0,
    }
}

proptest! {
    /// The documented price of fixed windows: around a boundary twice the cap passes, and never more.
    #[test]
    fn an_interval_as_long_as_a_tick_lets_at_most_twice_the_cap_pass(
        cap in 1_u32..12, stagger_ms in 0..TICK_MS, asks in prop::collection::vec((0_i64..3_000, 1_usize..20), 1..60),
    ) {
        let (mut agent, mut now_ms, mut admitted) = (AgentBudgets::default(), 1_000_000, Vec::new());
        for (later_ms, wanted) in asks {
            now_ms += later_ms;
            admitted.push((now_ms, ask(&mut agent, caps(cap, 10_000), stagger_ms, i64::MAX, now_ms, wanted)));
        }
        for (from_ms, _) in &admitted {
            let inside = |at_ms: i64| at_ms >= *from_ms && at_ms < from_ms + TICK_MS;
            let sum: u32 = admitted.iter().filter(|(at_ms, _)| inside(*at_ms)).map(|(_, k)| k).sum();
            prop_assert!(sum <= 2 * cap, "{sum} calls within one tick's length under a cap of {cap}");
        }
    }

    /// Rule 1: within what was promised as one window, the cap in force is never exceeded, whatever changes.
    #[test]
    fn a_budget_is_never_reopened_by_another_tick_zone_or_cap(
        asks in prop::collection::vec((0_i64..4_000, 1_usize..9, 1_u32..6, 1_i64..6, -3_i64..4), 1..80),
    ) {
        let (mut agent, mut now_ms) = (AgentBudgets::default(), 1_000_000);
        let (mut tick, mut day) = ((0, 0), (0, 0));
        for (later_ms, wanted, cap, tick_s, zone) in asks {
            now_ms += later_ms;
            let caps = Caps { tick_ms: tick_s * 1_000, ..caps(cap, 3 * cap) };
            let day_end_ms = (now_ms + zone * 3_000).div_euclid(20_000) * 20_000 + 20_000 - zone * 3_000;
            let before = agent;
            let admitted = ask(&mut agent, caps, 0, day_end_ms, now_ms, wanted);
            prop_assert!(now_ms >= before.tick.end_ms || agent.tick.end_ms == before.tick.end_ms);
            prop_assert!(now_ms >= before.day.end_ms || agent.day.end_ms == before.day.end_ms);
            tick = if tick.0 == agent.tick.end_ms { (tick.0, tick.1 + admitted) } else { (agent.tick.end_ms, admitted) };
            day = if day.0 == agent.day.end_ms { (day.0, day.1 + admitted) } else { (agent.day.end_ms, admitted) };
            prop_assert!(admitted == 0 || (tick.1 <= cap && day.1 <= 3 * cap));
        }
    }

    /// Days have 23, 24 or 25 hours: the bounds are numbers, and each day has its own budget.
    #[test]
    fn a_day_of_any_length_lets_its_cap_pass(hours in prop::collection::vec(23_i64..=25, 1..10), cap in 1_u32..50) {
        let (mut agent, mut start_ms) = (AgentBudgets::default(), 1_000_000_000);
        for length in hours {
            let end_ms = start_ms + length * 3_600_000;
            let asks = (0..length * 4).map(|quarter| start_ms + quarter * 900_000);
            let sum: u32 = asks.map(|now_ms| ask_in(&mut agent, caps(10, cap), 0, (start_ms, end_ms), now_ms, 3)).sum();
            prop_assert_eq!(sum, cap.min(u32::try_from(length * 12).unwrap()));
            start_ms = end_ms;
        }
    }

    #[test]
    fn windows_of_one_agent_follow_each_other_without_gap(now_ms in 0_i64..10_000_000, stagger_ms in 0..TICK_MS) {
        let end_ms = window_end(now_ms, stagger_ms, TICK_MS);
        prop_assert!(end_ms - TICK_MS <= now_ms && now_ms < end_ms);
        prop_assert_eq!((end_ms - stagger_ms).rem_euclid(TICK_MS), 0);
        prop_assert_eq!(window_end(end_ms, stagger_ms, TICK_MS), end_ms + TICK_MS);
    }

    /// Promise 1: whatever happens, in whatever order, with whatever stale fences.
    #[test]
    fn the_results_of_a_turn_are_exactly_its_calls_in_order(
        calls in 1_usize..6, seeds in prop::collection::vec((0_u8..10, 0_u64..9, 0_usize..7, 0_i64..4_000), 0..200),
    ) {
        let (mut state, mut now_ms) = (State::new(calls, 50_000, Fence(0)), 0);
        for (kind, fence, position, later_ms) in seeds {
            now_ms += later_ms;
            state = step(state, event(kind, Fence(fence), position), now_ms);
            assert_sound(&state, calls);
        }
        // Left alone, it ends: what is out is reaped, and every timer fires.
        for _ in 0..50 {
            now_ms += 5_000;
            let own = state.fence().unwrap_or(Fence(0));
            state = step(state, Event::Timer { crashes_max: 3 }, now_ms);
            state = step(state, Event::Reap { fence: own, crashes_max: 3 }, now_ms);
            if let State::Ending(live, ending) = &state {
                let results = (live.results.len()..ending.upto).collect();
                let settle = Event::Settle { fence: ending.fence, first: live.results.len(), results };
                state = step(state, settle, now_ms);
            }
        }
        let State::Ended { results, .. } = state else { panic!("it has not ended: {state:?}") };
        prop_assert_eq!(results, (0..calls).collect::<Vec<_>>());
    }
}

/// An event of each kind. Results are their positions, so that order can be seen.
fn event(kind: u8, fence: Fence, position: usize) -> Event<usize> {
    match kind {
        0 => Event::Release(Verdict::Dispatch(1 + position % 2)),
        1 => Event::Lease,
        2 => Event::Begin { fence, position, nonce: Some(fence.0), hold: false },
        3 | 4 => Event::Settle { fence, first: position, results: (position..position + 1).collect() },
        5 => Event::Retry { fence, position, delay_ms: 1_000, attempt: 1 },
        6 => Event::HandBack { fence },
        7 => Event::Timer { crashes_max: 3 },
        8 => Event::Lose,
        _ => Event::Cancel,
    }
}

/// A state after an event; an illegal one leaves it.
fn step(state: State<usize>, event: Event<usize>, now_ms: i64) -> State<usize> {
    match next(state.clone(), event, now_ms, LEASE) {
        Ok((state, _)) => state,
        Err(_) => state,
    }
}

fn assert_sound(state: &State<usize>, calls: usize) {
    let results = match state {
        State::Ended { results, .. } => {
            assert_eq!(results.len(), calls);
            results
        }
        other => {
            let live = other.live().unwrap();
            assert!(live.results.len() <= live.admitted.max(live.results.len()) && live.admitted <= calls);
            &live.results
        }
    };
    assert!(results.iter().enumerate().all(|(at, result)| at == *result), "{results:?}");
}

#[test]
fn a_stale_fence_changes_nothing() {
    let (state, _) = next(State::new(3, 50_000, Fence(0)), Event::Release(Verdict::Dispatch(3)), 0, LEASE).unwrap();
    let old = state.fence().unwrap();
    let (state, _) = next(state, Event::Lease, 0, LEASE).unwrap();
    let (state, effects) = next(state, Event::Reap { fence: old, crashes_max: 3 }, 0, LEASE).unwrap();
    assert_eq!(effects.answer, Answer::Queued);
    for event in [
        Event::Settle { fence: old, first: 0, results: vec![0, 1, 2] },
        Event::Retry { fence: old, position: 0, delay_ms: 1, attempt: 1 },
        Event::HandBack { fence: old },
        Event::Begin { fence: old, position: 0, nonce: Some(1), hold: false },
    ] {
        let (after, effects) = next(state.clone(), event, 1, LEASE).unwrap();
        assert_eq!((after, effects.answer, effects.out), (state.clone(), Answer::Stale, 0));
    }
}

#[test]
fn no_call_is_admitted_in_a_window_that_began_before_redis_restarted() {
    let mut agent = AgentBudgets::default();
    agent.roll(12_000, 0, TICK_MS, (0, i64::MAX));
    let mut tenant_day = Budget { used: 0, end_ms: i64::MAX };
    let mut chain = Chain { agent: &mut agent, tenant_day: &mut tenant_day, task: None, limits: &mut [], cut: None };
    // A shorter tick does not make the running window younger.
    let rules = |epoch_ms| Rules { caps: Caps { tick_ms: 1_000, ..caps(10, 100) }, epoch_ms, room: true };
    assert_eq!(decide(5, rules(13_000), &mut chain), Verdict::Wait(15_000));
    assert_eq!(decide(5, rules(9_000), &mut chain), Verdict::Dispatch(5));
}

#[test]
fn a_task_that_has_used_its_budget_ends_what_waits() {
    let (mut agent, mut tenant_day) = (AgentBudgets::default(), Budget { used: 0, end_ms: i64::MAX });
    agent.roll(12_000, 0, TICK_MS, (0, i64::MAX));
    let mut task = TaskBudget { max: 3, used: 0 };
    let mut chain =
        Chain { agent: &mut agent, tenant_day: &mut tenant_day, task: Some(&mut task), limits: &mut [], cut: None };
    let rules = Rules { caps: caps(10, 100), epoch_ms: 0, room: true };
    assert_eq!(decide(5, rules, &mut chain), Verdict::Dispatch(3));
    assert_eq!(decide(2, rules, &mut chain), Verdict::End(Reason::TaskBudgetReached, 3));
}
