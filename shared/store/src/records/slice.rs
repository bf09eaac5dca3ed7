//! The form of a slice on its queue: the turn's meta, once, and the blobs of its calls.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::schema::slice as fields;
use crate::connection::reader::Entry;
use crate::keys::{Queue, TurnName};
use tickfleet_model::{AgentId, Call, Context, Dialect, InboxName, TaskGrant, TaskId};

/// The meta that every slice of a turn carries beside its calls; written once, at admission.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SliceMeta {
    /// The agent that makes the calls; for a task, the one that does it.
    #[serde(rename = "ag")]
    pub agent: AgentId,
    /// The dialect of the results.
    #[serde(rename = "di", default, skip_serializing_if = "is_raw")]
    pub dialect: Dialect,
    /// The inbox that the reply goes to.
    #[serde(rename = "rt", default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<InboxName>,
    /// When the turn expires, ms of shard time.
    #[serde(rename = "dl")]
    pub deadline_ms: i64,
    /// When it was submitted, ms by Redis' clock; 0 where that is not known.
    #[serde(rename = "ts", default, skip_serializing_if = "is_zero")]
    pub submitted_ms: i64,
    /// Digest of the content, for idempotency keys.
    #[serde(rename = "dg")]
    pub digest: String,
    /// The number of calls that the turn has in all.
    #[serde(rename = "n")]
    pub calls: usize,
    /// True if the reply carries the audit entries.
    #[serde(rename = "au", default, skip_serializing_if = "std::ops::Not::not")]
    pub want_audits: bool,
    /// True if a null may stand for an argument that is left out.
    #[serde(rename = "st", default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// The only tools that its calls may use; none means all that the agent may call.
    #[serde(rename = "to", default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<BTreeSet<String>>,
    /// True if consecutive calls of `read` tools may run at the same time.
    #[serde(rename = "pr", default, skip_serializing_if = "std::ops::Not::not")]
    pub parallel_reads: bool,
    /// True if its inbox is told when one of its calls waits for people's consent.
    #[serde(rename = "pa", default, skip_serializing_if = "std::ops::Not::not")]
    pub pending_approval: bool,
    /// The context that handlers see.
    #[serde(rename = "cx", default, skip_serializing_if = "is_empty_context")]
    pub context: Context,
    /// The task that the turn runs under, with what it grants.
    #[serde(rename = "tk", default, skip_serializing_if = "Option::is_none")]
    pub task: Option<(TaskId, TaskGrant)>,
    /// True for a task: its one call is the work itself, run by the agent's handler.
    #[serde(rename = "is", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_task: bool,
    /// Of a task, the call that delegated it, where an agent's call did.
    #[serde(rename = "by", default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// `traceparent` of the span that admitted it, which its slices' spans are children of; none where spans are not
    /// exported.
    #[serde(rename = "sp", default, skip_serializing_if = "Option::is_none")]
    pub span: Option<String>,
}

impl SliceMeta {
    /// When the turn was submitted, ms by Redis' clock, where it is known.
    #[must_use]
    pub fn submitted(&self) -> Option<i64> {
        (self.submitted_ms > 0).then_some(self.submitted_ms)
    }

    /// As [`Self::submitted`], of a meta as it stands in Redis.
    #[must_use]
    pub fn submitted_of(meta: &str) -> Option<i64> {
        serde_json::from_str::<Self>(meta).ok()?.submitted()
    }
}

fn is_zero(ms: &i64) -> bool {
    *ms == 0
}

fn is_raw(dialect: &Dialect) -> bool {
    *dialect == Dialect::Raw
}

fn is_empty_context(context: &Context) -> bool {
    context.user_context.is_none()
        && context.session_data.is_none()
        && context.session_id.is_none()
        && context.correlation_id.is_none()
        && context.traceparent.is_none()
        && context.tracestate.is_none()
}

/// Calls that a limit in shadow would have held up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shade {
    /// Their positions.
    pub calls: std::ops::Range<usize>,
    /// The limit.
    pub limit: String,
}

impl Shade {
    /// Reads `<first>-<behind the last> <limit>`, with commas between; what is none is left out.
    fn read_all(text: &str) -> Vec<Self> {
        let read = |one: &str| {
            let (calls, limit) = one.split_once(' ')?;
            let (first, behind) = calls.split_once('-')?;
            Some(Self { calls: first.parse().ok()?..behind.parse().ok()?, limit: limit.to_owned() })
        };
        text.split(',').filter_map(read).collect()
    }
}

/// A slice as a worker leases it.
#[derive(Debug, Clone)]
pub struct SliceEntry {
    /// The queue it was leased from.
    pub queue: Queue,
    /// Its entry, which is the fence of everything that the holder writes (rule 4).
    pub fence: String,
    /// The turn.
    pub name: TurnName,
    /// The meta that all its slices carry.
    pub meta: SliceMeta,
    /// Position of the first call.
    pub first: usize,
    /// The number of times that a holder of it has died.
    pub crashes: u32,
    /// Tries that the first call has behind it.
    pub attempt: u32,
    /// True if its calls were out before, and that slice got lost: somebody may have held it.
    pub lost: bool,
    /// True if its first call has begun work that went on elsewhere.
    pub waited: bool,
    /// Limits in whose shadow calls of it are.
    pub shades: Vec<Shade>,
    /// The calls.
    pub calls: Vec<Call>,
}

impl SliceEntry {
    /// Returns true if somebody who is gone may have held these calls: then nobody knows whether they ran.
    #[must_use]
    pub const fn may_have_been_held(&self) -> bool {
        self.crashes > 0 || self.lost
    }

    /// Reads an entry of a queue.
    ///
    /// # Errors
    /// Returns what is wrong with it, for the log: only a foreign writer puts such an entry there.
    pub fn parse(queue: Queue, entry: &Entry) -> Result<Self, String> {
        let (mut name, mut meta, mut first, mut crashes, mut attempt) = (None, None, 0, 0, 0);
        let (mut calls, mut lost, mut waited, mut shades) = (Vec::new(), false, false, Vec::new());
        for (field, value) in &entry.fields {
            match std::str::from_utf8(field).unwrap_or_default() {
                fields::NAME => name = std::str::from_utf8(value).ok().and_then(TurnName::parse),
                fields::META => {
                    meta = Some(serde_json::from_slice::<SliceMeta>(value).map_err(|e| format!("meta: {e}"))?)
                }
                fields::FIRST => first = number(value),
                fields::CRASHES => crashes = number(value),
                fields::ATTEMPTS => attempt = number(value),
                fields::LOST => lost = true,
                fields::WAITED => waited = true,
                fields::SHADES => shades = Shade::read_all(std::str::from_utf8(value).unwrap_or_default()),
                fields::CALL => calls.push(serde_json::from_slice::<Call>(value).map_err(|e| format!("call: {e}"))?),
                _ => {}
            }
        }
        let name = name.ok_or("field t is missing or not tenant:turn")?;
        let meta = meta.ok_or("field m is missing")?;
        Ok(Self { queue, fence: entry.id.clone(), name, meta, first, crashes, attempt, lost, waited, shades, calls })
    }
}

/// When an entry was written, ms by Redis' clock: its id says so. None where that is no entry's id.
#[must_use]
pub fn entry_ms(id: &str) -> Option<i64> {
    id.split_once('-')?.0.parse().ok()
}

fn number<T: std::str::FromStr + Default>(bytes: &[u8]) -> T {
    std::str::from_utf8(bytes).ok().and_then(|t| t.parse().ok()).unwrap_or_default()
}
