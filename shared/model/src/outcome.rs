//! The outcome of a call, exactly one, and the one shape of a result before a dialect renders it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::CallId;

/// Makes the enum, its list and its words of one table, so that none of them can miss an outcome.
macro_rules! outcomes {
    ($($(#[$doc:meta])* $variant:ident = $word:literal,)+) => {
        /// The outcome of a call: how it ended.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Outcome {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)+
        }

        impl Outcome {
            /// All outcomes, for metrics and tables.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word used in results, audit, metrics and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}

outcomes! {
    /// The handler returned.
    Ok = "ok",
    /// No tool has this name.
    UnknownTool = "unknown_tool",
    /// The agent may not call the tool.
    Denied = "denied",
    /// The arguments do not parse or do not fit the schema.
    InvalidArguments = "invalid_arguments",
    /// The tool refused for good.
    Permanent = "permanent",
    /// Every try failed for a reason that may pass.
    Transient = "transient",
    /// A `once` tool may or may not have taken effect.
    OutcomeUnknown = "outcome_unknown",
    /// A bug or a crash of ours or of the handler.
    Internal = "internal",
    /// Its deadline came first.
    Expired = "expired",
    /// Somebody cancelled it.
    Cancelled = "cancelled",
    /// The day's budget is used up.
    DailyCapReached = "daily_cap_reached",
    /// The turn was not accepted.
    Rejected = "rejected",
    /// An approval was asked for and not given.
    ApprovalRefused = "approval_refused",
}

/// What an outcome says about a call. Every place that treats outcomes differently asks here.
#[derive(Debug, Clone, Copy)]
struct Meaning {
    happened: Happened,
    tone: Tone,
    /// See [`Outcome::proves_tool`].
    proves_tool: bool,
    /// See [`Outcome::changes_facts`].
    changes_facts: bool,
    /// See [`Outcome::has_failed_running`].
    has_failed_running: bool,
}

/// Whether the effect of a call happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// It happened.
    Yes,
    /// It may have happened.
    Perhaps,
    /// It happened if the call ran.
    IfRun,
    /// It did not happen.
    No,
}

/// How an outcome is displayed to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Success.
    Good,
    /// Not a failure of the call.
    Doubtful,
    /// A failure.
    Bad,
}

/// The meaning of most outcomes: the call was refused before it ran.
const REFUSED: Meaning = Meaning {
    happened: Happened::No,
    tone: Tone::Bad,
    proves_tool: false,
    changes_facts: false,
    has_failed_running: false,
};

impl Outcome {
    const fn meaning(self) -> Meaning {
        use Happened::{IfRun, Perhaps, Yes};
        use Tone::{Doubtful, Good};
        let (proves_tool, changes_facts, has_failed_running) = (true, true, true);
        match self {
            Self::Ok => Meaning { happened: Yes, tone: Good, proves_tool, changes_facts, ..REFUSED },
            Self::Permanent | Self::Transient => Meaning { proves_tool, changes_facts, has_failed_running, ..REFUSED },
            // It ran and its output was withheld, or it came to no tool.
            Self::Internal => Meaning { happened: IfRun, changes_facts, has_failed_running, ..REFUSED },
            Self::OutcomeUnknown => {
                Meaning { happened: Perhaps, tone: Doubtful, proves_tool, has_failed_running, ..REFUSED }
            }
            Self::Denied | Self::InvalidArguments | Self::ApprovalRefused => Meaning { proves_tool, ..REFUSED },
            Self::Expired | Self::Cancelled | Self::DailyCapReached => Meaning { tone: Doubtful, ..REFUSED },
            Self::UnknownTool | Self::Rejected => REFUSED,
        }
    }

    /// Returns true if the call succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Ok)
    }

    /// Whether the effect of the call happened.
    #[must_use]
    pub const fn happened(self) -> Happened {
        self.meaning().happened
    }

    /// Returns true if the call may have run, and its result does not show it.
    #[must_use]
    pub const fn may_have_run(self) -> bool {
        matches!(self.meaning().happened, Happened::Perhaps | Happened::IfRun)
    }

    /// How the outcome is displayed.
    #[must_use]
    pub const fn tone(self) -> Tone {
        self.meaning().tone
    }

    /// Returns true if a call can only end like this after its tool was found.
    #[must_use]
    pub const fn proves_tool(self) -> bool {
        self.meaning().proves_tool
    }

    /// Returns true if a rule may name it as the end of a call that ran, after which facts change. After `outcome_unknown`,
    /// they may change in any case.
    #[must_use]
    pub const fn changes_facts(self) -> bool {
        self.meaning().changes_facts
    }

    /// Returns true if the call failed although it was let run. A call that was refused before would be refused again.
    #[must_use]
    pub const fn has_failed_running(self) -> bool {
        self.meaning().has_failed_running
    }
}

/// The error that the agent gets when a call did not succeed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallError {
    /// A stable word; equals the outcome's unless a more precise one is documented.
    pub code: String,
    /// One message that a model can act on, at most [`super::limits::ERROR_BYTES_MAX`] bytes.
    pub message: String,
    /// Details that a program can act on (`resets_at`, `path`, `allowed_tools` …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
}

/// The one shape of a result. Field order is the documented order on the wire.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallResult {
    /// The provider's id of the call, unchanged; null where it gave none.
    pub tool_call_id: Option<String>,
    /// Our own id, `<turn>/<position>`.
    pub call: String,
    /// The tool as the model named it.
    pub tool: String,
    /// True if [`Self::outcome`] is `ok`.
    pub success: bool,
    /// The outcome of the call: how it ended.
    pub outcome: Outcome,
    /// The handler's output; JSON. Present when the call succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    /// The error. Present when the call did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
    /// Media type of the output (`application/json`, `text/plain`).
    pub content_type: String,
    /// Time spent executing in the last try, ms.
    pub duration_ms: u64,
    /// The number of times that the handler was tried; 0 if the call never ran.
    pub attempts: u32,
    /// The call whose end this is, where an equal one had been made before and this one was not carried out for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<String>,
    /// The consent that the call had to have, where people gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approved>,
    /// Where this is the kept answer of a read: whose, and how old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<Cached>,
    /// What the fleet has to tell the agent beside the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// True where nobody knew whether the call had taken effect, and the tool that its own names found out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reconciled: bool,
    /// Where the call goes by facts: when they let it begin, or did not, ms of shard time; 0 where nobody knows. Auditors are
    /// told, agents are not.
    #[serde(skip)]
    pub entered_ms: Option<i64>,
}

/// People's consent to a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Approved {
    /// The approval.
    pub id: String,
    /// Who has agreed.
    pub by: Vec<String>,
    /// The arguments that the call ran with, where one of them has changed those of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
}

/// The origin of a kept answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cached {
    /// How old it was, ms.
    pub age_ms: u64,
    /// The call that was carried out for it, `<turn>/<position>`.
    pub call: String,
}

/// What a call was decided by beside its agent, its tool and its arguments, as audit entries say it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Premises {
    /// The number of calls that its turn had.
    pub calls: usize,
    /// True if a null may stand for an argument that is left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// True if consecutive reads of its turn may run at the same time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub parallel_reads: bool,
    /// The only tools that its turn could use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<BTreeSet<String>>,
    /// The task that it was made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The only tools that turns under that task could use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_tools: Option<BTreeSet<String>>,
    /// The capabilities that the task left to its agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<BTreeSet<String>>,
    /// The user that it was made for, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_context: Option<Box<RawValue>>,
    /// The data of its session, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_data: Option<Box<RawValue>>,
    /// The session that facts are kept for, as a hash with its tenant; empty where there is none, and none where the entry does
    /// not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// True if it ran, or was told what another one did.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ran: bool,
    /// See [`CallResult::entered_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entered_ms: Option<i64>,
}

impl CallResult {
    /// Whether it ran, or was told what another one did: only then its end says anything of facts.
    #[must_use]
    pub fn ran(&self) -> bool {
        self.attempts > 0 || self.repeats.is_some() || self.cached.is_some()
    }

    /// A result without output: the call `call` of tool `tool` ended as `outcome` and never ran.
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
            entered_ms: None,
        }
    }
}
