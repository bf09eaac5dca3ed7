//! Tests of each transition against an in-memory store. The crate `store` tests random orders of transitions.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod due;
mod local;
mod park;
mod requeue;
mod settle;

use bytes::Bytes;
use tickfleet_model::{InboxName, Priority, TurnId};

use super::end::{EndedCall, ExecutionState, Render, RenderedCall, ReplyFrame, parts};
use super::state::{EndReason, Finished};
use super::*;
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName, limits};
use crate::mutants;
use crate::recovery::epoch::{RecoveredCall, RecoveredCalls};
use crate::recovery::reap::HeldEntry;
use crate::section::Section;
use crate::transaction::{CounterKey, Guard, TimerRule, Transaction, Version, Write};
use crate::trial::{Trial, admitted, call, named};
use crate::view::{Query, Undecided, View};

const NOW: i64 = 1_000;

struct Texts;

impl Render for Texts {
    fn ended(&self, call: &EndedCall<'_>) -> RenderedCall {
        let execution = match call.execution {
            ExecutionState::NotRun => "not_run",
            ExecutionState::Tried(_) => "tried",
            ExecutionState::Begun | ExecutionState::MayHaveRun => "may_have_run",
            ExecutionState::TakenByRuntime => "taken",
            ExecutionState::BeganChild => "elsewhere",
        };
        let tool = call.call.map_or("?", |call| call.tool.as_str());
        result(&format!("{}:{tool}:{execution}", call.position))
    }

    fn frame(&self, _: &TurnName, _: &Head) -> ReplyFrame {
        frame()
    }
}

fn frame() -> ReplyFrame {
    ReplyFrame { head: "{\"results\":[".to_owned(), messages: None, audits: false }
}

fn result(text: &str) -> RenderedCall {
    let text = Bytes::from(format!("\"{text}\""));
    RenderedCall { result: text.clone(), message: Bytes::new(), audit: text, failed: false }
}

fn counter(limit: &str) -> CounterKey {
    CounterKey::new(limit, "acme")
}

fn permit() -> CounterKey {
    CounterKey::new("slots", "all")
}

fn held(turn: Turn) -> (Trial, Slice) {
    let mut trial = Trial::at(NOW);
    for (permit, amount) in &turn.permits {
        trial.counters.entry(permit.clone()).or_default().used = *amount;
    }
    let queue = turn.queue(&named("t1").tenant);
    trial.dispatch(&named("t1"), turn);
    let slice = trial.slices(&queue, "w1", 1).remove(0);
    (trial, slice)
}

fn with_permits(calls: usize) -> Turn {
    Turn { permits: vec![(permit(), calls as u64)], ..admitted(calls) }
}

fn settle<'a>(slice: &'a Slice, results: &'a [RenderedCall], frame: &'a ReplyFrame, bounds: &'a Bounds) -> Settle<'a> {
    Settle { slice, results, frame, sections: &[], reason: None, canceled: None, bounds }
}

fn fire(trial: &mut Trial) -> DueResult {
    let name = named("t1");
    trial.run(&Due { name: &name, render: &Texts, sections: &[], bounds: &Bounds::default() })
}

fn reply(trial: &Trial) -> String {
    trial.stored::<Finished>(&named("t1").finished()).unwrap().value.reply
}

fn record(trial: &Trial) -> Turn {
    trial.turn(&named("t1")).unwrap().value
}

fn timer(trial: &Trial) -> Option<i64> {
    trial.timers.get(&*named("t1").timer()).copied()
}

fn cancel(trial: &mut Trial, admitted_ms: Option<i64>) {
    let cancellation = Cancellation { reason: "enough".to_owned(), admitted_ms };
    let mut transaction = Transaction::new(trial.draw());
    transaction.put_for(&named("t1").cancellation(), &cancellation, 1_000_000);
    transaction.timer(named("t1").timer(), trial.now_ms, TimerRule::Earlier);
    trial.commit(&transaction).unwrap();
}

fn retry(attempts: u32) -> ParkReason {
    ParkReason::Retry { attempts, delay_ms: 500, cause: "cut".to_owned(), keeps_begun: false }
}

fn wait(reason: WaitReason, has_begun: bool) -> ParkReason {
    ParkReason::Wait { reason, most_ms: 60_000, has_begun, cause: String::new() }
}

fn child() -> WaitReason {
    WaitReason::Child { turn: TurnId::new("t2").unwrap() }
}

fn approval() -> WaitReason {
    WaitReason::Approval { approval: "a1".to_owned() }
}

fn park(trial: &mut Trial, slice: &Slice, reason: &ParkReason, had_parallel_reads: bool) -> ParkResult {
    trial.run(&Park { slice, reason, had_parallel_reads, waits_while: &[], sections: &[] })
}
