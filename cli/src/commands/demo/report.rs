//! The report of the demo's day: counts, and violated guarantees.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use tickfleet_client::Reply;
use tickfleet_model::outcome::EffectHappened;
use tickfleet_model::{CallResult, Outcome};

use super::day::{Planned, ServiceResponse};
use super::kinds::{Kind, Kinds, SkippedKinds};
use super::played::{DayResult, PlayedTurn};
use super::stand_in::Ledger;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) ok: bool,
    pub(super) broken: Vec<String>,
    pub(super) turns: usize,
    pub(super) agents: usize,
    pub(super) calls: usize,
    pub(super) results: usize,
    pub(super) duplicates: usize,
    pub(super) tasks: usize,
    pub(super) outcomes: BTreeMap<&'static str, usize>,
    pub(super) caps: Vec<CappedTurn>,
    pub(super) retries: Retries,
    pub(super) latency: Latency,
    pub(super) stand_in: RequestCounts,
    pub(super) day: Vec<Row>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) left_out: SkippedKinds,
}

#[derive(Debug, Serialize)]
pub(super) struct CappedTurn {
    pub(super) agent: String,
    pub(super) turn: String,
    pub(super) calls: usize,
    pub(super) windows: Vec<u32>,
    pub(super) waited_ms: i64,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Retries {
    pub(super) calls: usize,
    pub(super) tries: usize,
    pub(super) recovered: usize,
}

/// From submit to reply, measured by the producer.
#[derive(Debug, Serialize)]
pub(super) struct Latency {
    pub(super) all: Figures,
    /// Turns without cap, retry or cancellation.
    pub(super) unhindered: Figures,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Figures {
    pub(super) turns: usize,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct RequestCounts {
    pub(super) requests: usize,
    pub(super) searches: usize,
    pub(super) calendar_looks: usize,
    pub(super) messages_sent: usize,
    pub(super) posts_published: usize,
    pub(super) meetings_booked: usize,
    pub(super) twice: Vec<String>,
    pub(super) answered_429: usize,
    pub(super) answered_503: usize,
    pub(super) answered_403: usize,
    pub(super) connections_cut: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) at: String,
    pub(super) turn: String,
    pub(super) agent: String,
    pub(super) story: String,
    pub(super) waited_ms: i64,
    pub(super) took_ms: f64,
    pub(super) calls: Vec<CallRow>,
}

#[derive(Debug, Serialize)]
pub(super) struct CallRow {
    pub(super) tool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<Kind>,
    pub(super) outcome: Outcome,
    pub(super) attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl Report {
    pub(super) fn new(
        day: &[Planned],
        played: &DayResult,
        ledger: Ledger,
        kinds: &Kinds,
        left_out: SkippedKinds,
    ) -> Self {
        let mut broken = Vec::new();
        for (planned, turn) in day.iter().zip(&played.turns) {
            broken.extend(answered_once(planned, turn));
            broken.extend(within_caps(planned, turn));
            broken.extend(effects_agree(planned, turn, &ledger));
        }
        broken.extend(sums_within_caps(day, played));
        for (task, replies) in played.tasks.iter().filter(|(_, replies)| replies.len() != 1) {
            broken.push(format!("task {task} got {} replies", replies.len()));
        }
        let seen = RequestCounts::new(&ledger);
        broken.extend(seen.twice.iter().map(|text| format!("sent, posted or booked more than once: {text}")));
        let results: Vec<&CallResult> = played.turns.iter().flat_map(results).collect();
        let mut outcomes = BTreeMap::new();
        for result in &results {
            *outcomes.entry(result.outcome.as_str()).or_default() += 1;
        }
        Self {
            ok: broken.is_empty(),
            broken,
            turns: day.len(),
            agents: day.iter().map(|planned| &planned.turn.agent).collect::<BTreeSet<_>>().len(),
            calls: day.iter().map(|planned| planned.turn.calls.len()).sum(),
            results: results.len(),
            duplicates: played.turns.iter().map(|turn| turn.duplicates).sum(),
            tasks: played.tasks.len(),
            outcomes,
            caps: day.iter().zip(&played.turns).filter_map(|(planned, turn)| capped(planned, turn)).collect(),
            retries: Retries::new(&results),
            latency: Latency::new(&played.turns),
            stand_in: seen,
            day: day.iter().zip(&played.turns).map(|(planned, turn)| row(planned, turn, kinds)).collect(),
            left_out,
        }
    }
}

fn results(turn: &PlayedTurn) -> impl Iterator<Item = &CallResult> {
    turn.replies.iter().flat_map(|(_, reply)| &reply.results)
}

/// Guarantee 1: each turn has one reply, with one result per call, in the order of the calls.
fn answered_once(planned: &Planned, turn: &PlayedTurn) -> Option<String> {
    let id = planned.turn_id();
    let [(_, reply)] = &turn.replies[..] else { return Some(format!("{id} got {} replies", turn.replies.len())) };
    let expected = (0..planned.turn.calls.len()).map(|position| format!("{id}/{position}"));
    let paired = reply.results.iter().map(|result| result.call.clone()).eq(expected);
    (!paired).then(|| format!("the results of {id} are not one for each of its {} calls", planned.turn.calls.len()))
}

/// Guarantee 2: no counter exceeds its cap. `Some` is a violation.
fn within_caps(planned: &Planned, turn: &PlayedTurn) -> Option<String> {
    let over = turn.slices.iter().find(|slice| slice.tick_used > slice.tick_cap || slice.day_used > slice.day_cap)?;
    let id = planned.turn_id();
    let tick = over.tick_used;
    let day = over.day_used;
    Some(format!("{id} exceeded a cap: {tick} of {} in the tick, {day} of {} in the day", over.tick_cap, over.day_cap))
}

/// Guarantee 2 without the fleet's own counters: an agent's admissions in a window or day do not exceed its cap.
fn sums_within_caps(day: &[Planned], played: &DayResult) -> Vec<String> {
    let mut sums: BTreeMap<(&str, Option<i64>), (u32, u32)> = BTreeMap::new();
    for (planned, turn) in day.iter().zip(&played.turns) {
        for slice in &turn.slices {
            for (window, cap) in [(Some(slice.tick_ends_ms), slice.tick_cap), (None, slice.day_cap)] {
                let (sum, of) = sums.entry((planned.turn.agent.as_str(), window)).or_default();
                (*sum, *of) = (*sum + slice.calls, cap);
            }
        }
    }
    let over = sums.into_iter().filter(|(_, (sum, cap))| sum > cap);
    over.map(|((agent, window), (sum, cap))| {
        let span = if window.is_some() { "tick" } else { "day" };
        format!("{agent} got {sum} calls admitted in one {span}, with a cap of {cap}")
    })
    .collect()
}

/// Guarantee 3: a reported effect happened exactly once, and an effect that is reported as not run did not happen.
fn effects_agree(planned: &Planned, turn: &PlayedTurn, ledger: &Ledger) -> Vec<String> {
    let Some((_, Reply { results, .. })) = turn.replies.first() else { return Vec::new() };
    let asked = planned.asks.iter().zip(results).filter(|(_, result)| is_once(&result.tool));
    let disagrees = |(ask, result): (&Option<String>, &CallResult)| {
        let times = ledger.times(ask.as_deref()?);
        let agrees = match result.outcome.happened() {
            EffectHappened::Yes => times == 1,
            EffectHappened::Perhaps => times <= 1,
            EffectHappened::IfRun => times == usize::from(result.attempts > 0),
            EffectHappened::No => times == 0,
        };
        (!agrees).then(|| format!("{} ended as {}, and happened {times} times", result.call, result.outcome.as_str()))
    };
    asked.filter_map(disagrees).collect()
}

/// The effects of these tools must not happen twice.
fn is_once(tool: &str) -> bool {
    matches!(tool, "post_to_x" | "send_telegram_message" | "calendar__book_meeting")
}

fn capped(planned: &Planned, turn: &PlayedTurn) -> Option<CappedTurn> {
    (turn.slices.len() > 1).then(|| CappedTurn {
        agent: planned.turn.agent.to_string(),
        turn: planned.turn_id(),
        calls: planned.turn.calls.len(),
        windows: turn.slices.iter().map(|slice| slice.calls).collect(),
        waited_ms: turn.waited_ms,
    })
}

impl Retries {
    fn new(results: &[&CallResult]) -> Self {
        let retried: Vec<_> = results.iter().filter(|result| result.attempts > 1).collect();
        Self {
            calls: retried.len(),
            tries: retried.iter().map(|result| result.attempts as usize - 1).sum(),
            recovered: retried.iter().filter(|result| result.success).count(),
        }
    }
}

impl Latency {
    fn new(turns: &[PlayedTurn]) -> Self {
        let took = |turn: &PlayedTurn| turn.replies.first().map(|(took, _)| *took);
        let held_up = |result: &CallResult| result.attempts > 1 || result.outcome == Outcome::Cancelled;
        let free = turns.iter().filter(|turn| turn.waited_ms == 0 && !results(turn).any(held_up));
        Self {
            all: Figures::new(turns.iter().filter_map(took).collect()),
            unhindered: Figures::new(free.filter_map(took).collect()),
        }
    }
}

impl Figures {
    fn new(mut took: Vec<Duration>) -> Self {
        took.sort_unstable();
        let at = |percent: usize| took.get((took.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        Self { turns: took.len(), p50_ms: ms(at(50).unwrap_or_default()), p99_ms: ms(at(99).unwrap_or_default()) }
    }
}

impl RequestCounts {
    fn new(ledger: &Ledger) -> Self {
        let texts = ledger.messages.iter().chain(&ledger.posts).map(|(text, times)| (text, *times));
        let effects = texts.chain(ledger.meetings.iter().map(|(title, meetings)| (title, meetings.len())));
        let answered = |answer| ledger.troubles.get(&answer).copied().unwrap_or(0);
        Self {
            requests: ledger.requests,
            searches: ledger.searches,
            calendar_looks: ledger.looks,
            messages_sent: ledger.messages.values().sum(),
            posts_published: ledger.posts.values().sum(),
            meetings_booked: ledger.meetings.values().map(Vec::len).sum(),
            twice: effects.filter(|(_, times)| *times > 1).map(|(text, _)| text.clone()).collect(),
            answered_429: answered(ServiceResponse::SlowDown),
            answered_503: answered(ServiceResponse::Unavailable),
            answered_403: answered(ServiceResponse::Forbidden),
            connections_cut: answered(ServiceResponse::Cut),
        }
    }
}

fn row(planned: &Planned, turn: &PlayedTurn, kinds: &Kinds) -> Row {
    let call = |result: &CallResult| CallRow {
        tool: result.tool.clone(),
        kind: kinds.get(&result.tool),
        outcome: result.outcome,
        attempts: result.attempts,
        code: result.error.as_ref().map(|error| error.code.clone()),
        error: result.error.as_ref().map(|error| error.message.clone()),
    };
    Row {
        at: planned.at.clone(),
        turn: planned.turn_id(),
        agent: planned.turn.agent.to_string(),
        story: planned.story.clone(),
        waited_ms: turn.waited_ms,
        took_ms: turn.replies.first().map_or(0.0, |(took, _)| ms(*took)),
        calls: results(turn).map(call).collect(),
    }
}

fn ms(took: Duration) -> f64 {
    (took.as_secs_f64() * 10_000.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::super::day;
    use super::*;
    use tickfleet_store::AdmissionNote;

    /// The single call of the turn ended as `outcome`, and the turn got `times` replies.
    fn posted(outcome: &str, times: usize) -> (Planned, PlayedTurn) {
        let planned = day::plan().unwrap().into_iter().find(|p| p.turn.calls[0].tool == "post_to_x").unwrap();
        let id = planned.turn_id();
        let result = json!({
            "tool_call_id": null, "call": format!("{id}/0"), "tool": "post_to_x", "success": outcome == "ok",
            "outcome": outcome, "content_type": "application/json", "duration_ms": 1, "attempts": 1,
        });
        let reply = json!({
            "turn_id": id, "tenant": day::TENANT, "agent": "kelly", "status": "done", "dialect": "raw",
            "results": [result],
        });
        let reply: Reply = serde_json::from_value(reply).unwrap();
        let replies = vec![(Duration::from_millis(1), reply); times];
        (planned, PlayedTurn { replies, duplicates: 0, slices: Vec::new(), waited_ms: 0 })
    }

    #[test]
    fn a_missing_result_or_a_wrong_reply_count_is_reported() {
        let (planned, mut turn) = posted("ok", 1);
        assert_eq!(answered_once(&planned, &turn), None);
        turn.replies[0].1.results.clear();
        assert!(answered_once(&planned, &turn).unwrap().contains("one for each"));
        for times in [0, 2] {
            let (planned, turn) = posted("ok", times);
            assert!(answered_once(&planned, &turn).unwrap().contains("replies"));
        }
    }

    #[test]
    fn an_effect_that_contradicts_its_outcome_is_reported() {
        for (outcome, allowed) in [("ok", 1..=1), ("denied", 0..=0), ("outcome_unknown", 0..=1)] {
            let (planned, turn) = posted(outcome, 1);
            for times in 0..=2 {
                let mut ledger = Ledger::default();
                ledger.posts.insert(planned.asks[0].clone().unwrap(), times);
                let problems = effects_agree(&planned, &turn, &ledger);
                assert_eq!(problems.is_empty(), allowed.contains(&times), "{outcome} and {times} times: {problems:?}");
            }
        }
    }

    #[test]
    fn a_counter_over_its_cap_is_reported() {
        let (planned, mut turn) = posted("ok", 1);
        turn.slices = AdmissionNote::read_all("A1,10,10,10,5,10,1000");
        assert_eq!(within_caps(&planned, &turn), None);
        turn.slices = AdmissionNote::read_all("A1,11,11,10,5,11,1000");
        assert!(within_caps(&planned, &turn).unwrap().contains("11 of 10"));
    }

    #[test]
    fn admissions_that_sum_to_more_than_a_cap_are_reported() {
        let sums_of = |log: &str| {
            let (planned, mut turn) = posted("ok", 1);
            turn.slices = AdmissionNote::read_all(log);
            sums_within_caps(&[planned], &DayResult { turns: vec![turn], tasks: BTreeMap::new() })
        };
        assert_eq!(sums_of("A1,6,6,10,5,6,12;A6,6,6,10,10,12,12"), Vec::<String>::new());
        assert_eq!(sums_of("A1,6,6,10,5,6,12;A4,6,6,10,5,6,12").len(), 1, "two slices of one tick");
        assert_eq!(sums_of("A1,6,6,10,5,6,11;A6,6,6,10,10,6,11").len(), 1, "two slices of one day");
    }

    #[test]
    fn percentiles_are_measured_values() {
        let figures = Figures::new((1..=200).rev().map(Duration::from_millis).collect());
        assert_eq!((figures.turns, figures.p50_ms, figures.p99_ms), (200, 100.0, 198.0));
        assert_eq!(Figures::new(Vec::new()).p99_ms, 0.0);
    }

    #[test]
    fn duplicate_messages_and_meetings_are_reported() {
        let mut ledger = Ledger::default();
        ledger.posts.insert("once".into(), 1);
        ledger.messages.insert("again".into(), 2);
        ledger.meetings.insert("review".into(), vec![json!({}); 2]);
        assert_eq!(RequestCounts::new(&ledger).twice, ["again", "review"]);
    }
}
