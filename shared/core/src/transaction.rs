//! Transactions, the only way to change a store: guards, then writes, committed together or not at all.
//!
//! Guards only read. If every guard holds, the store adds the amounts of all [`Room`] guards, acknowledges [`Guard::Held`]
//! entries, and applies the writes in order. If a guard fails, the store writes nothing and returns a [`Conflict`] with the
//! current value, so that the caller can decide again without another read.

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
            /// A key with this text, without the shard's prefix.
            #[must_use]
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(text.as_ref().into())
            }

            /// The text, without the shard's prefix.
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
    /// A set of members ordered by place: timers, throttle queues, indexes.
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
    /// The ID of the transaction that wrote a record last. It identifies the record's content, and it is the fence of a
    /// slice.
    ///
    /// Versions are never repeated: a process draws a prefix at start and counts from there. So a version that a store lost
    /// in a restart is never assigned to other content. 1 to 40 bytes, without blanks.
    Version
);

/// One counter of a limit: agent `kelly` under the limit `tick`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(Arc<str>, Arc<str>)", into = "(Arc<str>, Arc<str>)")]
pub struct CounterKey {
    /// The limit's name. All its counters are stored together.
    pub limit: Arc<str>,
    /// The counter within the limit.
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
    /// The key of `counter` under `limit`.
    #[must_use]
    pub fn new(limit: impl AsRef<str>, counter: impl AsRef<str>) -> Self {
        Self { limit: limit.as_ref().into(), counter: counter.as_ref().into() }
    }
}

/// An inbox of a tenant: the stream `replies:<tenant>:<inbox>`. The set `inboxes:<tenant>` has the tenant's inboxes, each at
/// the shard time of its last use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InboxKey {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The inbox.
    pub inbox: Arc<str>,
}

/// The content of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CounterState {
    /// The amount used in the window. If the window has ended, the amount counts as 0.
    pub used: u64,
    /// The end of the window, ms; 0 if the counter has no window.
    pub ends_ms: i64,
    /// The start of the window, ms.
    pub began_ms: i64,
    /// True while turns wait in the counter's throttle queue.
    pub queued: bool,
}

impl Window {
    /// The window at `now_ms`, if this one has ended by then.
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
    /// The counter with the window that runs at `now_ms`. A [`Window::Rolling`] has no window to open.
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
            Window::Held | Window::Total if last_ms != 0 => self.begun(0, 0),
            Window::Held | Window::Total | Window::Rolling { .. } => self,
        }
    }

    const fn begun(self, ends_ms: i64, began_ms: i64) -> Self {
        Self { used: 0, ends_ms, began_ms, queued: self.queued }
    }
}

/// How a counter gets room again. If the kind of a counter's limit has changed, the counter starts again at 0: it had a
/// window and has none, or it was rolling and is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// Windows of `length_ms`; the current one is `[start_ms, end_ms)`. If the counter's last window ended within the
    /// current one, the length has changed: the next window ends one length later, so that the counter never opens twice
    /// within one length. If the current window has ended by the commit, the store debits the one that runs then. If it has
    /// not begun, the guard fails with [`Conflict::Time`]. After a restart of the store, a window of at most 60 s that began
    /// before has no room, because its last debits may be lost.
    Fixed {
        /// Start of the current window, ms.
        start_ms: i64,
        /// End of the current window, ms.
        end_ms: i64,
        /// Length of a window, ms.
        length_ms: i64,
    },
    /// A calendar day `[start_ms, end_ms)`. If the counter's last day ended within it, the time zone has changed: the
    /// amount stays, and the day ends at `end_ms`. If shard time is not within the day, the guard fails with
    /// [`Conflict::Time`].
    Day {
        /// Start of the current day, ms.
        start_ms: i64,
        /// End of the current day, ms.
        end_ms: i64,
    },
    /// At most `max` within any `length_ms`. The store counts in eight buckets, so a debit may count for up to an eighth of
    /// the length longer, but never shorter. The end of a debit is the time when its bucket leaves the counter.
    /// [`Write::Add`] with that end changes that bucket; without an end, it changes the newest one.
    Rolling {
        /// Length, ms.
        length_ms: i64,
    },
    /// Concurrency permits: [`Write::Add`] returns amounts. No permit is granted for one lease after a restart of the store,
    /// because a holder may not have reported itself yet.
    Held,
    /// Amounts do not expire: a task's budget, a bound on unfinished work.
    Total,
}

/// A debit that succeeds if the counter has room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The counter.
    pub counter: CounterKey,
    /// The amount to add; it may be 0.
    pub amount: u64,
    /// The maximum of the counter, including the amount.
    pub max: u64,
    /// How the counter gets room again.
    pub window: Window,
    /// True for a new turn: it has no room while [`CounterState::queued`].
    pub behind_queue: bool,
    /// True in shadow mode: the amount is added even without room, and [`Committed::shadowed`] reports it.
    pub shadow: bool,
    /// Maximum number of counters of the limit. Further counters share the counter [`Room::OTHERS`]: once it exists, it
    /// receives their debits, and any [`Write::Add`], [`Write::Join`] and [`Write::Leave`] of a counter that does not exist.
    pub counters_max: u64,
}

impl Room {
    /// True if the guard only compares: it changes no counter, and creates none.
    #[must_use]
    pub fn only_checks(&self) -> bool {
        self.amount == 0 && self.window == Window::Total
    }

    /// The counter that all counters beyond `counters_max` share.
    pub const OTHERS: &'static str = "~";
}

/// A condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guard {
    /// The record has this version.
    Version(RecordKey, Version),
    /// The record does not exist.
    Absent(RecordKey),
    /// The record exists, with any version.
    Present(RecordKey),
    /// The counter has room. The amount is added if all guards hold.
    Room(Room),
    /// Shard time is earlier than this, ms.
    Before(i64),
    /// Shard time is at or after this, ms.
    Since(i64),
    /// The generations of policy and run-time settings are at most these.
    Generation {
        /// Generation of the policy.
        policy: u64,
        /// Generation of the run-time settings.
        settings: u64,
    },
    /// The restart epoch is this one, and has lasted for `lease_ms` (0: any time).
    Epoch {
        /// Number of the epoch.
        number: u64,
        /// Time for which it must have lasted, ms.
        lease_ms: i64,
    },
    /// The stream has fewer entries than this.
    Within(StreamKey, u64),
    /// The set has fewer members than `max`, or already has this member.
    Fits {
        /// The set.
        set: SetKey,
        /// The member.
        member: Arc<str>,
        /// Maximum number of members.
        max: u64,
    },
    /// The set has this member.
    Member(SetKey, Arc<str>),
    /// The member is the first of the set. If not, the conflict is [`Conflict::NoMember`].
    First(SetKey, Arc<str>),
    /// The store was not short of memory at its last sample.
    Calm,
    /// The inbox has fewer unread replies than `unread_max`, and the tenant already has the inbox or may have one more. If
    /// all guards hold, the tenant has the inbox. Two of these guards in one transaction do not count each other.
    Inbox {
        /// The inbox.
        inbox: InboxKey,
        /// Maximum number of unread replies.
        unread_max: u64,
        /// Maximum number of the tenant's inboxes.
        inboxes_max: u64,
    },
    /// No consumer has read this entry of a queue.
    Unread(StreamKey, EntryId),
    /// A consumer holds this entry. If all guards hold, it is acknowledged and removed. Checked last.
    Held(StreamKey, EntryId),
}

/// The rule for an existing timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimerRule {
    /// Always sets the timer.
    Set,
    /// Sets the timer if it does not exist, or is later.
    Earlier,
    /// Sets the timer only if it exists and is later: wakes a waiting turn, but creates no timer.
    Wake,
}

/// One change of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    /// Writes a record under the transaction's version, with the entry of the last [`Write::Enqueue`] of this transaction.
    /// With a lifetime, record and parts expire.
    Put {
        /// The record.
        key: RecordKey,
        /// Its content, see [`crate::record`].
        content: Bytes,
        /// Lifetime, ms. `None` for unfinished records.
        ttl_ms: Option<i64>,
    },
    /// Writes a part of a record: a call, a result.
    PutPart(RecordKey, Arc<str>, Bytes),
    /// Removes parts of a record.
    DeleteParts(RecordKey, Vec<Arc<str>>),
    /// Removes a record and its parts.
    Delete(RecordKey),
    /// Appends an entry to a queue with a consumer group.
    Enqueue(StreamKey, Vec<(Arc<str>, Bytes)>),
    /// Removes an entry from a queue, even if a consumer holds it.
    Remove(StreamKey, EntryId),
    /// Removes a queue with its entries and its group.
    DropQueue(StreamKey),
    /// Arms a timer.
    Timer {
        /// Its name.
        name: Arc<str>,
        /// When it is due, ms.
        due_ms: i64,
        /// The rule if the timer exists.
        rule: TimerRule,
    },
    /// Disarms a timer.
    ClearTimer(Arc<str>),
    /// Adds a member to a set, or moves it. If the set is a throttle queue, `queue_of` is its counter.
    Join {
        /// The set.
        set: SetKey,
        /// The member.
        member: Arc<str>,
        /// Its place; a smaller place comes first. At most 2^53.
        place: u64,
        /// The counter, if the set is its throttle queue.
        queue_of: Option<CounterKey>,
    },
    /// Removes a member from a set.
    Leave {
        /// The set.
        set: SetKey,
        /// The member.
        member: Arc<str>,
        /// The counter, if the set is its throttle queue.
        queue_of: Option<CounterKey>,
    },
    /// Adds to a counter without a bound; the result is at least 0. With `ends_ms`, only if the counter exists and its
    /// window still ends at that time.
    Add {
        /// The counter.
        counter: CounterKey,
        /// The amount; negative to return it.
        amount: i64,
        /// End of the window that the amount was debited in, ms.
        ends_ms: Option<i64>,
    },
    /// Takes an amount from a counter without buckets, if its window still ends at `ends_ms`, and begins the window now: an
    /// operator has reset it.
    Restart {
        /// The counter.
        counter: CounterKey,
        /// The amount.
        amount: u64,
        /// End of the window, ms; 0 without one.
        ends_ms: i64,
    },
    /// Removes a counter.
    DeleteCounter(CounterKey),
    /// Appends an entry to a log, which keeps about `max_entries`.
    Append {
        /// The log.
        log: StreamKey,
        /// The entry.
        fields: Vec<(Arc<str>, Bytes)>,
        /// Maximum number of entries in the log, approximate.
        max_entries: u64,
    },
    /// Appends a message to an inbox: an entry with the message as `reply`, and its number within the inbox, from 1, as
    /// `seq`.
    Reply(InboxKey, Bytes),
    /// Sets the generation of the policy that [`Guard::Generation`] compares.
    PolicyGeneration(u64),
    /// Sets the generation of the run-time settings that [`Guard::Generation`] compares.
    SettingsGeneration(u64),
}

/// Guards and writes that a store commits together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// Identifies the transaction. If the store finds this version on `proof`, it has already committed the transaction, and
    /// reports that again.
    pub version: Version,
    /// A record that the transaction puts. The store recognizes a repeated commit by its version.
    pub proof: Option<RecordKey>,
    /// True if the written records and slices carry the debited counters, see [`crate::record`]. Slices carry them in the
    /// field `d`.
    pub stamped: bool,
    /// The conditions. [`Guard::Held`] comes last.
    pub guards: Vec<Guard>,
    /// The changes, in order.
    pub writes: Vec<Write>,
}

impl Transaction {
    /// An empty transaction.
    #[must_use]
    pub const fn new(version: Version) -> Self {
        Self { version, proof: None, stamped: false, guards: Vec::new(), writes: Vec::new() }
    }

    /// Adds a condition.
    pub fn guard(&mut self, guard: Guard) -> &mut Self {
        self.guards.push(guard);
        self
    }

    /// Adds a change.
    pub fn write(&mut self, write: Write) -> &mut Self {
        self.writes.push(write);
        self
    }

    /// Arms a timer.
    pub fn timer(&mut self, name: impl AsRef<str>, due_ms: i64, rule: TimerRule) -> &mut Self {
        self.write(Write::Timer { name: name.as_ref().into(), due_ms, rule })
    }
}

/// A committed transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Shard time, ms.
    pub now_ms: i64,
    /// True if an earlier commit of the same transaction wrote it.
    pub already: bool,
    /// The entries of its [`Write::Enqueue`]s, in order; empty if `already`.
    pub entries: Vec<EntryId>,
    /// The counters in shadow mode that had no room.
    pub shadowed: Vec<CounterKey>,
}

/// The guard that failed, with the current value. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Conflict {
    /// The record has another version, or is absent.
    Record {
        /// The record.
        key: RecordKey,
        /// Its stored text, see [`crate::record::RecordText`].
        stored: Option<Bytes>,
    },
    /// The counter has no room.
    Room {
        /// The counter of the guard, even if it shares [`Room::OTHERS`].
        counter: CounterKey,
        /// The state of the checked counter, with the currently open window. If a restart of the store leaves it no room,
        /// `used` is at least the guard's `max`.
        state: CounterState,
    },
    /// Shard time is outside the window, or past the time, that the decision used.
    Time {
        /// Shard time, ms.
        now_ms: i64,
    },
    /// Policy or run-time settings are newer.
    Generation {
        /// Generation of the policy.
        policy: u64,
        /// Generation of the run-time settings.
        settings: u64,
    },
    /// The restart epoch differs, or has not lasted long enough.
    Epoch {
        /// Its number.
        number: u64,
        /// Start of the epoch, ms.
        began_ms: i64,
    },
    /// The stream or set has reached its bound.
    Full,
    /// The set does not have the member.
    NoMember,
    /// The store is short of memory.
    Pressure,
    /// The inbox has too many unread replies.
    InboxFull,
    /// The tenant has too many inboxes.
    TooManyInboxes,
    /// A consumer has read the entry, or the entry is gone.
    Read,
    /// No consumer holds the entry.
    NotHeld,
    /// The store could not apply the transaction, for example because a key holds another type.
    Failed {
        /// The store's message.
        message: String,
    },
}
