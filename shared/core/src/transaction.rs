//! Transactions, the only way to change a store: guards, then writes, committed together or not at all.
//!
//! Guards only read. If every guard holds, the store adds the amounts of all [`ConditionalDebit`] guards, acknowledges
//! the entries of [`Guard::Held`], and applies the writes in order. If a guard fails, the store writes nothing and
//! returns a [`Conflict`] with the current value. So the caller can decide again without another read.

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
            /// Creates a key with this text, without the shard's prefix.
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
    /// A set of members ordered by *score*, an integer of each member. Timers, throttle queues and indexes are sets.
    SetKey
);
text_key!(
    /// A stream: a queue with a consumer group, or a log.
    StreamKey
);
text_key!(
    /// The ID of a stream entry, `<ms>-<sequence>`. The store assigns it.
    EntryId
);
text_key!(
    /// The ID of the last transaction that wrote a record. A version identifies the record's content, and is the fence
    /// of a slice.
    ///
    /// Versions are never repeated: a process draws a random prefix at its start, and counts from there. So a version
    /// that a store lost in a restart is never assigned to other content. A version has 1 to 40 bytes, without blanks.
    Version
);

/// One counter of a limit, for example agent `kelly` under the limit `tick`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(Arc<str>, Arc<str>)", into = "(Arc<str>, Arc<str>)")]
pub struct CounterKey {
    /// The limit's name. All counters of a limit are stored together.
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

/// An inbox of a tenant: the stream `replies:<tenant>:<inbox>`. In the set `inboxes:<tenant>`, an inbox's score is the
/// shard time of its last use in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InboxKey {
    pub tenant: Arc<str>,
    pub inbox: Arc<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CounterState {
    /// The amount used in the window. If the window has ended, the amount counts as 0.
    pub used: u64,
    /// The end of the window; 0 if the counter has no window.
    pub ends_ms: i64,
    pub began_ms: i64,
    /// True while turns wait in the counter's throttle queue.
    pub queued: bool,
}

impl Window {
    /// Returns the window of the same length that is open at `now_ms` if this is a fixed window that has ended. Returns
    /// any other window unchanged.
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
    /// Returns the counter with the window that is open at `now_ms`. If the counter's last window has ended, a new
    /// window opens with amount 0. A rolling counter is returned unchanged.
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

/// Determines for how long debits count against a counter's maximum. If a limit changes from windows to no window, or
/// from rolling to another kind, the counter starts again at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// Windows of `length_ms`. The current window is `[start_ms, end_ms)`. If the counter's last window ended within
    /// the current window, the length has changed. In that case, the current window ends one length later, so that no
    /// two windows open within one length. If the current window has ended by the time of the commit, the store debits
    /// the window that is open then. If the current window has not begun, the guard fails with [`Conflict::Time`].
    /// After a restart of the store, windows of at most 60 s that began before the restart have no room. Their last
    /// debits may be lost.
    Fixed { start_ms: i64, end_ms: i64, length_ms: i64 },
    /// A calendar day `[start_ms, end_ms)`. If the counter's last day ended within this day, the time zone has changed:
    /// the amount stays, and the day ends at `end_ms`. If shard time is not within the day, the guard fails with
    /// [`Conflict::Time`].
    Day { start_ms: i64, end_ms: i64 },
    /// At most `max` within any period of `length_ms`. The store counts in eight buckets. So a debit can count for up
    /// to an eighth of the length longer, but never shorter. The end of a debit is the time when its bucket is dropped.
    /// [`Write::Add`] with this end changes this bucket. [`Write::Add`] without an end changes the newest bucket.
    Rolling { length_ms: i64 },
    /// Concurrency permits. A negative [`Write::Add`] returns permits. For one lease after a restart of the store, no
    /// permit is granted, because some holders may not have reported yet.
    Concurrency,
    /// Amounts do not expire, as for a task's budget or a tenant's unfinished work.
    Total,
}

/// A debit that succeeds only if the counter has room: the amount after the debit is at most `max`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionalDebit {
    pub counter: CounterKey,
    /// The amount to add; 0 is allowed.
    pub amount: u64,
    pub max: u64,
    pub window: Window,
    /// True if the debit must fail while [`CounterState::queued`] is true, as for a new turn.
    pub behind_queue: bool,
    /// True in shadow mode: the amount is added even without room, and [`Committed::shadowed`] reports it.
    pub shadow: bool,
    /// Maximum number of counters of the limit. Debits for further counters go to the shared counter
    /// [`ConditionalDebit::OTHERS`]. Once the shared counter exists, it also receives each [`Write::Add`],
    /// [`Write::AddMember`] and [`Write::RemoveMember`] for a counter that does not exist.
    pub counters_max: u64,
}

impl ConditionalDebit {
    /// Returns true if the guard only checks for room: it changes no counter, and creates no counter.
    #[must_use]
    pub fn only_checks(&self) -> bool {
        self.amount == 0 && self.window == Window::Total
    }

    /// The counter that all counters beyond `counters_max` share.
    pub const OTHERS: &'static str = "~";
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guard {
    Version(RecordKey, Version),
    Absent(RecordKey),
    /// The record exists, with any version.
    Present(RecordKey),
    /// The counter has room for the amount. If all guards hold, the amount is added.
    Debit(ConditionalDebit),
    /// Shard time is earlier than this (ms).
    Before(i64),
    /// Shard time is at or after this (ms).
    Since(i64),
    /// The generations of policy and run-time settings are not newer than these.
    Generation {
        policy: u64,
        settings: u64,
    },
    /// The restart epoch has this number, and has lasted for at least `lease_ms`.
    Epoch {
        number: u64,
        /// Minimum age of the epoch (ms); 0 for any age. The first epoch counts as old enough.
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
    /// The member is the first of the set. If not, the conflict is [`Conflict::NoMember`].
    First(SetKey, Arc<str>),
    /// The store was not short of memory at its last sample.
    MemoryAvailable,
    /// The inbox has fewer unread replies than `unread_max`. If the inbox is new, the tenant has fewer than
    /// `inboxes_max` inboxes. If all guards hold, the inbox is added to the tenant's inboxes. If a transaction has two
    /// [`Guard::Inbox`] guards, neither of them counts the inbox of the other.
    Inbox {
        inbox: InboxKey,
        unread_max: u64,
        inboxes_max: u64,
    },
    /// No consumer has read this entry of a queue.
    Unread(StreamKey, EntryId),
    /// A consumer holds the entry. If all guards hold, the entry is acknowledged and removed. [`Guard::Held`] is
    /// checked last.
    Held(StreamKey, EntryId),
}

/// How a write treats an existing timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimerRule {
    Set,
    /// Sets the timer if it does not exist or is due later.
    Earlier,
    /// Sets the timer only if it exists and is due later. This rule wakes a waiting turn, but creates no timer.
    Wake,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    /// Writes a record under the transaction's version. The record contains the entry of the last [`Write::Enqueue`] of
    /// this transaction. If there is a lifetime, the record and its parts expire.
    Put {
        key: RecordKey,
        content: Bytes,
        /// Lifetime (ms). `None` for records of unfinished work, which do not expire.
        ttl_ms: Option<i64>,
    },
    PutPart(RecordKey, Arc<str>, Bytes),
    DeleteParts(RecordKey, Vec<Arc<str>>),
    /// Removes a record and its parts.
    Delete(RecordKey),
    /// Appends an entry to a queue with a consumer group.
    Enqueue(StreamKey, Vec<(Arc<str>, Bytes)>),
    /// Removes an entry from a queue, even if a consumer holds it.
    Remove(StreamKey, EntryId),
    /// Removes a queue with its entries and its group.
    DropQueue(StreamKey),
    Timer {
        name: Arc<str>,
        due_ms: i64,
        rule: TimerRule,
    },
    ClearTimer(Arc<str>),
    /// Adds a member to a set, or gives the member another score.
    AddMember {
        set: SetKey,
        member: Arc<str>,
        /// The member's score. Smaller scores come first. At most 2^53.
        score: u64,
        /// The counter, if the set is the throttle queue of this counter.
        queue_of: Option<CounterKey>,
    },
    RemoveMember {
        set: SetKey,
        member: Arc<str>,
        queue_of: Option<CounterKey>,
    },
    /// Adds an amount to a counter, regardless of any maximum. The result is at least 0. With `ends_ms`, does nothing
    /// unless the counter exists and its window still ends at that time.
    Add {
        counter: CounterKey,
        /// A negative amount returns a debit.
        amount: i64,
        /// End of the window in which the amount was debited.
        ends_ms: Option<i64>,
    },
    /// Resets a counter for an operator: subtracts an amount, and sets the start of the window to the current time.
    /// Does nothing unless the counter's window still ends at `ends_ms`. Must not be used for rolling counters.
    Restart {
        counter: CounterKey,
        amount: u64,
        /// End of the window; 0 without a window.
        ends_ms: i64,
    },
    DeleteCounter(CounterKey),
    /// Appends an entry to a log. The log keeps about `max_entries` entries.
    Append {
        log: StreamKey,
        fields: Vec<(Arc<str>, Bytes)>,
        max_entries: u64,
    },
    /// Appends an entry to an inbox. The entry's field `reply` has the message, and its field `seq` has the message's
    /// number within the inbox, from 1.
    Reply(InboxKey, Bytes),
    /// Sets the generation of the policy that [`Guard::Generation`] compares.
    PolicyGeneration(u64),
    /// Sets the generation of the run-time settings that [`Guard::Generation`] compares.
    SettingsGeneration(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// Identifies the transaction. If the record `dedupe_record` already has this version, the store has already
    /// committed the transaction, and returns the same result again.
    pub version: Version,
    /// A record that the transaction writes. By this record's version, the store recognizes a repeated commit.
    pub dedupe_record: Option<RecordKey>,
    /// True if the store adds the states of the debited counters to the written records (see [`crate::record`]) and to
    /// slices (field `d`).
    pub stamped: bool,
    /// [`Guard::Held`] comes last.
    pub guards: Vec<Guard>,
    /// In order.
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

    pub fn timer(&mut self, name: impl AsRef<str>, due_ms: i64, rule: TimerRule) -> &mut Self {
        self.write(Write::Timer { name: name.as_ref().into(), due_ms, rule })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Shard time at the commit.
    pub now_ms: i64,
    /// True if an earlier commit of the same transaction made the writes.
    pub was_committed: bool,
    /// The entries of the [`Write::Enqueue`]s, in order; empty if `was_committed` is true.
    pub entries: Vec<EntryId>,
    /// The counters in shadow mode that had no room for their debits.
    pub shadowed: Vec<CounterKey>,
}

/// The guard that failed, with the current value. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Conflict {
    /// The record has another version, or is absent.
    Record {
        key: RecordKey,
        /// The record's stored text, see [`crate::record::RecordText`]. `None` if the record is absent.
        stored: Option<Bytes>,
    },
    LimitReached {
        /// The counter of the guard, even if it shares [`ConditionalDebit::OTHERS`].
        counter: CounterKey,
        /// The state of the counter that was checked, with the window that is open now. If the counter has no room
        /// because the store restarted, `used` is at least the guard's `max`.
        state: CounterState,
    },
    /// Shard time is outside the window that the decision used, or a [`Guard::Before`] or [`Guard::Since`] does not
    /// hold.
    Time {
        now_ms: i64,
    },
    Generation {
        policy: u64,
        settings: u64,
    },
    /// The restart epoch differs, or has not lasted long enough.
    Epoch {
        number: u64,
        began_ms: i64,
    },
    /// The stream or set has reached its maximum size.
    Full,
    NoMember,
    Pressure,
    InboxFull,
    TooManyInboxes,
    /// A consumer has read the entry, or the queue no longer has the entry.
    Read,
    NotHeld,
    /// The store could not apply the transaction, for example because a key holds a value of another type.
    Failed {
        message: String,
    },
}
