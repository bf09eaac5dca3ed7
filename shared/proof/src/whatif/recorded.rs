//! Reads the recorded decision about a call from its audit entry.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use tickfleet_model::outcome::{CallStage, PolicyInputs};
use tickfleet_model::{AdmissionNote, Outcome, PermitsNote, WaitNote};
use tickfleet_protocol::audit::timestamp_ms;
use tickfleet_protocol::{AuditAction, AuditEntry, AuditMeta};

use crate::lines::EntryLine;

const REDACTED: &str = "[REDACTED]";

#[derive(Debug, Clone)]
pub struct RecordedCall {
    pub shard: u32,
    /// Time (ms) when the entry was written and the slice ended, which is the same moment.
    pub written_ms: i64,
    /// In shard time, as estimated by the process that ended the call.
    pub ended_ms: i64,
    /// By the shard's clock: the slice returned its permits, or a scheduler ended the call. `None` if unknown.
    pub over_ms: Option<i64>,
    /// The slice returned permits before its end, or acquired permits again.
    pub places: Vec<PermitsNote>,
    pub tenant: String,
    pub agent: String,
    pub turn: String,
    pub position: usize,
    /// As the model named the tool.
    pub tool: String,
    /// True if the entry describes a task instead of a tool call.
    pub is_task: bool,
    pub arguments: Arguments,
    pub narrowed: Option<Arguments>,
    pub decision: RecordedDecision,
    pub refused: Option<AdmissionRefusal>,
    pub outcome: Outcome,
    /// Of the last attempt.
    pub duration_ms: i64,
    /// Does not count the first attempt.
    pub retries: u32,
    pub policy_inputs: Option<PolicyInputs>,
    /// The start of the policy's digest; may be empty.
    pub policy: String,
    /// The shard's notes about the admission; empty without an admission or notes.
    pub admitted: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arguments {
    Whole(String),
    Hidden(String),
    /// The beginning of the arguments, or a text that is not JSON.
    Cut(String),
}

impl Arguments {
    fn read(raw: &RawValue) -> Self {
        let text = raw.get();
        match serde_json::from_str::<String>(text) {
            Ok(raw) => Self::Cut(raw),
            Err(_) if text.contains(REDACTED) => Self::Hidden(text.to_owned()),
            Err(_) => Self::Whole(text.to_owned()),
        }
    }

    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Whole(text) | Self::Hidden(text) | Self::Cut(text) => text,
        }
    }
}

/// The guards check permission, arguments, rules and consent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedDecision {
    Passed,
    Asked,
    Ended {
        outcome: Outcome,
        /// The code in `details.reason`. May be empty.
        reason: String,
        /// May be empty.
        rule: String,
    },
    /// The call passed the guards, but facts or the loop breaker stopped it.
    Stopped {
        reason: String,
        /// The condition on facts. May be empty.
        rule: String,
    },
    NotReached,
}

impl RecordedDecision {
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Passed => "passed".into(),
            Self::Asked => "approval requested".into(),
            Self::NotReached => "not reached".into(),
            Self::Stopped { reason, rule } => format!("denied ({})", if rule.is_empty() { reason } else { rule }),
            Self::Ended { outcome, rule, .. } if !rule.is_empty() => format!("{} ({rule})", outcome.as_str()),
            Self::Ended { outcome, reason, .. } if !reason.is_empty() => format!("{} ({reason})", outcome.as_str()),
            Self::Ended { outcome, .. } => outcome.as_str().to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionRefusal {
    /// The limit or cap in reported differences. `None` if the policy was not the reason.
    pub by: Option<String>,
    /// Time (ms) when calls are admitted again; 0 if unknown.
    pub resets_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    pub at_ms: i64,
    pub shard: u32,
    pub limit: String,
    pub counter: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// Every later decision applies the start or the end of the pause.
    pub at_ms: i64,
    /// `<tenant>` or `<tenant>:<agent>`.
    pub who: String,
    pub ends: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperatorActions {
    pub resets: Vec<Reset>,
    pub pauses: Vec<Pause>,
}

/// The time from which the log of each shard is complete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogStart {
    all_ms: Option<i64>,
    shards: BTreeMap<u32, i64>,
}

impl LogStart {
    /// No shard's log is complete before this time.
    pub fn cut(&mut self, at_ms: i64) {
        self.all_ms = self.all_ms.max(Some(at_ms));
    }

    /// This shard's log is not complete before this time.
    pub fn cut_shard(&mut self, shard: u32, at_ms: i64) {
        let known = self.shards.entry(shard).or_insert(at_ms);
        *known = at_ms.max(*known);
    }

    /// Time (ms); `i64::MIN` if nothing is missing.
    #[must_use]
    pub fn of(&self, shard: u32) -> i64 {
        self.all_ms.max(self.shards.get(&shard).copied()).unwrap_or(i64::MIN)
    }
}

#[derive(Debug)]
pub enum RecordedEntry {
    Call(Box<RecordedCall>),
    Reset(Reset),
    Pause(Pause),
    Other,
}

impl RecordedEntry {
    #[must_use]
    pub fn entry(entry: &EntryLine<'_>) -> Self {
        let Some(raw) = AuditEntry::read(&entry.text) else { return Self::Other };
        let written_ms = entry.id.split('-').next().and_then(|ms| ms.parse().ok());
        let (Some(written_ms), Some(ended_ms)) = (written_ms, raw.timestamp_ms()) else { return Self::Other };
        match raw.action {
            Some(AuditAction::LimitReset) => {
                let (limit, counter) = (raw.meta.limit.into_owned(), raw.meta.counter.into_owned());
                Self::Reset(Reset { at_ms: ended_ms, shard: entry.shard, limit, counter })
            }
            Some(action @ (AuditAction::Pause | AuditAction::Resume)) => {
                let ends = action == AuditAction::Resume;
                Self::Pause(Pause { at_ms: written_ms, who: raw.entity_id.into_owned(), ends })
            }
            Some(AuditAction::ToolCall) => Self::call(entry, raw, written_ms, ended_ms),
            _ => Self::Other,
        }
    }

    fn call(entry: &EntryLine<'_>, raw: AuditEntry<'_>, written_ms: i64, ended_ms: i64) -> Self {
        let (Some(outcome), Ok(position)) = (raw.meta.outcome, raw.meta.position().parse()) else {
            return Self::Other;
        };
        // With unreadable policy inputs, the replay would decide with other inputs than the fleet.
        let Ok(policy_inputs) = raw.meta.policy_inputs.map(|json| serde_json::from_str(json.get())).transpose() else {
            return Self::Other;
        };
        let is_task = raw.meta.agent.is_some();
        let tool = called(&raw, is_task).unwrap_or_else(|| raw.entity_id.to_string());
        let agent = raw.agent().to_owned();
        let meta = raw.meta;
        Self::Call(Box::new(RecordedCall {
            shard: entry.shard,
            written_ms,
            ended_ms,
            over_ms: meta.ended_ms,
            places: PermitsNote::read_all(&meta.places),
            tenant: raw.tenant.unwrap_or_default(),
            agent,
            turn: meta.turn.to_string(),
            position,
            tool,
            is_task,
            arguments: meta.arguments.map_or_else(|| Arguments::Cut(String::new()), Arguments::read),
            narrowed: meta.approved_arguments().map(Arguments::read),
            decision: decision(&meta, outcome, policy_inputs.as_ref()),
            refused: refused(&meta),
            outcome,
            duration_ms: i64::try_from(meta.duration_ms).unwrap_or(i64::MAX),
            retries: meta.retry_count,
            policy: meta.policy_digest.into_owned(),
            policy_inputs,
            admitted: entry.admitted.to_string(),
        }))
    }
}

impl RecordedCall {
    #[must_use]
    pub fn admission(&self) -> Option<AdmissionNote> {
        AdmissionNote::read(&self.admitted)
    }

    #[must_use]
    pub fn waits(&self) -> Vec<WaitNote> {
        WaitNote::read_all(&self.admitted)
    }
}

/// As the model named the tool. `None` for a task.
fn called(raw: &AuditEntry<'_>, is_task: bool) -> Option<String> {
    let rest = raw.message.strip_prefix(&format!("{} called ", raw.actor_id)).filter(|_| !is_task)?;
    Some(rest.rsplit_once(": ")?.0.to_owned())
}

fn refused(meta: &AuditMeta<'_>) -> Option<AdmissionRefusal> {
    let error = meta.error.as_ref()?;
    let by = match &*error.code {
        "daily_cap_reached" => Some(super::DAY.to_owned()),
        "limit_reached" | "invalid_arguments" => error.detail("limit").map(|limit| super::limit(&limit)),
        "task_budget_reached" => Some(super::TASK.to_owned()),
        _ => return None,
    };
    let resets_ms = error.detail("resets_at").as_deref().and_then(timestamp_ms).unwrap_or(0);
    Some(AdmissionRefusal { by, resets_ms })
}

fn decision(meta: &AuditMeta<'_>, outcome: Outcome, policy_inputs: Option<&PolicyInputs>) -> RecordedDecision {
    let detail = |name: &str| meta.error.as_ref().and_then(|error| error.detail(name)).unwrap_or_default();
    let reason = detail("reason");
    let rule = detail("rule");
    let is_known_from_others = policy_inputs.is_some_and(|known| known.session.is_some() && !known.ran);
    match (outcome.stage(), outcome, reason.as_str()) {
        (CallStage::Admission, ..) => RecordedDecision::NotReached,
        // A limit could not count the call.
        (_, Outcome::InvalidArguments, _) if !detail("limit").is_empty() => RecordedDecision::NotReached,
        (_, Outcome::Denied, "loop" | "fact_missing" | "fact_forbidden" | "fact_deadlock" | "facts_full") => {
            RecordedDecision::Stopped { reason, rule }
        }
        (_, Outcome::ApprovalRefused, "denied" | "expired" | "narrowed" | "too_many_waiting" | "not_asked") => {
            RecordedDecision::Asked
        }
        (CallStage::Guards, ..) => RecordedDecision::Ended { outcome, reason, rule },
        (CallStage::Run, ..) if meta.approval.is_some() => RecordedDecision::Asked,
        // The worker died, or the turn was lost too often. The log does not show whether people had approved the call.
        (CallStage::Run, ..) if is_known_from_others && outcome.may_have_run() => RecordedDecision::NotReached,
        (CallStage::Run, ..) => RecordedDecision::Passed,
    }
}
