//! A slice on a queue has all data that a worker needs, so the worker makes no other reads.

use std::sync::Arc;

use bytes::Bytes;
use tickfleet_model::Call;

use super::state::{Destination, State, Turn};
use crate::keys::TurnName;
use crate::record::{Debited, Record, Unreadable};
use crate::transaction::{EntryId, StreamKey, Transaction, Version, Write};
use crate::view::Fields;

pub mod fields {
    /// `<tenant>:<turn>`.
    pub const NAME: &str = "t";
    pub const VERSION: &str = "v";
    pub const RECORD: &str = "r";
    /// JSON. Repeated for each call, in order.
    pub const CALL: &str = "c";
    /// For external runtimes: the arguments of the task's call, as JSON.
    pub const TASK: &str = "task";
    /// JSON for the process that runs a local call.
    pub const CALL_MESSAGE: &str = "call";
    /// The states of the debited counters. The store writes this field.
    pub const DEBITED: &str = "d";
}

#[derive(Debug, Clone)]
pub struct Slice {
    pub queue: StreamKey,
    pub entry: EntryId,
    pub name: TurnName,
    /// The fence: every write of the holder requires this version.
    pub version: Version,
    pub turn: Turn,
    pub debited: Vec<Debited>,
    /// The calls `[position, upto)`.
    pub calls: Vec<Call>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSlice {
    #[error("field `{0}` is missing or not readable")]
    Field(&'static str),
    #[error("record: {0}")]
    Record(#[from] Unreadable),
    #[error("the state is `{0}`")]
    State(&'static str),
}

/// Identifies one delivery, because a worker can hold two deliveries of a turn after a restart of the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Delivery {
    pub name: TurnName,
    pub entry: EntryId,
}

impl Slice {
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        Delivery { name: self.name.clone(), entry: self.entry.clone() }
    }

    /// Fails if another program or another version of Tickfleet wrote the entry.
    pub fn read(queue: StreamKey, entry: EntryId, fields: &Fields) -> Result<Self, BadSlice> {
        let text = |name: &'static str| {
            let found = fields.iter().find(|(field, _)| &**field == name).map(|(_, value)| value);
            found.and_then(|value| std::str::from_utf8(value).ok()).ok_or(BadSlice::Field(name))
        };
        let name = TurnName::parse(text(fields::NAME)?).ok_or(BadSlice::Field(fields::NAME))?;
        let version = Version::new(text(fields::VERSION)?);
        let mut turn = Turn::decode(text(fields::RECORD)?.as_bytes())?;
        let debited = text(fields::DEBITED).unwrap_or_default();
        // The holder's next write stores these states in the record.
        turn.note_debited(Some(debited));
        let debited = Debited::parse_all(debited);
        let calls = fields.iter().filter(|(field, _)| &**field == fields::CALL);
        let calls: Vec<Call> = calls
            .map(|(_, value)| serde_json::from_slice(value).map_err(|_| BadSlice::Field(fields::CALL)))
            .collect::<Result<_, _>>()?;
        if turn.state.in_flight_upto() != Some(turn.position + calls.len()) {
            return Err(BadSlice::State(turn.state.word()));
        }
        Ok(Self { queue, entry, name, version, turn, debited, calls })
    }

    /// `turn` is the record that the holder has written under `version`. Calls with results are dropped.
    pub fn advance(&mut self, version: Version, turn: Turn) {
        let done = turn.position.saturating_sub(self.turn.position).min(self.calls.len());
        self.calls.drain(..done);
        self.version = version;
        self.turn = turn;
    }
}

fn message(calls: &[Bytes]) -> Bytes {
    let call = calls.first().and_then(|text| serde_json::from_slice::<Call>(text).ok());
    call.map(|call| call.arguments.into()).unwrap_or_default()
}

/// `calls` are JSON texts of [`Call`], from the turn's position on.
pub fn dispatch(transaction: &mut Transaction, name: &TurnName, turn: &mut Turn, calls: &[Bytes]) {
    turn.state = State::Ready { upto: turn.position + calls.len() };
    turn.entry = None;
    match turn.destination {
        Destination::Workers(_) => enqueue(transaction, name, turn, fields::RECORD, turn.encode(), calls),
        // Programs outside the fleet receive the task's message, not the record.
        Destination::External { .. } => enqueue(transaction, name, turn, fields::TASK, message(calls), calls),
    }
}

pub(super) fn offer(transaction: &mut Transaction, name: &TurnName, turn: &mut Turn, message: Bytes, calls: &[Bytes]) {
    turn.state = State::Ready { upto: turn.position + calls.len() };
    turn.entry = None;
    enqueue(transaction, name, turn, fields::CALL_MESSAGE, message, calls);
}

fn enqueue(transaction: &mut Transaction, name: &TurnName, turn: &Turn, field: &str, content: Bytes, calls: &[Bytes]) {
    let fields = [
        (fields::NAME, name.to_string().into()),
        (fields::VERSION, transaction.version.as_str().to_owned().into()),
        (field, content),
    ];
    let calls = calls.iter().map(|call| (fields::CALL, call.clone()));
    let fields = fields.into_iter().chain(calls).map(|(name, value)| -> (Arc<str>, Bytes) { (name.into(), value) });
    let queue = turn.queue(&name.tenant);
    transaction.write(Write::Enqueue(queue, fields.collect())).put(&name.record(), turn);
}

pub(crate) fn calls_of(fields: Option<&Fields>) -> Vec<Bytes> {
    let of_entry = fields.into_iter().flatten();
    of_entry.filter(|(name, _)| &**name == fields::CALL).map(|(_, call)| call.clone()).collect()
}

/// Counts from the end of the entry, because its first calls may have results.
pub(crate) fn last_calls(fields: &Fields, count: usize) -> Vec<Bytes> {
    let mut calls = calls_of(Some(fields));
    calls.drain(..calls.len().saturating_sub(count));
    calls
}
