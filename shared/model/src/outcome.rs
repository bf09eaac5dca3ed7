//! Defines the outcome and the result of a call. Each call has exactly one outcome. Results have one common format
//! until a dialect renders them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::CallId;

/// Generates the enum, its list of variants and their names from one table, so that the three cannot differ.
macro_rules! outcomes {
    ($($(#[$doc:meta])* $variant:ident = $word:literal,)+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Outcome {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)+
        }

        impl Outcome {
            /// All outcomes, for metrics and tables.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Returns the outcome's name in results, audit entries, metrics and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// Returns the outcome with this name. `None` for any other text.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

outcomes! {
    /// The call succeeded.
    Ok = "ok",
    /// No tool has this name.
    UnknownTool = "unknown_tool",
    /// The agent may not call the tool.
    Denied = "denied",
    /// The arguments cannot be parsed, or do not match the schema.
    InvalidArguments = "invalid_arguments",
    /// The tool failed permanently.
    Permanent = "permanent",
    /// Every attempt failed for a temporary reason.
    Transient = "transient",
    /// A `once` tool may or may not have taken effect.
    OutcomeUnknown = "outcome_unknown",
    /// The fleet or the handler has a bug, or crashed.
    Internal = "internal",
    /// The call's deadline passed.
    Expired = "expired",
    /// The call was cancelled.
    Cancelled = "cancelled",
    /// The day's budget is used up.
    DailyCapReached = "daily_cap_reached",
    /// The turn was not accepted.
    Rejected = "rejected",
    /// An approval was requested and not given.
    ApprovalRefused = "approval_refused",
}

/// The properties of an outcome. All code that depends on the outcome uses these properties.
#[derive(Debug, Clone, Copy)]
struct OutcomeTraits {
    happened: EffectHappened,
    severity: OutcomeSeverity,
    /// See [`Outcome::proves_tool`].
    proves_tool: bool,
    /// See [`Outcome::changes_facts`].
    changes_facts: bool,
    /// See [`Outcome::has_failed_running`].
    has_failed_running: bool,
}

/// Whether the effect of a call took place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectHappened {
    Yes,
    /// The effect may have taken place.
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

/// The properties of a call that was rejected before it ran. Other outcomes override only the fields that differ.
const REFUSED: OutcomeTraits = OutcomeTraits {
    happened: EffectHappened::No,
    severity: OutcomeSeverity::Bad,
    proves_tool: false,
    changes_facts: false,
    has_failed_running: false,
};

impl Outcome {
    const fn meaning(self) -> OutcomeTraits {
        use EffectHappened::{IfRun, Perhaps, Yes};
        use OutcomeSeverity::{Doubtful, Good};
        let proves_tool = true;
        let changes_facts = true;
        let has_failed_running = true;
        match self {
            Self::Ok => OutcomeTraits { happened: Yes, severity: Good, proves_tool, changes_facts, ..REFUSED },
            Self::Permanent | Self::Transient => {
                OutcomeTraits { proves_tool, changes_facts, has_failed_running, ..REFUSED }
            }
            // Either the call ran and its output was withheld, or the call did not reach its tool.
            Self::Internal => OutcomeTraits { happened: IfRun, changes_facts, has_failed_running, ..REFUSED },
            Self::OutcomeUnknown => {
                OutcomeTraits { happened: Perhaps, severity: Doubtful, proves_tool, has_failed_running, ..REFUSED }
            }
            Self::Denied | Self::InvalidArguments | Self::ApprovalRefused => OutcomeTraits { proves_tool, ..REFUSED },
            Self::Expired | Self::Cancelled | Self::DailyCapReached => OutcomeTraits { severity: Doubtful, ..REFUSED },
            Self::UnknownTool | Self::Rejected => REFUSED,
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

    /// Returns true if a call with this outcome may have run, even if the result does not show that it ran.
    #[must_use]
    pub const fn may_have_run(self) -> bool {
        matches!(self.meaning().happened, EffectHappened::Perhaps | EffectHappened::IfRun)
    }

    #[must_use]
    pub const fn severity(self) -> OutcomeSeverity {
        self.meaning().severity
    }

    /// Returns true if only a call whose tool was found can have this outcome.
    #[must_use]
    pub const fn proves_tool(self) -> bool {
        self.meaning().proves_tool
    }

    /// Returns true if a configuration may list this outcome for changes of facts, because the call ran. After
    /// `outcome_unknown`, facts may have changed even if the configuration does not list this outcome.
    #[must_use]
    pub const fn changes_facts(self) -> bool {
        self.meaning().changes_facts
    }

    /// Returns true if the call was permitted to run and then failed. Returns false for a call that was rejected before
    /// it ran.
    #[must_use]
    pub const fn has_failed_running(self) -> bool {
        self.meaning().has_failed_running
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallError {
    /// Stable error code: the outcome's name, unless the documentation lists a more specific code.
    pub code: String,
    /// A message that a model can act on; at most [`super::limits::ERROR_BYTES_MAX`] bytes.
    pub message: String,
    /// Details for programs (`resets_at`, `path`, `allowed_tools`, …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
}

/// The result of a call before a dialect renders it. The fields are in the documented order of the JSON form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallResult {
    /// The provider's ID of the call, unchanged; null if the provider gave none.
    pub tool_call_id: Option<String>,
    /// The fleet's ID of the call, `<turn>/<position>`.
    pub call: String,
    /// The tool as the model named it.
    pub tool: String,
    /// True if [`Self::outcome`] is `ok`.
    pub success: bool,
    pub outcome: Outcome,
    /// The handler's output as JSON. Set if the call succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    /// The error. Set if the call did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
    /// Media type of the output (`application/json`, `text/plain`).
    pub content_type: String,
    /// Duration of the last attempt (ms).
    pub duration_ms: u64,
    /// Number of attempts; 0 if the call never ran.
    pub attempts: u32,
    /// The ID of an equal call, if this call did not run and has the result of that equal call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<String>,
    /// The approval of the call, if the call needed one and got it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<CallApproval>,
    /// The origin and age of the result, if it comes from the read cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<CacheHit>,
    /// A message from the fleet to the agent, in addition to the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// True if the outcome was unknown at first, and the tool's reconciliation determined the outcome.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reconciled: bool,
    /// True if the call ran in its caller's process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local: bool,
    /// The time at which the call's conditions on facts were decided (ms of shard time). `None` if no facts apply to
    /// the call; 0 if the time is unknown. Only the audit log contains this time; the agent's result does not.
    #[serde(skip)]
    pub facts_evaluated_ms: Option<i64>,
}

/// The approval of a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallApproval {
    /// The approval's ID.
    pub id: String,
    /// The names of the approvers.
    pub by: Vec<String>,
    /// The arguments that the call ran with, if an approver changed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
}

/// The origin of a cached result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheHit {
    /// Age of the result (ms).
    pub age_ms: u64,
    /// The call that produced the result, `<turn>/<position>`.
    pub call: String,
}

/// The inputs of the decision about a call, except agent, tool and arguments. Audit entries contain these inputs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyInputs {
    /// Number of calls in the turn.
    pub calls: usize,
    /// True if a null in the arguments may mean that an argument is omitted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// True if consecutive reads of the turn may run at the same time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub parallel_reads: bool,
    /// The only tools that the turn may use; `None` means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<BTreeSet<String>>,
    /// The ID of the task that the turn belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The only tools that turns of this task may use; `None` means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_tools: Option<BTreeSet<String>>,
    /// The capabilities that the task grants. `None` without a task, or if the task does not restrict them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<BTreeSet<String>>,
    /// The turn's `user_context`, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_context: Option<Box<RawValue>>,
    /// The turn's `session_data`, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_data: Option<Box<RawValue>>,
    /// The session whose facts apply, as a hash that includes the tenant. Empty without a session; `None` if the
    /// entry does not record the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// True if the call ran, or has the result of another call.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ran: bool,
    /// See [`CallResult::facts_evaluated_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts_evaluated_ms: Option<i64>,
}

impl CallResult {
    /// Returns true if the call ran, or has the result of another call. If false, the end of the call changes no facts,
    /// unless the outcome is unknown.
    #[must_use]
    pub fn ran(&self) -> bool {
        self.attempts > 0 || self.repeats.is_some() || self.cached.is_some()
    }

    /// Returns the result of a call that never ran.
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
