//! Tests of redelivery and restarts.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod epoch;
mod groups;
mod inbound;
mod journal;
mod reap;

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use tickfleet_model::{ConsumerId, Priority, TenantId};

use super::epoch::{
    JournaledOutcome, QueryUnrunCalls, RecoveredCallsView, ReportBegunCall, ReportBegunResult, UnrunCallsResult,
    recovered_calls,
};
use super::inbound::{self as messages, NameSuspect, ReapInbound};
use super::lease::Lease;
use super::reap::{Crash, HeldEntry, Reap, ReapResult, crash};
use crate::bounds::Bounds;
use crate::keys::{self, TurnName};
use crate::mutants;
use crate::transaction::{CounterKey, RecordKey, StreamKey, Version};
use crate::trial::{Trial, admitted, named};
use crate::turn::end::{GivenId, GivenState, RenderedCall, ReplyFrame, parts};
use crate::turn::state::EndReason;
use crate::turn::{Begun, Destination, Settle, SettleResult, State, Suspect};
use crate::view::{Query, View};
use crate::workers::{self, Liveness};

const LEASE: i64 = 10_000;

fn heartbeat(consumer: &str) -> RecordKey {
    workers::key(consumer)
}

fn lease(trial: &Trial, consumer: &str, ends_ms: i64) -> Lease {
    let key = heartbeat(consumer);
    let version = trial.stored::<Crash>(&key).map(|stored| stored.version);
    Lease { heartbeat: key, version, ends_ms }
}

fn write_heartbeat(trial: &mut Trial, consumer: &str) {
    trial.put(&heartbeat(consumer), &Crash { heartbeat: None, regular: 0, suspects: 0 });
}

fn queues() -> Vec<StreamKey> {
    Priority::ALL.into_iter().flat_map(|priority| [keys::ready(priority), keys::suspect(priority)]).collect()
}

fn held(trial: &Trial, consumer: &str) -> Vec<HeldEntry> {
    let of = |queue: StreamKey| {
        let entries = trial.holds(&queue, consumer);
        entries.into_iter().map(move |entry| (queue.clone(), entry)).collect::<Vec<_>>()
    };
    let entries = queues().into_iter().flat_map(of);
    entries
        .map(|(queue, entry)| {
            let fields = trial.fields(&queue, &entry).unwrap_or_default();
            HeldEntry { queue, entry, fields }
        })
        .collect()
}

fn reap_once(trial: &mut Trial, consumer: &str, bounds: &Bounds) -> ReapResult {
    let lease = lease(trial, consumer, trial.now_ms);
    let held = held(trial, consumer);
    trial.run(&Reap { consumer: consumer.into(), lease, held, bounds })
}

fn reap(trial: &mut Trial, consumer: &str, bounds: &Bounds) -> (Vec<Vec<TurnName>>, Vec<TurnName>) {
    let mut groups = Vec::new();
    let mut quarantined = Vec::new();
    for _ in 0..1_000 {
        match reap_once(trial, consumer, bounds) {
            ReapResult::Redelivered(group) => groups.push(group),
            ReapResult::Quarantined(name) => quarantined.push(name),
            ReapResult::Removed { .. } => {}
            ReapResult::Nothing => return (groups, quarantined),
            other => panic!("{other:?}"),
        }
    }
    panic!("reaping does not end");
}
