//! Counts calls that end without running. Calls are counted only after the commit, because a conflict renders the
//! results again.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_core::keys::TurnName;
use tickfleet_core::turn::Head;
use tickfleet_core::turn::end::{EndedCall, Render, RenderedCall, ReplyFrame};
use tickfleet_core::turn::state::EndReason;
use tickfleet_engine::report::Renderer;
use tickfleet_model::Outcome;
use tickfleet_ops::metrics::{LimitAction, Metrics};

pub(crate) struct RecordingRenderer<'a> {
    renderer: Renderer<'a>,
    rendered: Mutex<HashMap<TurnName, RenderedTurn>>,
}

struct RenderedTurn {
    submitted_ms: i64,
    reason: EndReason,
    calls: BTreeMap<usize, (Option<String>, Outcome)>,
}

impl<'a> RecordingRenderer<'a> {
    pub(crate) fn new(renderer: Renderer<'a>) -> Self {
        Self { renderer, rendered: Mutex::default() }
    }

    /// Call this method only after the commit. `is_over` is true if the turn has also ended.
    pub(crate) fn count(&self, name: &TurnName, is_over: bool, now_ms: i64, metrics: &Metrics) {
        let Some(rendered) = self.rendered.lock().remove(name) else { return };
        let calls = rendered.calls.len() as u64;
        for (tool, outcome) in rendered.calls.into_values() {
            metrics.call_not_run(tool.as_deref(), outcome);
        }
        match &rendered.reason {
            EndReason::LimitReached { limit, .. } | EndReason::OverLimit { limit } | EndReason::NoAmount { limit } => {
                metrics.limit_reached(limit, LimitAction::Reject, calls);
            }
            EndReason::Quarantined { crashes } => {
                metrics.quarantined(1);
                tracing::error!(turn = %name, crashes, "a slice killed its workers and was quarantined");
            }
            _ => {}
        }
        if is_over {
            turn_ended(rendered.submitted_ms, now_ms, metrics);
        }
    }
}

/// A submission time of 0 is unknown, so nothing is recorded.
pub(crate) fn turn_ended(submitted_ms: i64, now_ms: i64, metrics: &Metrics) {
    if submitted_ms > 0 {
        metrics.turn_ended(Duration::from_millis((now_ms - submitted_ms).max(0).unsigned_abs()));
    }
}

impl Render for RecordingRenderer<'_> {
    fn ended(&self, call: &EndedCall<'_>) -> RenderedCall {
        let spelled = call.call.map_or("", |call| call.tool.as_str());
        let tool = self.renderer.policy.tool_name(spelled).map(str::to_owned);
        let (outcome, ..) = self.renderer.outcome(call, spelled);
        let mut rendered = self.rendered.lock();
        let is_first = call.position == call.turn.position;
        let new = || RenderedTurn {
            submitted_ms: call.turn.head.submitted_ms,
            reason: call.reason.clone(),
            calls: BTreeMap::new(),
        };
        let of_turn = rendered.entry(call.name.clone()).or_insert_with(new);
        if is_first {
            *of_turn = new();
        }
        of_turn.calls.insert(call.position, (tool, outcome));
        drop(rendered);
        self.renderer.ended(call)
    }

    fn frame(&self, name: &TurnName, head: &Head) -> ReplyFrame {
        self.renderer.frame(name, head)
    }
}
