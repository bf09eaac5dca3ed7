//! Each call has exactly one outcome. Results have one common format until a dialect renders them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{CallId, Effect};

crate::words! {
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Outcome {
        Ok = "ok",
        UnknownTool = "unknown_tool",
        Denied = "denied",
        InvalidArguments = "invalid_arguments",
        Permanent = "permanent",
        /// Every attempt failed for a temporary reason.
        Transient = "transient",
        /// A `once` tool may or may not have taken effect.
        OutcomeUnknown = "outcome_unknown",
        /// The fleet or the handler has a bug, or crashed.
        Internal = "internal",
        Expired = "expired",
        Cancelled = "cancelled",
        DailyCapReached = "daily_cap_reached",
        Rejected = "rejected",
        /// An approval was requested and not given.
        ApprovalRefused = "approval_refused",
    }
}

/// All code that depends on an outcome uses these properties.
#[derive(Debug, Clone, Copy)]
struct OutcomeTraits {
    happened: EffectHappened,
    severity: OutcomeSeverity,
    proves_tool: bool,
    changes_facts: bool,
    stage: CallStage,
}

/// The last step of the call, as far as the outcome shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStage {
    /// No guard decided. A scheduler ended the call, or the call expired or was canceled, perhaps while it ran.
    Admission,
    Guards,
    /// The call had passed the guards.
    Run,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectHappened {
    Yes,
    Perhaps,
    /// The effect took place if the call ran.
    IfRun,
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeSeverity {
    Good,
    /// The outcome is uncertain, or does not show whether the call itself failed.
    Doubtful,
    Bad,
}

/// Other outcomes override only the fields that differ.
const REFUSED: OutcomeTraits = OutcomeTraits {
    happened: EffectHappened::No,
    severity: OutcomeSeverity::Bad,
    proves_tool: false,
    changes_facts: false,
    stage: CallStage::Guards,
};

impl Outcome {
    const fn meaning(self) -> OutcomeTraits {
        use EffectHappened::{IfRun, Perhaps, Yes};
        use OutcomeSeverity::{Doubtful, Good};
        let proves_tool = true;
        let changes_facts = true;
        let stage = CallStage::Run;
        match self {
            Self::Ok => OutcomeTraits { happened: Yes, severity: Good, proves_tool, changes_facts, stage },
            Self::Permanent | Self::Transient => OutcomeTraits { proves_tool, changes_facts, stage, ..REFUSED },
            // The output was withheld, or the call did not reach its tool.
            Self::Internal => OutcomeTraits { happened: IfRun, changes_facts, stage, ..REFUSED },
            Self::OutcomeUnknown => {
                OutcomeTraits { happened: Perhaps, severity: Doubtful, proves_tool, stage, ..REFUSED }
            }
            Self::Denied | Self::InvalidArguments | Self::ApprovalRefused => OutcomeTraits { proves_tool, ..REFUSED },
            Self::Expired | Self::Cancelled | Self::DailyCapReached => {
                OutcomeTraits { severity: Doubtful, stage: CallStage::Admission, ..REFUSED }
            }
            Self::Rejected => OutcomeTraits { stage: CallStage::Admission, ..REFUSED },
            Self::UnknownTool => REFUSED,
        }
    }

    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Ok)
    }

    #[must_use]
    pub const fn happened(self) -> EffectHappened {
        self.meaning().happened
    }

    /// Also true for outcomes that leave open whether the call ran.
    #[must_use]
    pub const fn may_have_run(self) -> bool {
        matches!(self.meaning().happened, EffectHappened::Perhaps | EffectHappened::IfRun)
    }

    #[must_use]
    pub const fn severity(self) -> OutcomeSeverity {
        self.meaning().severity
    }

    #[must_use]
    pub const fn proves_tool(self) -> bool {
        self.meaning().proves_tool
    }

    /// True if a configuration may list this outcome for changes of facts. After `outcome_unknown`, facts may have
    /// changed in any case.
    #[must_use]
    pub const fn changes_facts(self) -> bool {
        self.meaning().changes_facts
    }

    #[must_use]
    pub const fn stage(self) -> CallStage {
        self.meaning().stage
    }

    /// The call was permitted to run, and then failed.
    #[must_use]
    pub const fn has_failed_running(self) -> bool {
        matches!(self.stage(), CallStage::Run) && !self.is_success()
    }

    /// True if the effect is possible despite a failure. A `once` call with a possible effect ends as
    /// `outcome_unknown`.
    #[must_use]
    pub fn may_have_taken_effect(self, ran: bool, effect: Effect) -> bool {
        match self {
            Self::OutcomeUnknown => true,
            Self::Internal => ran && effect != Effect::Read,
            Self::Transient | Self::Cancelled | Self::Expired => ran && effect == Effect::Idempotent,
            _ => false,
        }
    }

    /// True if calls that ran and calls that did not run can both end like this.
    #[must_use]
    pub const fn leaves_run_open(self) -> bool {
        matches!(self, Self::Expired | Self::Cancelled | Self::Internal | Self::Transient | Self::Permanent)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallError {
    /// Stable: the outcome's name, unless the documentation lists a more specific code.
    pub code: String,
    /// At most [`super::limits::ERROR_BYTES_MAX`] bytes.
    pub message: String,
    /// Data for programs (`resets_at`, `path`, `allowed_tools`, …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
}

/// The fields are in the documented order of the JSON form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallResult {
    /// Unchanged; null if the provider gave no ID.
    pub tool_call_id: Option<String>,
    pub call: String,
    /// As the model named the tool.
    pub tool: String,
    pub success: bool,
    pub outcome: Outcome,
    /// JSON. Set if the call succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
    /// For example `application/json` or `text/plain`.
    pub content_type: String,
    /// Of the last attempt.
    pub duration_ms: u64,
    /// 0 if the call never ran.
    pub attempts: u32,
    /// The ID of an equal call. This call did not run, and has the equal call's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<CallApproval>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<CacheHit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The outcome was unknown at first, and the tool's reconciliation determined the outcome.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reconciled: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local: bool,
    /// When the conditions on facts were decided (shard time). `None` without conditions; 0 if unknown. Only for audit.
    #[serde(skip)]
    pub facts_evaluated_ms: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallApproval {
    pub id: String,
    pub by: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheHit {
    pub age_ms: u64,
    /// `<turn>/<position>` of the call with the original result.
    pub call: String,
}

/// For audit entries. Other parts of the entry have agent, tool and arguments.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyInputs {
    pub calls: usize,
    /// True if a null may mean an omitted argument.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub parallel_reads: bool,
    /// `None` means all tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<BTreeSet<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// `None` means all tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_tools: Option<BTreeSet<String>>,
    /// `None` without a task, or if the task does not restrict capabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<BTreeSet<String>>,
    /// Without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_context: Option<Box<RawValue>>,
    /// Without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_data: Option<Box<RawValue>>,
    /// A hash of session and tenant. Empty without a session; `None` if not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// See [`CallResult::ran`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ran: bool,
    /// See [`CallResult::facts_evaluated_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts_evaluated_ms: Option<i64>,
}

impl CallResult {
    /// Also true if the call has the result of another call. If false, the call's end changes facts only with an
    /// unknown outcome.
    #[must_use]
    pub fn ran(&self) -> bool {
        self.attempts > 0 || self.repeats.is_some() || self.cached.is_some()
    }

    #[must_use]
    pub fn refused(call: &CallId, provider_id: Option<String>, tool: &str, outcome: Outcome, error: CallError) -> Self {
        Self {
            tool_call_id: provider_id,
            call: call.to_string(),
            tool: tool.to_owned(),
            success: false,
            outcome,
            output: None,
            error: Some(error),
            content_type: "application/json".into(),
            duration_ms: 0,
            attempts: 0,
            repeats: None,
            approval: None,
            cached: None,
            note: None,
            reconciled: false,
            local: false,
            facts_evaluated_ms: None,
        }
    }
}
