//! Dead items: letters (messages of which nothing was executed), and calls and tasks that failed permanently. A replay
//! of a call is a new turn with only this call, under the same caps, permissions and rules. The audit log lacks the
//! grants of a task, so the replay of a task needs a new message.

mod causes;
mod list;
mod recent;
mod replay;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};
use tickfleet_core::EntryId;
use tickfleet_model::{AgentId, Outcome, TenantId};
use tickfleet_store::DeadItem;

pub use causes::{Cause, Causes, causes};
pub use list::{find, list};
pub use recent::{FailuresSeen, RecentFailures};
pub use replay::{DeadAction, ReplayReport, ReplayStatus, handle};

/// The kind of a dead item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum DeadKind {
    /// A message that was never run.
    Letter,
    /// A call that failed permanently.
    Call,
    /// A delegated task that failed permanently.
    Task,
}

impl DeadKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Letter, Self::Call, Self::Task];

    /// Returns the kind's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Letter => "letter",
            Self::Call => "call",
            Self::Task => "task",
        }
    }
}

/// The ID of an item: its kind, its shard, and its entry in that shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadId {
    /// The kind.
    pub kind: DeadKind,
    /// The shard.
    pub shard: u32,
    /// The entry of the dead stream or of the audit log.
    pub entry: String,
}

impl DeadId {
    fn aside(&self) -> DeadItem {
        let entry = EntryId::new(&self.entry);
        match self.kind {
            DeadKind::Letter => DeadItem::Letter(entry),
            DeadKind::Call | DeadKind::Task => DeadItem::Call(entry),
        }
    }
}

impl fmt::Display for DeadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.kind.as_str(), self.shard, self.entry)
    }
}

impl FromStr for DeadId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (kind, rest) = text.split_once('-')?;
            let (shard, entry) = rest.split_once('-')?;
            let kind = DeadKind::ALL.into_iter().find(|known| known.as_str() == kind)?;
            is_entry(entry).then(|| Some(Self { kind, shard: shard.parse().ok()?, entry: entry.to_owned() }))?
        };
        read().ok_or_else(|| "expected an id printed by a list, such as letter-0-1764130000000-0".to_owned())
    }
}

pub(crate) fn is_entry(text: &str) -> bool {
    let number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u64>().is_ok();
    text.split_once('-').is_some_and(|(ms, number_within)| number(ms) && number(number_within))
}

impl Serialize for DeadId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A dead item in a list.
#[derive(Debug, Clone, Serialize)]
pub struct DeadEntry {
    /// The item's ID.
    pub id: DeadId,
    /// Time when the item was added (ms by Redis' clock).
    pub at_ms: i64,
    /// The item's tenant, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The item's agent, if the message can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The ID of a letter's turn or task, the name of a call (`<turn>/<position>`), or the ID of a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The tool of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The inbound stream of a letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The reason: the code of the rejection, or the outcome of the call or task.
    pub cause: String,
    /// The error of a call or task, as the agent received it. For a letter, its message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// True if the item may have taken effect. A replay must then be confirmed explicitly.
    pub may_have_run: bool,
    /// Why a replay needs a new message; `None` if the item can be replayed unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs_message: Option<&'static str>,
}

impl DeadEntry {
    /// Returns true for a call that may have taken effect. The fleet never repeats such a call automatically.
    #[must_use]
    pub fn is_unknown_outcome(&self) -> bool {
        self.id.kind == DeadKind::Call && self.cause == Outcome::OutcomeUnknown.as_str()
    }
}

/// A dead item with the message of its replay.
#[derive(Debug, Clone, Serialize)]
pub struct DeadEntryDetails {
    /// The item as listed.
    #[serde(flatten)]
    pub dead: DeadEntry,
    /// The message that a replay sends. For a letter, only its beginning is stored, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The ID of the turn or task that a replay creates, if this ID is already known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub becomes: Option<String>,
}

/// A filter of dead items. An unset field matches all.
#[derive(Debug, Clone, Default)]
pub struct DeadFilter {
    /// Only items of this kind.
    pub kind: Option<DeadKind>,
    /// Only items of this tenant.
    pub tenant: Option<TenantId>,
    /// Only items of this agent.
    pub agent: Option<AgentId>,
    /// Only calls of this tool.
    pub tool: Option<String>,
    /// Only items with this cause: a rejection code, or an outcome.
    pub cause: Option<String>,
    /// Only items with this text in their cause or error. For a letter, the text must be in its cause or message.
    pub error: Option<String>,
    /// Only calls and tasks with this [normalized error](DeadEntry::normalized_error).
    pub normalized_error: Option<String>,
    /// Only items without a [normalized error](DeadEntry::normalized_error).
    pub without_error: bool,
    /// Only items added at or after this time (ms by Redis' clock).
    pub from_ms: Option<i64>,
    /// Only items added before this time (ms by Redis' clock).
    pub until_ms: Option<i64>,
    /// Maximum number of items.
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DeadPosition {
    kind: DeadKind,
    shard: usize,
    /// The next page starts before this entry, or at the newest entry if this is `None`.
    before: Option<String>,
}

impl Default for DeadPosition {
    fn default() -> Self {
        Self { kind: DeadKind::Letter, shard: 0, before: None }
    }
}

impl fmt::Display for DeadPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.kind.as_str(), self.shard, self.before.as_deref().unwrap_or_default())
    }
}

impl FromStr for DeadPosition {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let read = || {
            let mut parts = text.splitn(3, ':');
            let kind = parts.next()?;
            let shard = parts.next()?;
            let before = parts.next()?;
            let kind = DeadKind::ALL.into_iter().find(|known| known.as_str() == kind)?;
            let before = (!before.is_empty()).then(|| before.to_owned());
            let is_place = before.as_deref().is_none_or(is_entry);
            is_place.then_some(Self { kind, shard: shard.parse().ok()?, before })
        };
        read().ok_or(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn dead_ids_and_cursors_survive_a_round_trip() {
        for id in ["letter-0-1764130000000-0", "call-12-1-3"] {
            assert_eq!(id.parse::<DeadId>().unwrap().to_string(), id);
        }
        for none in
            ["letter", "letter-0", "letter-0-1", "note-0-1-1", "call-x-1-1", "call-0-1-1-1", "call-0-+-1", "call-0-1-"]
        {
            assert!(none.parse::<DeadId>().is_err(), "{none}");
        }
        for place in ["letter:0:", "call:3:17-2"] {
            assert_eq!(place.parse::<DeadPosition>().unwrap().to_string(), place);
        }
        for none in ["", "call:0", "call:0:x", "call:0:-", "0:1:2-3"] {
            assert!(none.parse::<DeadPosition>().is_err(), "{none}");
        }
    }
}
