//! People are asked about a call, which is parked until they have decided.

use tickfleet_model::{AgentId, InboxName, limits};

use crate::keys::{Queue, TurnName};
use crate::script::args::Args;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::verbs::parked::Parked;
use crate::{Store, StoreError};

/// A call that needs people's consent.
#[derive(Debug, Clone)]
pub struct AskApproval {
    /// The turn.
    pub name: TurnName,
    /// The fence of the slice.
    pub fence: String,
    /// The queue that it was leased from, and goes back to.
    pub queue: Queue,
    /// Position of the call; all results before it are settled.
    pub position: usize,
    /// The approval's id.
    pub id: String,
    /// The hash of all that it is about.
    pub binding: String,
    /// For so long they may decide, ms; none: as long as the turn may run.
    pub expires_ms: Option<i64>,
    /// The agent that calls.
    pub agent: AgentId,
    /// The tool, and its version.
    pub tool: (String, String),
    /// The arguments that the call runs with, JSON, for whoever decides.
    pub arguments: String,
    /// Their short form for lists, notices and whoever may not decide, JSON: without secrets, within a bound. None if that is
    /// the same.
    pub short: Option<String>,
    /// What asks, JSON: a list of `place` and `why`.
    pub why: String,
    /// Who has to agree (see `tickfleet_model::approval::demands_text`).
    pub demands: String,
    /// The arguments that may be changed, JSON.
    pub may_narrow: String,
    /// The inbox that is told at once, and what: `{asked_ms}` and `{until_ms}` in it stand for the times.
    pub early: Option<(InboxName, String)>,
    /// True if calls behind it ran beside it: they are carried out again.
    pub beside: bool,
}

/// The outcome of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// What any wait may come to.
    Parked(Parked),
    /// It was decided meanwhile: nothing was written.
    Decided,
    /// Too many approvals wait (see [`ApprovalsFull`]): nothing was written.
    Full,
}

/// The bound that keeps people from being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalsFull {
    /// [`limits::APPROVALS_WAITING_MAX`] approvals of the tenant wait.
    Tenant,
    /// [`limits::APPROVALS_WAITING_OF_AGENT_MAX`] approvals of the agent wait.
    Agent,
}

/// The bounds on approvals that wait, as scripts are given them.
pub(super) fn bounds(args: &mut Args) {
    args.show(limits::APPROVALS_WAITING_MAX).show(limits::APPROVALS_WAITING_OF_AGENT_MAX);
}

impl Store {
    /// Asks for approvals, and parks the slices of their calls.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be asked again.
    pub async fn ask_approval(&self, calls: &[AskApproval]) -> Result<Vec<Asked>, StoreError> {
        let mut args = self.args();
        bounds(&mut args);
        args.show(self.options.reply_retain_ms).show(calls.len());
        for call in calls {
            args.show(&call.name.tenant).show(&call.name.turn).text(call.fence.as_str()).show(&call.queue);
            args.show(call.position).text(call.id.as_str()).text(call.binding.as_str()).maybe(call.expires_ms);
            args.show(&call.agent).text(call.tool.0.as_str()).text(call.tool.1.as_str());
            args.text(call.arguments.as_str()).text(call.short.as_deref().unwrap_or_default());
            args.text(call.why.as_str()).text(call.demands.as_str());
            args.text(call.may_narrow.as_str()).maybe(call.early.as_ref().map(|(inbox, _)| inbox));
            args.text(call.early.as_ref().map_or("", |(_, reply)| reply.as_str())).flag(call.beside);
        }
        let mut reply = self.ask(Verb::AskApproval, args).await?;
        reply.rest().iter().map(asked).collect()
    }
}

fn asked(value: &redis::Value) -> Result<Asked, StoreError> {
    Ok(match text_of(value).as_deref() {
        Some("OK") => Asked::Parked(Parked::Ok),
        Some("ALREADY") => Asked::Parked(Parked::Already),
        Some("CANCELLED") => Asked::Parked(Parked::Cancelled),
        Some("STALE") => Asked::Parked(Parked::Stale),
        Some("GAP") => Asked::Parked(Parked::Gap),
        Some("DECIDED") => Asked::Decided,
        Some("FULL") => Asked::Full,
        _ => return Err(unexpected(Verb::AskApproval.as_str(), value)),
    })
}
