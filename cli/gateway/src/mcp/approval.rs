//! Shows a client that its call waits for approval. The caller can never approve its own call. If the client can show
//! its user a page, the gateway asks the client to show the approvals page. The client's response decides nothing.
//!
//! The exception is a client on the approver's own machine ([`LocalApprover`]): it shows a dialog, and the approver's
//! answer decides. Without dialogs, the call is *held*: the client gets a result that explains where to decide. If the
//! client repeats the call, it gets the result of the held call.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, SecondsFormat};
use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientResult, ContentBlock, ElicitRequest, ElicitRequestParams,
    ElicitationAction, ElicitationSchema, InputRequest, InputRequests, JsonObject, ServerRequest,
};
use rmcp::service::{Peer, RequestContext, RoleServer};
use tickfleet_client::operate::{TurnState, turn_state};
use tickfleet_client::verbs::{ApproveRequest, Approver, DenyRequest, FleetNames, VerbContext, VerbError};
use tickfleet_client::{Approval, Client};
use tickfleet_model::hidden::visible;
use tickfleet_model::{Redactor, TurnId};
use tickfleet_store::{LiveTurn, TurnName, TurnView};
use tokio_util::task::AbortOnDropHandle;

use super::{McpServer, digits, is_stateless};
use crate::serving::public::PublicUrl;

/// Exceeds the maximum number of waiting approvals of one agent.
const HELD_MAX: usize = 1_000;

/// The user of this machine is the approver.
#[derive(Debug, Clone)]
pub struct LocalApprover {
    pub name: String,
    pub roles: BTreeSet<String>,
    pub redactor: Arc<Redactor>,
    pub console: PublicUrl,
    /// This file has the link to the console, which contains a key. Models read results, so results name only the file.
    pub link: PathBuf,
}

pub(super) struct LocalApprovals {
    approver: LocalApprover,
    held: Mutex<VecDeque<HeldCall>>,
}

struct HeldCall {
    tool: String,
    arguments: Option<JsonObject>,
    turn: TurnId,
}

impl LocalApprovals {
    pub(super) fn new(approver: LocalApprover) -> Self {
        Self { approver, held: Mutex::default() }
    }

    pub(super) fn console(&self) -> PublicUrl {
        self.approver.console.clone()
    }

    pub(super) fn held(&self, request: &CallToolRequestParams) -> Option<TurnId> {
        let is_equal = |held: &&HeldCall| held.tool == *request.name && held.arguments == request.arguments;
        self.held.lock().iter().find(is_equal).map(|held| held.turn.clone())
    }

    /// Use this when the result of the call is known, or before the call is held again.
    pub(super) fn release(&self, turn: &TurnId) {
        self.held.lock().retain(|held| held.turn != *turn);
    }

    pub(super) fn held_turns(&self) -> Vec<TurnId> {
        self.held.lock().iter().map(|held| held.turn.clone()).collect()
    }

    pub(super) fn hold(&self, request: &CallToolRequestParams, turn: &TurnId, approval: &Approval) -> CallToolResult {
        self.release(turn);
        let mut held = self.held.lock();
        if held.len() >= HELD_MAX {
            held.pop_front();
        }
        let (tool, arguments) = (request.name.to_string(), request.arguments.clone());
        held.push_back(HeldCall { tool, arguments, turn: turn.clone() });
        let link = self.approver.link.display();
        tracing::warn!(tool = approval.tool, call = approval.call, %link, "call waits for approval");
        let message = format!(
            "This call of {} waits for approval by a person and has not run. Ask the user to decide: the file {link} has the link to the console. Then make the same call with the same arguments. It returns the result, and runs at most once.",
            approval.tool
        );
        CallToolResult::error(vec![ContentBlock::text(message)])
    }
}

pub(super) enum Question {
    /// The task of the dialog returns true if the approval is decided.
    Dialog(AbortOnDropHandle<bool>),
    NoDialog(Box<Approval>),
}

impl McpServer {
    /// `None` if the turn waits for something else, or on a read error.
    pub(super) async fn pending_approval(&self, name: &TurnName, live: &LiveTurn) -> Option<Approval> {
        let id = live.turn.approval.as_deref().filter(|_| turn_state(live) == TurnState::Parked)?;
        match self.client.approval(&name.tenant, id).await {
            Ok(found) => found.filter(|approval| approval.state == "waiting"),
            Err(error) => {
                tracing::warn!(%error, turn = %name, "failed to read the approval of a call");
                None
            }
        }
    }

    /// Returns an approval that this machine's approver may decide. `None` on a read error, or if the approval's id is
    /// `asked`.
    pub(super) async fn new_local_approval(&self, name: &TurnName, asked: Option<&str>) -> Option<Approval> {
        let approver = &self.local.as_ref()?.approver;
        let Ok(TurnView::Live(live)) = self.client.store(&name.tenant).turn_view(name).await else { return None };
        let approval = self.pending_approval(name, &live).await?;
        let is_new = asked != Some(&approval.id);
        (is_new && approval.may_be_decided_by(&approver.name, &approver.roles)).then_some(approval)
    }

    pub(super) fn ask_user(&self, approval: Approval, context: &RequestContext<RoleServer>) -> Question {
        let can = context.client_capabilities().and_then(|can| can.elicitation);
        // A client that supports dialogs but names no kind of dialog supports forms.
        let has_forms = can.is_some_and(|can| can.form.is_some() || can.url.is_none());
        match &self.local {
            Some(local) if has_forms && !is_stateless(context) => {
                let (client, local, peer) = (self.client.clone(), Arc::clone(local), context.peer.clone());
                let asking = async move { decided_in_dialog(&client, &local.approver, &peer, &approval).await };
                Question::Dialog(AbortOnDropHandle::new(tokio::spawn(asking)))
            }
            _ => Question::NoDialog(Box::new(approval)),
        }
    }

    pub(super) fn describe_approval(&self, approval: &Approval) -> String {
        let name = format!("{}:{}", approval.tenant, approval.id);
        let until = DateTime::from_timestamp_millis(approval.until_ms).unwrap_or_default();
        let until = until.to_rfc3339_opts(SecondsFormat::Secs, true);
        let places = match (&self.local, &self.public) {
            (Some(local), _) => format!("in the console; the link is in {}", local.approver.link.display()),
            (None, Some(public)) => format!("at {} or by tickfleet approvals approve {name}", public.approvals()),
            (None, None) => format!("by tickfleet approvals approve {name}"),
        };
        format!(
            "waits for an approval of {} ({}): {} until {until}, {places}. The caller cannot approve it",
            approval.tool,
            approval.call,
            approval.needed()
        )
    }

    pub(super) fn page(&self, context: &RequestContext<RoleServer>) -> Option<&PublicUrl> {
        let shows = context.client_capabilities().and_then(|can| can.elicitation).is_some_and(|can| can.url.is_some());
        self.public.as_ref().filter(|_| shows)
    }
}

/// False if the approval is still undecided: the user did not answer the dialog, or the decision failed.
async fn decided_in_dialog(
    client: &Client,
    approver: &LocalApprover,
    peer: &Peer<RoleServer>,
    approval: &Approval,
) -> bool {
    let arguments = approval.arguments.get();
    // Show characters instead of their escapes, and escapes instead of invisible characters.
    let plain = serde_json::from_str::<serde_json::Value>(&digits::guarded(arguments)).map(|plain| plain.to_string());
    let plain = plain.map_or_else(|_| arguments.to_owned(), |plain| digits::restored(&plain).into_owned());
    let params = ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: format!("Run {} with {}?", approval.tool, visible(&plain)),
        requested_schema: ElicitationSchema::new(Default::default()),
    };
    let answer = peer.send_request(ServerRequest::ElicitRequest(ElicitRequest::new(params))).await;
    let agrees = match answer {
        Ok(ClientResult::ElicitResult(answer)) => match answer.action {
            ElicitationAction::Accept => true,
            ElicitationAction::Decline => false,
            _ => return false,
        },
        Ok(_) => return false,
        Err(error) => {
            tracing::warn!(%error, call = approval.call, "the client did not show the dialog of an approval");
            return false;
        }
    };
    let context = VerbContext {
        client: client.clone(),
        names: FleetNames::default(),
        by: approver.name.clone(),
        tenant: Some(approval.tenant.clone()),
        redactor: Arc::clone(&approver.redactor),
        remarks: &(),
    };
    let by = Approver { name: &approver.name, roles: &approver.roles };
    let decided = match "in a dialog of the MCP client".parse() {
        Err(error) => Err(VerbError::Invalid(error)),
        Ok(reason) if agrees => {
            let narrowed = approval.narrowed.clone();
            ApproveRequest { reason: Some(reason), narrowed, ..ApproveRequest::default() }
                .run(&context, approval, by)
                .await
        }
        Ok(reason) => DenyRequest { reason }.run(&context, approval, by).await,
    };
    let Err(error) = decided else { return true };
    // The approval may have been decided in the console meanwhile.
    let now = client.approval(&approval.tenant, &approval.id).await;
    let is_decided = now.is_ok_and(|now| now.is_some_and(|now| now.state != "waiting"));
    if !is_decided {
        tracing::warn!(%error, call = approval.call, "failed to decide an approval");
    }
    is_decided
}

pub(super) fn approval_prompt(approval: &Approval, words: &str, page: &PublicUrl) -> InputRequests {
    let params = ElicitRequestParams::UrlElicitationParams {
        meta: None,
        message: format!("The call {words}. The page asks for the approver's key."),
        url: page.approvals(),
        elicitation_id: approval.id.clone(),
    };
    [(format!("approval-{}", approval.id), InputRequest::Elicitation(ElicitRequest::new(params)))].into()
}
