//! Reads the reply of `commit.lua`, which documents its order.

use bytes::Bytes;
use redis::Value;
use tickfleet_core::{Committed, Conflict, CounterKey, CounterState, EntryId, RecordKey};

use super::encode::Encoded;
use crate::StoreError;
use crate::script::reply::{into_text, number_of, unexpected};
use crate::seam::inspect::ShardStats;
use crate::seam::{BatchResult, ShardState};

pub(crate) const COMMIT: &str = "commit";

pub(super) fn read(prefix: &str, encoded: &Encoded, reply: Value) -> Result<BatchResult, StoreError> {
    let Value::Array(values) = reply else { return Err(unexpected(COMMIT, &reply)) };
    let mut values = values.into_iter();
    let mut number = || {
        let value = values.next().unwrap_or(Value::Nil);
        number_of(&value).ok_or_else(|| unexpected(COMMIT, &value))
    };
    let shard = ShardState {
        now_ms: number()?,
        epoch: unsigned(number()?),
        epoch_began_ms: number()?,
        policy: unsigned(number()?),
        settings: unsigned(number()?),
        pressure: number()? == 1,
    };
    let reader = Reader { prefix, counters: &encoded.counters, shard };
    let results = values.map(|value| reader.result(value)).collect::<Result<_, _>>()?;
    Ok(BatchResult { shard, results })
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

pub(super) fn counter_state(stored: &[u8]) -> Option<CounterState> {
    let number = |at: usize| {
        let bytes = stored.get(at * 8..at * 8 + 8)?;
        Some(f64::from_le_bytes(bytes.try_into().ok()?))
    };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of doubles saturate")]
    Some(CounterState {
        used: number(0)? as u64,
        ends_ms: number(1)? as i64,
        began_ms: number(2)? as i64,
        queued: number(3)? as u64 % 2 == 1,
    })
}

struct Reader<'a> {
    prefix: &'a str,
    counters: &'a [CounterKey],
    shard: ShardState,
}

impl Reader<'_> {
    fn result(&self, value: Value) -> Result<Result<Committed, Conflict>, StoreError> {
        let committed = |was_committed, entries| Committed {
            now_ms: self.shard.now_ms,
            was_committed,
            entries,
            shadowed: Vec::new(),
        };
        match value {
            Value::Int(1) => Ok(Ok(committed(false, Vec::new()))),
            Value::Int(2) => Ok(Ok(committed(true, Vec::new()))),
            Value::BulkString(_) => Ok(Ok(committed(false, into_text(value).map(EntryId::new).into_iter().collect()))),
            Value::Array(values) => self.words(values),
            other => Err(unexpected(COMMIT, &other)),
        }
    }

    fn words(&self, values: Vec<Value>) -> Result<Result<Committed, Conflict>, StoreError> {
        let shown = Value::Array(values.clone());
        let mut values = values.into_iter();
        let word = values.next().and_then(into_text).unwrap_or_default();
        let first = values.next().unwrap_or(Value::Nil);
        let second = values.next().unwrap_or(Value::Nil);
        if word == "committed" {
            let entries = list(first).into_iter().filter_map(into_text).map(EntryId::new).collect();
            let shadowed = list(second).iter().filter_map(|number| self.counter(number)).collect();
            return Ok(Ok(Committed { now_ms: self.shard.now_ms, was_committed: false, entries, shadowed }));
        }
        self.conflict(&word, first, second).map(Err).ok_or_else(|| unexpected(COMMIT, &shown))
    }

    fn conflict(&self, word: &str, first: Value, second: Value) -> Option<Conflict> {
        Some(match word {
            "record" => {
                let key = into_text(first)?;
                let key = RecordKey::new(key.strip_prefix(self.prefix).unwrap_or(&key));
                Conflict::Record { key, stored: bytes(second) }
            }
            "debit" => {
                Conflict::LimitReached { counter: self.counter(&first)?, state: counter_state(&bytes(second)?)? }
            }
            "time" => Conflict::Time { now_ms: self.shard.now_ms },
            "generation" => {
                Conflict::Generation { policy: unsigned(number_of(&first)?), settings: unsigned(number_of(&second)?) }
            }
            "epoch" => Conflict::Epoch { number: self.shard.epoch, began_ms: self.shard.epoch_began_ms },
            "full" => Conflict::Full,
            "no_member" => Conflict::NoMember,
            "pressure" => Conflict::Pressure,
            "inbox_full" => Conflict::InboxFull,
            "inboxes" => Conflict::TooManyInboxes,
            "read" => Conflict::Read,
            "not_held" => Conflict::NotHeld,
            "failed" => Conflict::Failed { message: into_text(first)? },
            _ => return None,
        })
    }

    fn counter(&self, number: &Value) -> Option<CounterKey> {
        let index = usize::try_from(number_of(number)?).ok()?.checked_sub(1)?;
        self.counters.get(index).cloned()
    }
}

fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        _ => Vec::new(),
    }
}

pub(super) fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::Nil => None,
        Value::BulkString(bytes) => Some(bytes.into()),
        other => into_text(other).map(|text| text.into_bytes().into()),
    }
}

/// `meta` has the fields `last_ms`, `state`, `steps` and `step_ms`, which `commit.lua` writes.
pub(super) fn shard_stats(clock_ms: i64, meta: &[Option<String>]) -> ShardStats {
    let text = |at: usize| meta.get(at).and_then(Option::as_deref).unwrap_or_default();
    let mut state = text(1).split(' ');
    let mut number = || state.next().and_then(|number| number.parse::<i64>().ok()).unwrap_or(0);
    let [offset_ms, _, epoch, epoch_began_ms, policy, settings, pressure] = [(); 7].map(|()| number());
    let last_ms = text(0).parse().unwrap_or(0);
    ShardStats {
        shard: ShardState {
            now_ms: (clock_ms + offset_ms).max(last_ms),
            epoch: unsigned(epoch),
            epoch_began_ms,
            policy: unsigned(policy),
            settings: unsigned(settings),
            pressure: pressure == 1,
        },
        clock_ms,
        offset_ms,
        steps: text(2).parse().unwrap_or(0),
        step_ms: text(3).parse().unwrap_or(0),
        ..ShardStats::default()
    }
}
