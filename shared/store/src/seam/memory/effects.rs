//! The effects that change a shard, and their binary form. A journal stores effects, and a replay applies them again.
//! So a replayed shard equals the original, even if a newer release makes other decisions.

use std::sync::Arc;

use bytes::Bytes;
use tickfleet_core::view::Fields;
use tickfleet_core::{CounterKey, RecordKey, SetKey, StreamKey};

use super::counters::Counter;
use super::streams::Id;

/// Numbers are little-endian. Texts and lists have a length prefix.
pub trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);
    /// Removes a value from the front of `from`. `None` if the bytes do not encode this type.
    fn get(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! effects {
    ($($(#[$doc:meta])* $tag:literal $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })*) => {
        #[derive(Debug, Clone, PartialEq)]
        pub enum Effect {
            $($(#[$doc])* $name { $($(#[$field_doc])* $field: $type),* }),*
        }

        impl Wire for Effect {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$name { $($field),* } => { out.push($tag); $($field.put(out);)* })*
                }
            }

            fn get(from: &mut &[u8]) -> Option<Self> {
                let (tag, rest) = from.split_first()?;
                *from = rest;
                match tag {
                    $($tag => Some(Self::$name { $($field: Wire::get(from)?),* }),)*
                    _ => None,
                }
            }
        }
    };
}

effects! {
    1 Record {
        key: RecordKey,
        text: Bytes,
        /// The last moment of the record's lifetime, by the store's clock.
        expires_ms: Option<i64>,
    }
    2 DropRecord {
        key: RecordKey,
    }
    3 Part {
        key: RecordKey,
        name: Arc<str>,
        value: Bytes,
    }
    4 DropPart {
        key: RecordKey,
        name: Arc<str>,
    }
    5 Member {
        set: SetKey,
        member: Arc<str>,
        score: u64,
    }
    6 DropMember {
        set: SetKey,
        member: Arc<str>,
    }
    7 Counter {
        key: CounterKey,
        counter: Counter,
    }
    8 DropCounter {
        key: CounterKey,
    }
    9 Queue {
        stream: StreamKey,
    }
    10 Entry {
        stream: StreamKey,
        id: Id,
        fields: Arc<Fields>,
    }
    11 DropEntry {
        stream: StreamKey,
        id: Id,
    }
    12 Taken {
        stream: StreamKey,
        id: Id,
        consumer: Arc<str>,
    }
    13 Consumer {
        stream: StreamKey,
        consumer: Arc<str>,
    }
    14 DropConsumer {
        stream: StreamKey,
        consumer: Arc<str>,
    }
    /// The newest IDs of a stream, which the stream keeps when its entries are removed.
    15 Reached {
        stream: StreamKey,
        last: Id,
        /// The newest entry that a consumer took.
        delivered: Id,
    }
    16 Number {
        inbox: StreamKey,
        number: u64,
    }
    17 Clock {
        /// Shard time minus the store's clock.
        offset_ms: i64,
        last_ms: i64,
    }
    18 Epoch {
        number: u64,
        /// In shard time; 0 for the first epoch.
        began_ms: i64,
    }
    19 Generations {
        policy: u64,
        settings: u64,
    }
    20 Pressure {
        short: bool,
    }
    21 Added {
        stream: StreamKey,
        added: u64,
    }
    /// For an inbox, also removes the number of its last reply.
    22 DropStream {
        stream: StreamKey,
    }
}

impl Effect {
    pub fn bytes(&self) -> usize {
        match self {
            Self::Record { text, .. } => text.len(),
            Self::Part { value, .. } => value.len(),
            Self::Entry { fields, .. } => fields.iter().map(|(_, value)| value.len()).sum(),
            _ => 0,
        }
        .saturating_add(100)
    }
}

fn take<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(taken)
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    (bytes.len() as u64).put(out);
    out.extend_from_slice(bytes);
}

fn get_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let count = usize::try_from(u64::get(from)?).ok()?;
    take(from, count)
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn get(from: &mut &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(take(from, size_of::<$type>())?.try_into().ok()?))
            }
        })*
    };
}

numbers!(u64, i64);

macro_rules! texts {
    ($($type:ty),*) => {
        $(impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_bytes(self.as_str().as_bytes(), out);
            }

            fn get(from: &mut &[u8]) -> Option<Self> {
                Some(Self::new(std::str::from_utf8(get_bytes(from)?).ok()?))
            }
        })*
    };
}

texts!(RecordKey, SetKey, StreamKey);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn get(from: &mut &[u8]) -> Option<Self> {
        match take(from, 1)? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

impl Wire for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self, out);
    }

    fn get(from: &mut &[u8]) -> Option<Self> {
        Some(Self::copy_from_slice(get_bytes(from)?))
    }
}

impl Wire for Arc<str> {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }

    fn get(from: &mut &[u8]) -> Option<Self> {
        Some(std::str::from_utf8(get_bytes(from)?).ok()?.into())
    }
}

impl Wire for CounterKey {
    fn put(&self, out: &mut Vec<u8>) {
        self.limit.put(out);
        self.counter.put(out);
    }

    fn get(from: &mut &[u8]) -> Option<Self> {
        Some(Self { limit: Wire::get(from)?, counter: Wire::get(from)? })
    }
}

impl Wire for Id {
    fn put(&self, out: &mut Vec<u8>) {
        self.ms.put(out);
        self.seq.put(out);
    }

    fn get(from: &mut &[u8]) -> Option<Self> {
        Some(Self { ms: Wire::get(from)?, seq: Wire::get(from)? })
    }
}

impl Wire for Counter {
    fn put(&self, out: &mut Vec<u8>) {
        self.state.used.put(out);
        self.state.ends_ms.put(out);
        self.state.began_ms.put(out);
        self.state.queued.put(out);
        self.buckets.put(out);
    }

    fn get(from: &mut &[u8]) -> Option<Self> {
        let state = tickfleet_core::CounterState {
            used: Wire::get(from)?,
            ends_ms: Wire::get(from)?,
            began_ms: Wire::get(from)?,
            queued: Wire::get(from)?,
        };
        Some(Self { state, buckets: Wire::get(from)? })
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn get(from: &mut &[u8]) -> Option<Self> {
        Some(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn get(from: &mut &[u8]) -> Option<Self> {
        Some((Wire::get(from)?, Wire::get(from)?))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn get(from: &mut &[u8]) -> Option<Self> {
        (0..u64::get(from)?).map(|_| T::get(from)).collect()
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }

    fn get(from: &mut &[u8]) -> Option<Self> {
        T::get(from).map(Self::new)
    }
}
