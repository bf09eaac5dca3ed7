//! What a turn is made of, and what can happen to it. The transitions are in [`super::turn`].

use super::admission::Verdict;
pub use tickfleet_model::decision::Reason;

/// What a holder must show to write: each dispatch and each ending gives a fresh one (rule 4).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fence(pub u64);

/// What every turn that has not ended knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live<R> {
    /// How many calls it has.
    pub calls: usize,
    /// When it expires, ms.
    pub deadline_ms: i64,
    /// How many calls were admitted so far.
    pub admitted: usize,
    /// Up to which position calls have debited what has a window: those that are not admitted gave their places back while one
    /// of them waited, and debit no window again.
    pub paid: usize,
    /// Results so far, in call order.
    pub results: Vec<R>,
    /// Whether somebody has asked for its end.
    pub cancelled: bool,
    /// The fence that ended the last slice: its holder's repeated settle is answered `Already`.
    pub settled: Option<Fence>,
    /// The fence that was parked last: its holder's repeated retry is answered `Already`.
    pub parked: Option<Fence>,
    pub(super) fences: u64,
}

impl<R> Live<R> {
    pub(super) fn fence(&mut self) -> Fence {
        self.fences += 1;
        Fence(self.fences)
    }

    /// Why it ends now, where it does, with the number that explains it.
    pub(super) fn over(&self, now_ms: i64) -> Option<(Reason, i64)> {
        if self.cancelled {
            Some((Reason::Cancelled, now_ms))
        } else {
            (self.deadline_ms <= now_ms).then_some((Reason::Expired, self.deadline_ms))
        }
    }
}

/// Consecutive calls that are out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slice {
    /// Its fence.
    pub fence: Fence,
    /// Position of the first call of the entry.
    pub first: usize,
    /// How often a holder has died.
    pub crashes: u32,
    /// Tries that the first call has behind it.
    pub attempt: u32,
    /// Whether a worker has read it.
    pub held: bool,
    /// Whether its entry is with nobody and on no queue, and since when that is known, ms.
    pub lost: Option<Option<i64>>,
    /// Whether this holder has begun any of it.
    pub started: bool,
    /// The call that some holder began last, with its nonce.
    pub begun: Option<(usize, u64)>,
}

/// Calls given to a scheduler to be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Its fence.
    pub fence: Fence,
    /// Why.
    pub reason: Reason,
    /// Position after the last call that ends.
    pub upto: usize,
    /// The number that explains the reason.
    pub info: i64,
    /// The call that a holder who is gone had begun: what it did is unknown.
    pub begun: Option<usize>,
}

/// Where a turn is. Each state owns its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State<R> {
    /// On its agent's lane: calls wait for admission, none is out.
    Queued(Live<R>),
    /// A slice is on a queue or with a worker.
    Out(Live<R>, Slice),
    /// A slice waits to be tried again.
    Parked {
        /// The turn.
        live: Live<R>,
        /// Tries that the next call has behind it.
        attempt: u32,
        /// How often a holder of the slice has died.
        crashes: u32,
    },
    /// Calls are with a scheduler that renders their results.
    Ending(Live<R>, Ending),
    /// Every call has its result, and the reply is written.
    Ended {
        /// One for each call, in order.
        results: Vec<R>,
        /// The fence that ended it.
        fence: Fence,
    },
}

/// What happens to a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<R> {
    /// The budgets have decided about the calls that wait.
    Release(Verdict),
    /// A worker has read the slice's entry.
    Lease,
    /// A holder begins a call.
    Begin {
        /// Its fence.
        fence: Fence,
        /// Which call.
        position: usize,
        /// Fresh for each try; none only marks the slice as started.
        nonce: Option<u64>,
        /// Whether Redis restarted less than a lease ago.
        hold: bool,
    },
    /// A holder commits results.
    Settle {
        /// Its fence.
        fence: Fence,
        /// Position of the first result.
        first: usize,
        /// The results.
        results: Vec<R>,
    },
    /// A holder parks the slice.
    Retry {
        /// Its fence.
        fence: Fence,
        /// The call that is to be tried again.
        position: usize,
        /// Wait, ms.
        delay_ms: i64,
        /// Tries that the call has behind it.
        attempt: u32,
    },
    /// A holder parks the slice, for its next call waits for somebody else and has begun nothing.
    Wait {
        /// Its fence.
        fence: Fence,
        /// That call.
        position: usize,
        /// How long it waits at most, ms.
        delay_ms: i64,
        /// Whether its calls hold places of limits, which they give back.
        gives: bool,
    },
    /// A holder returns the slice unstarted.
    HandBack {
        /// Its fence.
        fence: Fence,
    },
    /// The slice's entry is gone, or whoever held it is no longer known: a hand in Redis, or a lost second.
    Lose,
    /// The holder of this fence is dead.
    Reap {
        /// The fence of the entry.
        fence: Fence,
        /// Crashes after which a slice is quarantined.
        crashes_max: u32,
    },
    /// The turn's own timer is due.
    Timer {
        /// Crashes after which a slice is quarantined.
        crashes_max: u32,
    },
    /// Somebody asks for its end.
    Cancel,
}

/// What an event is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Done as asked.
    Ok,
    /// The turn has ended with this.
    Done,
    /// The slice has ended; calls are left.
    Laned,
    /// The results are in; the slice goes on.
    Continue,
    /// The turn was cancelled.
    Cancelled,
    /// One's own verb was repeated.
    Already,
    /// The fence is another's.
    Stale,
    /// Earlier results are missing.
    Gap,
    /// The call has its result.
    ResultThere,
    /// A holder who is gone began the call.
    Unknown,
    /// The deadline has come.
    Expired,
    /// Redis restarted less than a lease ago.
    Hold,
    /// The slice is on its queue (again).
    Queued,
    /// It is on the lane of a limit whose place it gave back.
    Queues,
    /// Its slice was nowhere, and is on its queue again.
    Restored,
    /// Nothing to do yet.
    Later,
    /// An ending was given out.
    GivenOut,
    /// Its running calls end first.
    Flagged,
}

/// How a transition moves the turn on its agent's lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneMove {
    /// Onto the lane, in admission order.
    Join,
    /// Off it.
    Leave,
}

/// What a transition does beside the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effects {
    /// What the caller is told.
    pub answer: Answer,
    /// Change of the tenant's slices that are out.
    pub out: i64,
    /// Move on the lane.
    pub lane: Option<LaneMove>,
    /// Where the turn's timer goes, ms; none leaves it.
    pub timer_ms: Option<i64>,
}

impl Effects {
    pub(super) const fn only(answer: Answer) -> Self {
        Self { answer, out: 0, lane: None, timer_ms: None }
    }
}

/// An event that cannot happen in this state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Illegal(pub &'static str);

impl<R> State<R> {
    /// A turn at the moment of its admission, all calls waiting. Its fences come after `last`, so that none is ever
    /// one of an earlier turn of the same name.
    #[must_use]
    pub fn new(calls: usize, deadline_ms: i64, last: Fence) -> Self {
        let results = Vec::with_capacity(calls);
        Self::Queued(Live {
            calls,
            deadline_ms,
            admitted: 0,
            paid: 0,
            results,
            cancelled: false,
            settled: None,
            parked: None,
            fences: last.0,
        })
    }

    /// What every turn that has not ended knows.
    #[must_use]
    pub const fn live(&self) -> Option<&Live<R>> {
        match self {
            Self::Queued(live) | Self::Out(live, _) | Self::Parked { live, .. } | Self::Ending(live, _) => Some(live),
            Self::Ended { .. } => None,
        }
    }

    /// Whether its calls keep places of limits: those that are out, or wait for their next try.
    #[must_use]
    pub const fn keeps_places(&self) -> bool {
        match self {
            Self::Out(..) => true,
            Self::Parked { live, .. } => live.results.len() < live.admitted,
            _ => false,
        }
    }

    /// The fence that may write, where there is one.
    #[must_use]
    pub const fn fence(&self) -> Option<Fence> {
        match self {
            Self::Out(_, slice) => Some(slice.fence),
            Self::Ending(_, ending) => Some(ending.fence),
            _ => None,
        }
    }
}
