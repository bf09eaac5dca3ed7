//! Endings: calls that nobody runs, given to a scheduler to render and settle.

use redis::Value;

use crate::StoreError;
use crate::keys::TurnName;
use crate::script::reply::{Reply, into_text};

/// Why calls end without having run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The deadline came first; `info` is the deadline, ms.
    Expired,
    /// Somebody cancelled the turn, or the task it ran under has ended.
    Cancelled,
    /// The day's budget is used up; `info` is when it resets, ms.
    DailyCapReached,
    /// The budget of the task is used up; `info` is the budget.
    TaskBudgetReached,
    /// A limit has no room for the call; `info` is when there is some, ms, and `limit` which one it is.
    LimitReached,
    /// The call asks for more than a limit ever allows; `limit` is which one.
    OverLimit,
    /// The call does not say the amount that a limit sums up; `limit` is which one.
    NoAmount,
    /// The slice killed its workers; `info` is how often.
    Internal,
    /// The agent is no longer configured.
    Rejected,
}

impl EndReason {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Expired,
        Self::Cancelled,
        Self::DailyCapReached,
        Self::TaskBudgetReached,
        Self::LimitReached,
        Self::OverLimit,
        Self::NoAmount,
        Self::Internal,
        Self::Rejected,
    ];

    /// The word that scripts use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::DailyCapReached => "daily_cap_reached",
            Self::TaskBudgetReached => "task_budget_reached",
            Self::LimitReached => "limit_reached",
            Self::OverLimit => "over_limit",
            Self::NoAmount => "no_amount",
            Self::Internal => "internal",
            Self::Rejected => "rejected",
        }
    }
}

/// The calls `[first, upto)` of a turn, to be settled under `fence` with the results that `reason` asks for.
#[derive(Debug, Clone)]
pub struct Ending {
    /// The turn.
    pub name: TurnName,
    /// The fence of the settlement.
    pub fence: String,
    /// Why.
    pub reason: EndReason,
    /// Position of the first call.
    pub first: usize,
    /// Position after the last call.
    pub upto: usize,
    /// See [`EndReason`].
    pub info: i64,
    /// The limit that the calls met.
    pub limit: Option<MetLimit>,
    /// The call that had begun: whether it took effect is unknown, or it did in part, and its result must say so.
    pub begun: Option<BegunCall>,
    /// Calls that a worker said to have begun, where Redis had lost it: likewise.
    pub marked: Vec<usize>,
    /// Tries that the first call has behind it.
    pub tries: u32,
    /// Workers that were lost while they held the slice.
    pub crashes: u32,
    /// Calls of the turn that were admitted: those from here on have never been out.
    pub admitted: usize,
    /// Why somebody cancelled it, where somebody did and said so.
    pub why: Option<String>,
    /// The turn's meta, JSON; empty where it is lost.
    pub meta: String,
    /// The calls, JSON each.
    pub calls: Vec<String>,
}

/// A limit that calls met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetLimit {
    /// Its name.
    pub name: String,
    /// What it allows, in words.
    pub words: String,
}

/// A call that had begun, and has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunCall {
    /// Its position.
    pub position: usize,
    /// Who had begun it.
    pub by: BegunBy,
}

/// Who had begun a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BegunBy {
    /// A worker that is gone.
    Worker,
    /// A runtime outside, which held the task.
    Runtime,
    /// A call that waited for work which it had begun elsewhere: nobody is gone.
    Waiter,
}

impl BegunCall {
    /// `<position>:<nonce>`, `<position>:runtime` or `<position>:waiter`.
    fn parse(text: &str) -> Option<Self> {
        let (position, by) = text.split_once(':').unwrap_or((text, ""));
        let by = match by {
            "runtime" => BegunBy::Runtime,
            "waiter" => BegunBy::Waiter,
            _ => BegunBy::Worker,
        };
        Some(Self { position: position.parse().ok()?, by })
    }
}

impl Ending {
    /// Stands in the place of the calls of a turn that has none: its record has one place all the same, so that it
    /// ends like every turn.
    pub const NO_CALL: &str = "";

    /// Returns true if it ends a turn without calls.
    #[must_use]
    pub fn is_of_no_calls(&self) -> bool {
        self.calls.first().is_some_and(|call| call == Self::NO_CALL)
    }

    /// Returns true if one of its calls may have begun.
    #[must_use]
    pub const fn may_have_begun(&self) -> bool {
        self.begun.is_some() || !self.marked.is_empty() || self.crashes > 0
    }

    /// As [`Self::read`]; one that cannot be read costs no other, and comes again with its timer.
    pub(crate) fn read_one(verb: &'static str, value: Value) -> Option<Self> {
        match Self::read(verb, value) {
            Ok(ending) => Some(ending),
            Err(error) => {
                tracing::error!(%error, "cannot read an ended turn");
                None
            }
        }
    }

    pub(crate) fn read(verb: &'static str, value: Value) -> Result<Self, StoreError> {
        let mut reply = Reply::new(verb, value)?;
        let name = reply.text()?;
        let bad = |what: &str| StoreError::Reply { verb, found: format!("an ending with {what}") };
        let name = TurnName::parse(&name).ok_or_else(|| bad("an odd name"))?;
        let fence = reply.text()?;
        let reason = reply.text()?;
        // A later build may know more reasons; that its calls end is what counts.
        let reason = EndReason::ALL.into_iter().find(|r| r.as_str() == reason).unwrap_or(EndReason::Internal);
        let first = usize::try_from(reply.number()?).map_err(|_| bad("a negative position"))?;
        let upto = usize::try_from(reply.number()?).map_err(|_| bad("a negative position"))?;
        let said = reply.text()?;
        let mut said = said.splitn(3, ' ');
        let info = said.next().and_then(|number| number.parse::<f64>().ok()).unwrap_or(0.0) as i64;
        let limit = said.next().zip(said.next());
        let limit = limit.map(|(name, words)| MetLimit { name: name.to_owned(), words: words.to_owned() });
        let begun = reply.text()?;
        let mut begun = begun.split(',');
        let (begun, marked) =
            (begun.next().and_then(BegunCall::parse), begun.filter_map(|position| position.parse().ok()).collect());
        let count = |text: String| text.parse::<f64>().map_or(0, |count| count as u32);
        let (tries, crashes, admitted) = (count(reply.text()?), count(reply.text()?), count(reply.text()?) as usize);
        let why = Some(reply.text()?).filter(|why| !why.is_empty());
        let meta = reply.text()?;
        let calls = reply.rest().into_iter().filter_map(into_text).collect();
        Ok(Self {
            name,
            fence,
            reason,
            first,
            upto,
            info,
            limit,
            begun,
            marked,
            tries,
            crashes,
            admitted,
            why,
            meta,
            calls,
        })
    }
}
