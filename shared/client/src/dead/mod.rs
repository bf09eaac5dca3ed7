//! What was put aside, and what operators do with it: dead letters, and calls and tasks that failed for good.
//!
//! A **letter** is an entry of the dead stream: a message that was refused, killed whoever read it, or could not be read.
//! Nothing of it was carried out. A **call** is an entry of the audit log: a call of a turn that has ended, which failed and
//! is tried no more. Its agent has its result, which stays what it is; a replay is a new turn of that one call, under the
//! same caps, permissions and rules as any other, with an id that follows from the old one's. A **task** is an entry of the
//! audit log, too: of one that was delegated, and ended as a failure. What it was granted is not in the log, so that it is done
//! anew by a message alone.

mod causes;
mod list;
mod replay;

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::DeadItemRef;

pub use causes::{Cause, Causes, causes};
pub use list::{find, list};
pub use replay::{Answer, Drop, Replay, Replayed, drop_one, replay};

/// What was put aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A message that was never carried out.
    Letter,
    /// A call that failed for good.
    Call,
    /// A delegated task that failed for good.
    Task,
}

impl Kind {
    /// All of them. Calls and tasks are listed together, behind the letters.
    pub const ALL: [Self; 3] = [Self::Letter, Self::Call, Self::Task];

    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Letter => "letter",
            Self::Call => "call",
            Self::Task => "task",
        }
    }
}

/// Which one: its kind, its shard, and its entry there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadId {
    /// Letter or call.
    pub kind: Kind,
    /// The shard.
    pub shard: u32,
    /// The entry of the dead stream or of the audit log.
    pub entry: String,
}

impl DeadId {
    fn aside(&self) -> DeadItemRef<'_> {
        match self.kind {
            Kind::Letter => DeadItemRef::Letter(&self.entry),
            Kind::Call | Kind::Task => DeadItemRef::Call(&self.entry),
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
            let kind = Kind::ALL.into_iter().find(|known| known.as_str() == kind)?;
            is_entry(entry).then(|| Some(Self { kind, shard: shard.parse().ok()?, entry: entry.to_owned() }))?
        };
        read().ok_or_else(|| "expected an id printed by a list, such as letter-0-1764130000000-0".to_owned())
    }
}

/// Whether a text is the id of a stream's entry: two numbers.
fn is_entry(text: &str) -> bool {
    let number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u64>().is_ok();
    text.split_once('-').is_some_and(|(ms, number_within)| number(ms) && number(number_within))
}

impl Serialize for DeadId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a list says of one.
#[derive(Debug, Clone, Serialize)]
pub struct Dead {
    /// Which.
    pub id: DeadId,
    /// When it was put aside, ms by Redis' clock.
    pub at_ms: i64,
    /// Whose, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The agent, where that can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The turn or task of a letter; of a call, `<turn>/<position>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The tool of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Where a letter came in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Why: the code of the refusal, or the outcome of the call.
    pub cause: String,
    /// What the agent was told of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// True if it may have taken effect: a replay then has to be asked for by name.
    pub may_have_run: bool,
    /// Why it cannot be replayed as it is, but only with another message; none where it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs_message: Option<&'static str>,
}

/// One as a whole.
#[derive(Debug, Clone, Serialize)]
pub struct DeadWhole {
    /// What a list says of it.
    #[serde(flatten)]
    pub dead: Dead,
    /// The message that a replay sends, as far as it is known: of a letter its beginning, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The id of the turn or task that a replay makes, where that is known before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub becomes: Option<String>,
}

/// Which are wanted. What is not said takes all.
#[derive(Debug, Clone, Default)]
pub struct DeadFilter {
    /// Those of one kind.
    pub kind: Option<Kind>,
    /// Those of this tenant.
    pub tenant: Option<TenantId>,
    /// Those of this agent.
    pub agent: Option<AgentId>,
    /// Calls of this tool.
    pub tool: Option<String>,
    /// Those with this cause: a code of refusal, or an outcome.
    pub cause: Option<String>,
    /// Those that have this text in what was told: of letters, in the cause and the message.
    pub error: Option<String>,
    /// Calls and tasks of which was [told](Dead::told) this, as their [cause](Cause::told) has it.
    pub told: Option<String>,
    /// Those of which nothing was [told](Dead::told).
    pub untold: bool,
    /// Put aside from this time on, ms by Redis' clock.
    pub from_ms: Option<i64>,
    /// Put aside before this time, ms.
    pub until_ms: Option<i64>,
    /// So many at most.
    pub limit: usize,
}

/// Where a list goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadAt {
    kind: Kind,
    shard: usize,
    /// Before this entry; none: from the newest.
    before: Option<String>,
}

impl Default for DeadAt {
    fn default() -> Self {
        Self { kind: Kind::Letter, shard: 0, before: None }
    }
}

impl fmt::Display for DeadAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.kind.as_str(), self.shard, self.before.as_deref().unwrap_or_default())
    }
}

impl FromStr for DeadAt {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let mut parts = text.splitn(3, ':');
            let (kind, shard, before) = (parts.next()?, parts.next()?, parts.next()?);
            let kind = Kind::ALL.into_iter().find(|known| known.as_str() == kind)?;
            let before = (!before.is_empty()).then(|| before.to_owned());
            let is_place = before.as_deref().is_none_or(is_entry);
            is_place.then_some(Self { kind, shard: shard.parse().ok()?, before })
        };
        read().ok_or_else(|| "expected a position printed by a list, such as call:0:1764130000000-0".to_owned())
    }
}

/// A page of what was put aside.
#[derive(Debug, Clone, Default)]
pub struct DeadPage {
    /// Letters first, then calls; of each shard the newest first.
    pub dead: Vec<Dead>,
    /// Entries that were read.
    pub read: usize,
    /// Where the list goes on; none at its end.
    pub next: Option<DeadAt>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn ids_and_places_are_read_as_they_are_written() {
        for id in ["letter-0-1764130000000-0", "call-12-1-3"] {
            assert_eq!(id.parse::<DeadId>().unwrap().to_string(), id);
        }
        for none in
            ["letter", "letter-0", "letter-0-1", "note-0-1-1", "call-x-1-1", "call-0-1-1-1", "call-0-+-1", "call-0-1-"]
        {
            assert!(none.parse::<DeadId>().is_err(), "{none}");
        }
        for place in ["letter:0:", "call:3:17-2"] {
            assert_eq!(place.parse::<DeadAt>().unwrap().to_string(), place);
        }
        for none in ["", "call:0", "call:0:x", "call:0:-", "0:1:2-3"] {
            assert!(none.parse::<DeadAt>().is_err(), "{none}");
        }
    }
}
