//! What an entry of the audit log says of how its call was decided.

use std::borrow::Cow;
use std::collections::BTreeMap;

use chrono::DateTime;
use serde::Deserialize;
use serde_json::value::RawValue;
use tickfleet_model::outcome::Premises;
use tickfleet_model::{AdmissionNote, PlacesNote, WaitNote};

use crate::lines::EntryLine;

/// What stands for a secret.
const REDACTED: &str = "[REDACTED]";

/// A call as the audit log has it.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The shard.
    pub shard: u32,
    /// When its entry was written, ms: the result and the end of its slice are of the same moment.
    pub written_ms: i64,
    /// When it had ended, ms of shard time, as whoever ended it took it to be.
    pub ended_ms: i64,
    /// When its slice gave its places back, or schedulers decided that it ends, ms: the shard's own word, where the entry has
    /// it.
    pub over_ms: Option<i64>,
    /// When its slice had given places back by then, and taken them again.
    pub places: Vec<PlacesNote>,
    /// The tenant.
    pub tenant: String,
    /// The agent.
    pub agent: String,
    /// The turn.
    pub turn: String,
    /// Its place in the turn.
    pub position: usize,
    /// The tool as the model named it.
    pub tool: String,
    /// True for a task itself, which no call of a tool is.
    pub is_task: bool,
    /// Its arguments, as far as they are known.
    pub arguments: Arguments,
    /// The arguments that people gave it.
    pub narrowed: Option<Arguments>,
    /// What was decided about it when it was about to run.
    pub fate: Fate,
    /// What refused it before it was admitted.
    pub refused: Option<Refused>,
    /// Its outcome, as entries name it.
    pub outcome: String,
    /// The time for which its last try ran, ms.
    pub duration_ms: i64,
    /// Its tries beyond the first.
    pub retries: u32,
    /// What else it was decided by, where the entry says that.
    pub premises: Option<Premises>,
    /// The beginning of the digest of the policy that decided it; empty where the entry does not say it.
    pub policy: String,
    /// How it was admitted, as the shard wrote it; empty where it was not, or nothing is said.
    pub admitted: String,
}

/// What is known of arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arguments {
    /// All of them.
    Whole(String),
    /// All but secrets.
    Hidden(String),
    /// Their beginning, or text that was no JSON.
    Cut(String),
}

impl Arguments {
    fn read(raw: &RawValue) -> Self {
        let text = raw.get();
        match serde_json::from_str::<String>(text) {
            Ok(said) => Self::Cut(said),
            Err(_) if text.contains(REDACTED) => Self::Hidden(text.to_owned()),
            Err(_) => Self::Whole(text.to_owned()),
        }
    }

    /// Their text.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Whole(text) | Self::Hidden(text) | Self::Cut(text) => text,
        }
    }
}

/// What was decided about a call when it was about to run: permission, arguments, rules, consent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It passed.
    Passed,
    /// People were asked.
    Asked,
    /// It ended: by its outcome, why, and the rule, where there is one.
    Ended {
        /// The outcome.
        outcome: String,
        /// The word of `details.reason`, or nothing.
        reason: String,
        /// The rule, or nothing.
        rule: String,
    },
    /// It passed, and was stopped by what had happened before: facts of its session, or the loop breaker.
    Stopped {
        /// The word of `details.reason`.
        reason: String,
        /// The condition on facts, or nothing.
        rule: String,
    },
    /// It ended before anybody looked.
    NotReached,
}

impl Fate {
    /// In a few words.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Passed => "passed".into(),
            Self::Asked => "approval requested".into(),
            Self::NotReached => "not reached".into(),
            Self::Stopped { reason, rule } => format!("denied ({})", if rule.is_empty() { reason } else { rule }),
            Self::Ended { outcome, rule, .. } if !rule.is_empty() => format!("{outcome} ({rule})"),
            Self::Ended { outcome, reason, .. } if !reason.is_empty() => format!("{outcome} ({reason})"),
            Self::Ended { outcome, .. } => outcome.clone(),
        }
    }
}

/// What refused a call before it was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The limit or cap, as differences name it; none where it was no matter of policy.
    pub by: Option<String>,
    /// When there would have been room, ms; 0 where nobody knew.
    pub resets_ms: i64,
}

#[derive(Deserialize)]
struct Said<'a> {
    #[serde(borrow)]
    timestamp: Cow<'a, str>,
    #[serde(borrow)]
    action: Cow<'a, str>,
    #[serde(borrow)]
    entity_id: Cow<'a, str>,
    #[serde(borrow)]
    actor_id: Cow<'a, str>,
    #[serde(default)]
    tenant: String,
    #[serde(default)]
    message: String,
    #[serde(borrow)]
    meta: Meta<'a>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(default)]
    call: String,
    #[serde(default)]
    turn: String,
    #[serde(default)]
    agent: Option<String>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(default)]
    outcome: String,
    #[serde(default)]
    policy_digest: String,
    #[serde(default)]
    duration_ms: i64,
    #[serde(default)]
    retry_count: u32,
    #[serde(default)]
    error: Option<Error>,
    #[serde(borrow, default)]
    approval: Option<Approval<'a>>,
    #[serde(default)]
    premises: Option<Premises>,
    #[serde(default)]
    ended_ms: Option<i64>,
    #[serde(default)]
    places: String,
    // What an operator's reset of a counter says.
    #[serde(default)]
    limit: String,
    #[serde(default)]
    counter: String,
}

#[derive(Deserialize, Default)]
struct Error {
    #[serde(default)]
    code: String,
    // Tools write what they like into theirs.
    #[serde(default)]
    details: serde_json::Value,
}

impl Error {
    fn detail(&self, name: &str) -> Option<&str> {
        self.details.get(name)?.as_str()
    }
}

#[derive(Deserialize)]
struct Approval<'a> {
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

/// A counter of a limit that an operator set to zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// When, ms.
    pub at_ms: i64,
    /// The shard.
    pub shard: u32,
    /// The limit.
    pub limit: String,
    /// The counter.
    pub counter: String,
}

/// An operator has kept calls of a tenant, or of one of its agents, from going out; or lets them go out again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// When that was written, ms: from then on, nobody decides otherwise.
    pub at_ms: i64,
    /// `<tenant>`, or `<tenant>:<agent>`.
    pub who: String,
    /// True if they go out again.
    pub ends: bool,
}

/// What operators did that decisions go by, in whatever order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operated {
    /// Counters that were set to zero.
    pub resets: Vec<Reset>,
    /// Pauses, and their ends.
    pub pauses: Vec<Pause>,
}

/// From when on a log has everything, shard by shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Began {
    all_ms: Option<i64>,
    shards: BTreeMap<u32, i64>,
}

impl Began {
    /// No shard's log has everything before this moment, ms.
    pub fn cut(&mut self, at_ms: i64) {
        self.all_ms = self.all_ms.max(Some(at_ms));
    }

    /// Nor has this shard's.
    pub fn cut_shard(&mut self, shard: u32, at_ms: i64) {
        let known = self.shards.entry(shard).or_insert(at_ms);
        *known = at_ms.max(*known);
    }

    /// From when on the log of this shard has everything, ms; the beginning of time where it has it from its own.
    #[must_use]
    pub fn of(&self, shard: u32) -> i64 {
        self.all_ms.max(self.shards.get(&shard).copied()).unwrap_or(i64::MIN)
    }
}

/// What an entry is, for whoever decides anew.
#[derive(Debug)]
pub enum Read {
    /// A call.
    Call(Box<Recorded>),
    /// An operator's reset of a counter.
    Reset(Reset),
    /// An operator's pause, or its end.
    Pause(Pause),
    /// Something else, or nothing that can be read.
    Other,
}

impl Read {
    /// Reads an entry.
    #[must_use]
    pub fn entry(entry: &EntryLine<'_>) -> Self {
        let Ok(said) = serde_json::from_str::<Said<'_>>(&entry.text) else { return Self::Other };
        let written_ms = entry.id.split('-').next().and_then(|ms| ms.parse().ok());
        let at_ms = |text: &str| DateTime::parse_from_rfc3339(text).ok().map(|at| at.timestamp_millis());
        let (Some(written_ms), Some(ended_ms)) = (written_ms, at_ms(&said.timestamp)) else { return Self::Other };
        if said.action == "LIMIT_RESET" {
            let Meta { limit, counter, .. } = said.meta;
            return Self::Reset(Reset { at_ms: ended_ms, shard: entry.shard, limit, counter });
        }
        if let "PAUSE" | "RESUME" = &*said.action {
            let ends = said.action == "RESUME";
            return Self::Pause(Pause { at_ms: written_ms, who: said.entity_id.into_owned(), ends });
        }
        let position = said.meta.call.rsplit('/').next().and_then(|at| at.parse().ok());
        let (true, Some(position)) = (said.action == "TOOL_CALL", position) else { return Self::Other };
        let is_task = said.meta.agent.is_some();
        let tool = called(&said, is_task).unwrap_or_else(|| said.entity_id.to_string());
        let (fate, refused) = (fate(&said.meta), refused(&said.meta, at_ms));
        let Meta {
            turn, agent, arguments, outcome, duration_ms, approval, premises, ended_ms: over_ms, places, ..
        } = said.meta;
        let narrowed = approval.and_then(|approval| approval.arguments).map(Arguments::read);
        Self::Call(Box::new(Recorded {
            shard: entry.shard,
            written_ms,
            ended_ms,
            over_ms,
            places: PlacesNote::read_all(&places),
            tenant: said.tenant,
            agent: agent.unwrap_or_else(|| said.actor_id.into_owned()),
            turn,
            position,
            tool,
            is_task,
            arguments: arguments.map_or_else(|| Arguments::Cut(String::new()), Arguments::read),
            narrowed,
            fate,
            refused,
            outcome,
            duration_ms,
            retries: said.meta.retry_count,
            policy: said.meta.policy_digest,
            premises,
            admitted: entry.admitted.to_string(),
        }))
    }
}

impl Recorded {
    /// Its admission.
    #[must_use]
    pub fn admission(&self) -> Option<AdmissionNote> {
        AdmissionNote::read(&self.admitted)
    }

    /// The waits before it.
    #[must_use]
    pub fn waits(&self) -> Vec<WaitNote> {
        WaitNote::read_all(&self.admitted)
    }
}

/// The tool as the model named it.
fn called(said: &Said<'_>, is_task: bool) -> Option<String> {
    let rest = said.message.strip_prefix(&format!("{} called ", said.actor_id)).filter(|_| !is_task)?;
    Some(rest.rsplit_once(": ")?.0.to_owned())
}

/// What refused a call before it was admitted; none where that was not so.
fn refused(meta: &Meta<'_>, at_ms: impl Fn(&str) -> Option<i64>) -> Option<Refused> {
    let error = meta.error.as_ref()?;
    let by = match error.code.as_str() {
        "daily_cap_reached" => Some(super::DAY.to_owned()),
        "limit_reached" | "invalid_arguments" => error.detail("limit").map(super::limit),
        "task_budget_reached" => Some(super::TASK.to_owned()),
        _ => return None,
    };
    let resets_ms = error.detail("resets_at").and_then(at_ms).unwrap_or(0);
    Some(Refused { by, resets_ms })
}

fn fate(meta: &Meta<'_>) -> Fate {
    let detail = |name: &str| meta.error.as_ref().and_then(|error| error.detail(name)).unwrap_or_default().to_owned();
    let (reason, rule) = (detail("reason"), detail("rule"));
    let is_told_by_others = meta.premises.as_ref().is_some_and(|said| said.session.is_some() && !said.ran);
    match (meta.outcome.as_str(), reason.as_str()) {
        // Somebody who is gone had begun it, or its turn was lost too often; whether people had agreed to that, nobody says.
        ("outcome_unknown" | "internal", _) if is_told_by_others && meta.approval.is_none() => Fate::NotReached,
        ("daily_cap_reached" | "rejected" | "expired" | "cancelled", _) => Fate::NotReached,
        // A limit could not count it.
        ("invalid_arguments", _) if !detail("limit").is_empty() => Fate::NotReached,
        ("denied", "loop" | "fact_missing" | "fact_forbidden" | "fact_deadlock" | "facts_full") => {
            Fate::Stopped { reason, rule }
        }
        ("approval_refused", "denied" | "expired" | "narrowed" | "too_many_waiting" | "not_asked") => Fate::Asked,
        (outcome @ ("unknown_tool" | "denied" | "invalid_arguments" | "approval_refused"), _) => {
            Fate::Ended { outcome: outcome.to_owned(), reason, rule }
        }
        _ if meta.approval.is_some() => Fate::Asked,
        _ => Fate::Passed,
    }
}
