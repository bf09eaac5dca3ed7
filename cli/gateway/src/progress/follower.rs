//! The events of one follower of a turn: results, states of the turn, and the reply.

use std::collections::VecDeque;

use axum::response::sse::Event;
use futures::stream::{self, Stream};
use serde::Serialize;
use serde_json::json;
use tickfleet_client::turn_status::{CallEnd, TurnPhase};
use tickfleet_store::TurnName;

use super::poller::{PolledState, TurnSubscription};
use crate::caller::Caller;
use crate::events::named;

pub(super) fn events(
    following: TurnSubscription,
    caller: Caller,
    name: TurnName,
    skipped: usize,
) -> impl Stream<Item = Event> + Send + 'static {
    let follower = FollowerEvents {
        caller,
        name,
        ended: skipped,
        phase: None,
        is_away: false,
        ready: VecDeque::new(),
        is_over: false,
    };
    stream::unfold((following, follower), |(mut following, mut follower)| async {
        loop {
            if let Some(event) = follower.ready.pop_front() {
                return Some((event, (following, follower)));
            }
            if follower.is_over || following.seen.changed().await.is_err() {
                return None;
            }
            let seen = following.seen.borrow_and_update().clone();
            follower.add_state(seen);
        }
    })
}

struct FollowerEvents {
    caller: Caller,
    name: TurnName,
    ended: usize,
    phase: Option<TurnPhase>,
    is_away: bool,
    ready: VecDeque<Event>,
    is_over: bool,
}

impl FollowerEvents {
    fn add_state(&mut self, seen: PolledState) {
        let is_away = matches!(seen, PolledState::Away);
        match seen {
            PolledState::Nothing => {}
            PolledState::Queued => self.add_phase(TurnPhase::Queued),
            PolledState::Underway { agent, .. } if !self.caller.can_read_agent(Some(&agent)) => self.add_not_found(),
            PolledState::Underway { phase, ended, .. } => {
                self.add_results(ended.get(self.ended..).unwrap_or_default());
                self.add_phase(phase);
            }
            PolledState::Ended(reply) if !self.caller.can_read_agent(Some(&reply.agent)) => self.add_not_found(),
            PolledState::Ended(reply) => {
                let left: Vec<CallEnd> = reply.results.iter().skip(self.ended).map(CallEnd::from).collect();
                self.add_results(&left);
                self.push("reply", &*reply);
                self.is_over = true;
            }
            // The agent of a damaged record is unknown, so only a key for all agents receives this event.
            PolledState::Damaged if self.caller.can_read_agent(None) => self.add_damaged(),
            PolledState::Damaged | PolledState::Gone => self.add_not_found(),
            PolledState::Away if self.is_away => {}
            PolledState::Away => self.push("away", &json!({"message": "the gateway cannot reach Redis"})),
        }
        self.is_away = is_away;
    }

    fn add_results(&mut self, ended: &[CallEnd]) {
        for call in ended {
            self.ended += 1;
            self.push("result", call);
        }
    }

    fn add_phase(&mut self, phase: TurnPhase) {
        // After a failed poll, send the state even if it is unchanged.
        if self.phase.as_ref() == Some(&phase) && !self.is_away {
            return;
        }
        self.push(event_name(&phase), &phase);
        self.phase = Some(phase);
    }

    /// An unknown turn gets the same event as a turn that the key does not cover, so the event reveals nothing.
    fn add_not_found(&mut self) {
        let message = format!("{} is unknown: rejected, or its record has expired", self.name.turn);
        self.push("not_found", &json!({"message": message}));
        self.is_over = true;
    }

    fn add_damaged(&mut self) {
        let message = format!("the record of {} cannot be read: see the gateway's log", self.name.turn);
        self.push("damaged", &json!({"message": message}));
        self.is_over = true;
    }

    fn push(&mut self, event: &str, data: &impl Serialize) {
        self.ready.push_back(named(event, data).id(self.ended.to_string()));
    }
}

const fn event_name(phase: &TurnPhase) -> &'static str {
    match phase {
        TurnPhase::Queued => "queued",
        TurnPhase::Waiting(_) => "waiting",
        TurnPhase::Dispatched => "dispatched",
        TurnPhase::Running { .. } => "running",
        TurnPhase::Ending => "ending",
    }
}
