//! The report of the demo's day: counts, and violated guarantees.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use tickfleet_client::Reply;
use tickfleet_model::outcome::EffectHappened;
use tickfleet_model::{CallResult, Outcome};

use super::day::Planned;
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
    /// Ticks and days whose caps were checked.
    pub(super) windows: u64,
    pub(super) caps: Vec<CappedTurn>,
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
        ledger: &Ledger,
        kinds: &Kinds,
        left_out: SkippedKinds,
    ) -> Self {
        let mut broken = Vec::new();
        for (planned, turn) in day.iter().zip(&played.turns) {
            broken.extend(answered_once(planned, turn));
            broken.extend(effects_agree(planned, turn, ledger));
        }
        broken.extend(played.proof.claims.iter().flat_map(|claim| &claim.violations).cloned());
        for (task, replies) in played.tasks.iter().filter(|(_, replies)| replies.len() != 1) {
            broken.push(format!("task {task} got {} replies", replies.len()));
        }
        broken.extend(ledger.twice().map(|text| format!("sent, posted or booked more than once: {text}")));
        let results: Vec<&CallResult> = played.turns.iter().flat_map(results).collect();
        let mut outcomes = BTreeMap::new();
        for result in &results {
            *outcomes.entry(result.outcome.as_str()).or_default() += 1;
        }
        let windows = played.proof.claims.iter().filter(|claim| claim.unit == "windows");
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
            windows: windows.map(|claim| claim.checked).sum(),
            caps: day.iter().zip(&played.turns).filter_map(|(planned, turn)| capped(planned, turn)).collect(),
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
    (!paired).then(|| format!("{id} does not have one result for each of its {} calls", planned.turn.calls.len()))
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
        assert!(answered_once(&planned, &turn).unwrap().contains("one result for each"));
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
    fn duplicate_messages_and_meetings_are_reported() {
        let mut ledger = Ledger::default();
        ledger.posts.insert("once".into(), 1);
        ledger.messages.insert("again".into(), 2);
        ledger.meetings.insert("review".into(), vec![json!({}); 2]);
        assert_eq!(ledger.twice().collect::<Vec<_>>(), ["again", "review"]);
    }
}
