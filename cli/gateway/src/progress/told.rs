//! The events of one follower of a turn: each result once, the turn's state when it changes, and finally the reply.

use std::collections::VecDeque;

use axum::response::sse::Event;
use futures::stream::{self, Stream};
use serde::Serialize;
use serde_json::json;
use tickfleet_client::turn_status::{CallEnd, TurnPhase};
use tickfleet_store::TurnName;

use super::look::{Following, Seen};
use crate::caller::Caller;
use crate::events::named;

/// The events of a turn, without the first `heard` results.
pub(super) fn events(
    following: Following,
    caller: Caller,
    name: TurnName,
    heard: usize,
) -> impl Stream<Item = Event> + Send + 'static {
    let told = Told { caller, name, ended: heard, standing: None, is_away: false, ready: VecDeque::new(), over: false };
    stream::unfold((following, told), |(mut following, mut told)| async {
        loop {
            if let Some(event) = told.ready.pop_front() {
                return Some((event, (following, told)));
            }
            if told.over || following.seen.changed().await.is_err() {
                return None;
            }
            let seen = following.seen.borrow_and_update().clone();
            told.tell(seen);
        }
    })
}

/// The progress of one follower.
struct Told {
    caller: Caller,
    name: TurnName,
    /// Number of results.
    ended: usize,
    standing: Option<TurnPhase>,
    is_away: bool,
    ready: VecDeque<Event>,
    over: bool,
}

impl Told {
    fn tell(&mut self, seen: Seen) {
        let is_away = matches!(seen, Seen::Away);
        match seen {
            Seen::Nothing => {}
            Seen::Queued => self.stands(TurnPhase::Queued),
            Seen::Underway { agent, .. } if !self.caller.sees(Some(&agent)) => self.gone(),
            Seen::Underway { standing, ended, .. } => {
                self.calls(ended.get(self.ended..).unwrap_or_default());
                self.stands(standing);
            }
            Seen::Ended(reply) if !self.caller.sees(Some(&reply.agent)) => self.gone(),
            Seen::Ended(reply) => {
                let left: Vec<CallEnd> = reply.results.iter().skip(self.ended).map(CallEnd::from).collect();
                self.calls(&left);
                self.push("reply", &*reply);
                self.over = true;
            }
            // The agent of a damaged record is unknown, so only a key for all agents receives this event.
            Seen::Damaged if self.caller.sees(None) => self.damaged(),
            Seen::Damaged | Seen::Gone => self.gone(),
            Seen::Away if self.is_away => {}
            Seen::Away => self.push("away", &json!({"message": "the gateway cannot reach Redis"})),
        }
        self.is_away = is_away;
    }

    /// Sends results, each with the position to continue from.
    fn calls(&mut self, ended: &[CallEnd]) {
        for call in ended {
            self.ended += 1;
            self.push("result", call);
        }
    }

    fn stands(&mut self, standing: TurnPhase) {
        // After a failed poll, the state is sent even if it is unchanged.
        if self.standing.as_ref() == Some(&standing) && !self.is_away {
            return;
        }
        self.push(word(&standing), &standing);
        self.standing = Some(standing);
    }

    /// Also used for a turn that the key does not cover, so that the event does not reveal its owner.
    fn gone(&mut self) {
        let message = format!("{} is unknown: rejected, or its record has expired", self.name.turn);
        self.push("gone", &json!({"message": message}));
        self.over = true;
    }

    fn damaged(&mut self) {
        let message = format!("the record of {} cannot be read: see the gateway's log", self.name.turn);
        self.push("damaged", &json!({"message": message}));
        self.over = true;
    }

    fn push(&mut self, event: &str, data: &impl Serialize) {
        self.ready.push_back(named(event, data).id(self.ended.to_string()));
    }
}

const fn word(standing: &TurnPhase) -> &'static str {
    match standing {
        TurnPhase::Queued => "queued",
        TurnPhase::Waiting(_) => "waiting",
        TurnPhase::Dispatched => "dispatched",
        TurnPhase::Running { .. } => "running",
        TurnPhase::Ending => "ending",
    }
}
