//! Transactions are the only way to change a store: guards and writes are committed together or not at all. If all
//! guards hold, the store adds the debits, acknowledges the entries of [`Guard::Held`], and applies the writes in
//! order. If a guard fails, the [`Conflict`] has the current value, so the caller needs no further read.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

macro_rules! text_key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(Arc<str>);

        impl $name {
            #[must_use]
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(text.as_ref().into())
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

text_key!(
    /// A versioned record, and its parts.
    RecordKey
);
text_key!(
    /// A set with an integer *score* for each member, ordered by score.
    SetKey
);
text_key!(
    /// A stream: a queue with a consumer group, or a log.
    StreamKey
);
text_key!(
    /// The ID of a stream entry, `<ms>-<sequence>`.
    EntryId
);
text_key!(
    /// Names the last transaction that wrote a record: 1 to 40 bytes, without blanks. Each process counts from a random
    /// prefix, so no version is assigned twice.
    Version
);

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(Arc<str>, Arc<str>)", into = "(Arc<str>, Arc<str>)")]
pub struct CounterKey {
    /// All counters of a limit are stored together.
    pub limit: Arc<str>,
    pub counter: Arc<str>,
}

impl From<(Arc<str>, Arc<str>)> for CounterKey {
    fn from((limit, counter): (Arc<str>, Arc<str>)) -> Self {
        Self { limit, counter }
    }
}

impl From<CounterKey> for (Arc<str>, Arc<str>) {
    fn from(CounterKey { limit, counter }: CounterKey) -> Self {
        (limit, counter)
    }
}

impl CounterKey {
    #[must_use]
    pub fn new(limit: impl AsRef<str>, counter: impl AsRef<str>) -> Self {
        Self { limit: limit.as_ref().into(), counter: counter.as_ref().into() }
    }
}

/// The stream `replies:<tenant>:<inbox>`. In `inboxes:<tenant>`, the score is the shard time (ms) of the last use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InboxKey {
    pub tenant: Arc<str>,
    pub inbox: Arc<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CounterState {
    /// Counts as 0 after the end of the window.
    pub used: u64,
    /// 0 if the counter has no window.
    pub ends_ms: i64,
    pub began_ms: i64,
    pub queued: bool,
}

impl Window {
    /// Returns the fixed window that is open at `now_ms`. Other windows stay unchanged.
    #[must_use]
    pub const fn running_at(self, now_ms: i64) -> Self {
        match self {
            Self::Fixed { end_ms, length_ms, .. } if now_ms >= end_ms && length_ms > 0 => {
                let start_ms = end_ms + (now_ms - end_ms) / length_ms * length_ms;
                Self::Fixed { start_ms, end_ms: start_ms + length_ms, length_ms }
            }
            _ => self,
        }
    }
}

impl CounterState {
    /// Returns the counter as of `now_ms`: a new window starts with amount 0. A rolling counter stays unchanged.
    #[must_use]
    pub const fn opened(self, window: &Window, now_ms: i64) -> Self {
        let ended = now_ms >= self.ends_ms;
        let last_ms = self.ends_ms;
        match *window {
            Window::Fixed { .. } | Window::Day { .. } if !ended => self,
            Window::Fixed { start_ms, end_ms, length_ms } if start_ms < last_ms && last_ms < end_ms => {
                self.begun(end_ms.saturating_add(length_ms), now_ms)
            }
            Window::Day { start_ms, end_ms } if start_ms < last_ms && last_ms < end_ms => {
                Self { ends_ms: end_ms, ..self }
            }
            Window::Fixed { start_ms, end_ms, .. } | Window::Day { start_ms, end_ms } => self.begun(end_ms, start_ms),
            Window::Concurrency | Window::Total if last_ms != 0 => self.begun(0, 0),
            Window::Concurrency | Window::Total | Window::Rolling { .. } => self,
        }
    }

    const fn begun(self, ends_ms: i64, began_ms: i64) -> Self {
        Self { used: 0, ends_ms, began_ms, queued: self.queued }
    }
}

/// A counter is reset to 0 if it changes from a window to no window. It is also reset if it changes from rolling to
/// another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// The store debits the window that is open at the commit. A changed length extends the current window by one
    /// length. A window in the future fails with [`Conflict::Time`]. After a restart of the store, open windows of at
    /// most 60 s have no room, because the last debits may be lost.
    Fixed { start_ms: i64, end_ms: i64, length_ms: i64 },
    /// A changed time zone keeps the amount until `end_ms`. Outside this day, the guard fails with [`Conflict::Time`].
    Day { start_ms: i64, end_ms: i64 },
    /// At most `max` within any `length_ms`. The store counts in eight buckets, so a debit counts for up to an eighth
    /// of the length too long. [`Write::Add`] changes the bucket that ends at the write's `ends_ms`. Without `ends_ms`,
    /// it changes the newest bucket.
    Rolling { length_ms: i64 },
    /// Concurrency permits. For one lease after a restart of the store, no permit is granted, because some holders may
    /// not have reported.
    Concurrency,
    /// Amounts do not expire.
    Total,
}

/// The amount after the debit must be at most `max`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionalDebit {
    pub counter: CounterKey,
    pub amount: u64,
    pub max: u64,
    pub window: Window,
    /// True if the debit must fail while [`CounterState::queued`] is true.
    pub behind_queue: bool,
    /// In shadow mode, the amount is added even without room, and [`Committed::shadowed`] reports it.
    pub shadow: bool,
    /// Maximum number of counters of the limit. Further counters share [`ConditionalDebit::OTHERS`]. Later writes to a
    /// missing counter also go there.
    pub counters_max: u64,
}

impl ConditionalDebit {
    /// Debits a counter without a window.
    #[must_use]
    pub const fn total(counter: CounterKey, amount: u64, max: u64) -> Self {
        let window = Window::Total;
        Self { counter, amount, max, window, behind_queue: false, shadow: false, counters_max: u64::MAX }
    }

    #[must_use]
    pub fn has_only_guards(&self) -> bool {
        self.amount == 0 && self.window == Window::Total
    }

    pub const OTHERS: &'static str = "~";
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guard {
    Version(RecordKey, Version),
    Absent(RecordKey),
    Present(RecordKey),
    Debit(ConditionalDebit),
    /// Shard time is earlier than this (ms).
    Before(i64),
    /// Shard time is at or after this (ms).
    Since(i64),
    /// The store's generations are not newer than these.
    Generation {
        policy: u64,
        settings: u64,
    },
    /// The restart epoch has this number and this minimum age.
    Epoch {
        number: u64,
        /// Milliseconds; 0 for any age. The first epoch is always old enough.
        lease_ms: i64,
    },
    /// The stream has fewer entries than this.
    Within(StreamKey, u64),
    /// The set has fewer members than `max`, or already has this member.
    Fits {
        set: SetKey,
        member: Arc<str>,
        max: u64,
    },
    Member(SetKey, Arc<str>),
    /// The member is first in the set. If not, the conflict is [`Conflict::NoMember`].
    First(SetKey, Arc<str>),
    /// As of the store's last memory sample.
    MemoryAvailable,
    /// The inbox has fewer unread replies than `unread_max`. A new inbox is allowed only if the tenant has fewer than
    /// `inboxes_max` inboxes. Two inbox guards of one transaction do not count each other's inbox.
    Inbox {
        inbox: InboxKey,
        unread_max: u64,
        inboxes_max: u64,
    },
    /// No consumer has read this entry of a queue.
    Unread(StreamKey, EntryId),
    /// If all guards hold, the entry is acknowledged and removed. This guard is checked last.
    Held(StreamKey, EntryId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimerRule {
    Set,
    /// Sets the timer if there is no timer, or if the existing timer is due later.
    Earlier,
    /// Changes only an existing timer that is due later.
    Wake,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    /// The store adds the entry ID of the transaction's last [`Write::Enqueue`] to the record. With a lifetime, the
    /// record and its parts expire.
    Put {
        key: RecordKey,
        content: Bytes,
        /// `None` for unfinished work, which does not expire.
        ttl_ms: Option<i64>,
    },
    PutPart(RecordKey, Arc<str>, Bytes),
    DeleteParts(RecordKey, Vec<Arc<str>>),
    Delete(RecordKey),
    Enqueue(StreamKey, Vec<(Arc<str>, Bytes)>),
    /// Removes the entry even if a consumer holds it.
    Remove(StreamKey, EntryId),
    DropQueue(StreamKey),
    Timer {
        name: Arc<str>,
        due_ms: i64,
        rule: TimerRule,
    },
    ClearTimer(Arc<str>),
    /// Also changes the score of an existing member.
    AddMember {
        set: SetKey,
        member: Arc<str>,
        /// At most 2^53. Smaller scores come first.
        score: u64,
        /// The counter of a throttle queue; `None` for other sets.
        queue_of: Option<CounterKey>,
    },
    RemoveMember {
        set: SetKey,
        member: Arc<str>,
        queue_of: Option<CounterKey>,
    },
    /// Ignores any maximum; the result is at least 0. With `ends_ms`, changes only an existing counter with this end.
    Add {
        counter: CounterKey,
        /// A negative amount returns a debit.
        amount: i64,
        /// End of the debited window.
        ends_ms: Option<i64>,
    },
    /// For operators: subtracts the amount, and starts the window now. Does nothing if the window no longer ends at
    /// `ends_ms`. Must not be used for rolling counters.
    Restart {
        counter: CounterKey,
        amount: u64,
        /// 0 without a window.
        ends_ms: i64,
    },
    DeleteCounter(CounterKey),
    /// The log keeps about `max_entries` entries.
    Append {
        log: StreamKey,
        fields: Vec<(Arc<str>, Bytes)>,
        max_entries: u64,
    },
    /// The entry's field `reply` has the message. The field `seq` is the message's number within the inbox, from 1.
    Reply(InboxKey, Bytes),
    PolicyGeneration(u64),
    SettingsGeneration(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    pub version: Version,
    /// A record that the transaction writes. If this record already has `version`, the store repeats the first result.
    pub dedupe_record: Option<RecordKey>,
    /// If true, the store adds the states of the debited counters to records (see [`crate::record`]) and slices (field
    /// `d`).
    pub stamped: bool,
    /// [`Guard::Held`] comes last.
    pub guards: Vec<Guard>,
    pub writes: Vec<Write>,
}

impl Transaction {
    #[must_use]
    pub const fn new(version: Version) -> Self {
        Self { version, dedupe_record: None, stamped: false, guards: Vec::new(), writes: Vec::new() }
    }

    pub fn guard(&mut self, guard: Guard) -> &mut Self {
        self.guards.push(guard);
        self
    }

    pub fn write(&mut self, write: Write) -> &mut Self {
        self.writes.push(write);
        self
    }

    /// Adds a member of a set whose scores are times.
    pub fn join(&mut self, set: SetKey, member: impl Into<Arc<str>>, score_ms: i64) -> &mut Self {
        let score = score_ms.max(0).unsigned_abs();
        self.write(Write::AddMember { set, member: member.into(), score, queue_of: None })
    }

    pub fn leave(&mut self, set: SetKey, member: impl Into<Arc<str>>) -> &mut Self {
        self.write(Write::RemoveMember { set, member: member.into(), queue_of: None })
    }

    pub fn timer(&mut self, name: impl AsRef<str>, due_ms: i64, rule: TimerRule) -> &mut Self {
        self.write(Write::Timer { name: name.as_ref().into(), due_ms, rule })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    pub now_ms: i64,
    pub was_committed: bool,
    /// One entry per [`Write::Enqueue`]; empty if `was_committed` is true.
    pub entries: Vec<EntryId>,
    pub shadowed: Vec<CounterKey>,
}

/// Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Conflict {
    /// The record has another version, or is absent.
    Record {
        key: RecordKey,
        /// As in [`crate::record::RecordText`]; `None` if the record is absent.
        stored: Option<Bytes>,
    },
    LimitReached {
        /// The guard's own counter, never [`ConditionalDebit::OTHERS`].
        counter: CounterKey,
        /// The window is the window that is open now. If the counter has no room because of a restart, `used` is at
        /// least the guard's `max`.
        state: CounterState,
    },
    /// Shard time is outside the window of a debit, or [`Guard::Before`] or [`Guard::Since`] does not hold.
    Time {
        now_ms: i64,
    },
    Generation {
        policy: u64,
        settings: u64,
    },
    /// The epoch differs or is too new.
    Epoch {
        number: u64,
        began_ms: i64,
    },
    Full,
    NoMember,
    Pressure,
    InboxFull,
    TooManyInboxes,
    /// A consumer has read the entry, or the entry is gone.
    Read,
    NotHeld,
    /// For example, a key holds a value of another type.
    Failed {
        message: String,
    },
}
