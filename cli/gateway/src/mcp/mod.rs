//! An MCP server for each agent. All state of a task is the turn's record, so any gateway can serve it.
//!
//! START HERE: [`McpServer`].

mod approval;
mod call;
mod digits;
mod http;
mod stdio;
mod task;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestMethod, CompleteRequestParams,
    CompleteResult, GetTaskParams, GetTaskResult, Implementation, ListPromptsRequestMethod, ListPromptsResult,
    ListResourceTemplatesRequestMethod, ListResourceTemplatesResult, ListResourcesRequestMethod, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig, Tool, UpdateTaskParams,
};
use rmcp::service::{RequestContext, RoleServer};
use tickfleet_client::Client;
use tickfleet_model::retry::DoublingDelay;
use tickfleet_model::{AgentId, Dialect, TenantId, TurnId};
use tickfleet_ops::metrics::Metrics;
use tickfleet_protocol::define_shared;
use tickfleet_store::TurnName;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;
use crate::problem::Problem;
use crate::serving::public::PublicUrl;
use crate::verbs::{CallerIdentity, CredentialKind, TenantScope, Verb};
use crate::waiting::ReplyWaiters;

use approval::LocalApprovals;

pub use approval::LocalApprover;
pub use call::META;
pub(crate) use http::{HttpServer, answer, http_server};
pub use stdio::serve_stdio;

const PAGE: usize = 200;
/// Clients request the tool list once, as soon as a fleet starts. The request waits until a worker writes the list.
const LIST_WAIT: Duration = Duration::from_secs(5);
const LIST_POLLS: DoublingDelay = DoublingDelay::new(Duration::from_millis(100), Duration::from_secs(1));

#[derive(Debug, Clone)]
pub(crate) struct Principal {
    tenant: TenantId,
    agent: AgentId,
    /// `None` if the process was started for this agent.
    caller: Option<Caller>,
}

impl Principal {
    fn require_permission(&self, verb: Verb) -> Result<(), ErrorData> {
        self.caller
            .as_ref()
            .map_or(Ok(()), |caller| caller.require_permission(verb))
            .map_err(|problem| refused(&problem))
    }

    fn holder(&self) -> CallerIdentity {
        let started = || CallerIdentity {
            credential: CredentialKind::Key,
            tenant: TenantScope::One(self.tenant.clone()),
            id: String::new(),
        };
        self.caller.as_ref().map_or_else(started, Caller::holder)
    }

    fn turn(&self, task_id: &str) -> Result<TurnName, ErrorData> {
        let turn = TurnId::new(task_id).map_err(|_| unknown_task(task_id))?;
        Ok(TurnName { tenant: self.tenant.clone(), turn })
    }
}

#[derive(Clone)]
pub(crate) struct McpServer {
    client: Client,
    waiting: ReplyWaiters,
    /// `None` over standard input and output.
    metrics: Option<Arc<Metrics>>,
    draining: CancellationToken,
    /// `None` if each request names its agent.
    only: Option<Principal>,
    /// Over standard input and output, the URL of the local console.
    public: Option<PublicUrl>,
    local: Option<Arc<LocalApprovals>>,
}

impl McpServer {
    pub(crate) const fn for_keys(
        client: Client,
        waiting: ReplyWaiters,
        metrics: Arc<Metrics>,
        draining: CancellationToken,
        public: Option<PublicUrl>,
    ) -> Self {
        Self { client, waiting, metrics: Some(metrics), draining, only: None, public, local: None }
    }

    /// Waits for the tool list of the agent. `None` if [`LIST_WAIT`] is over, or if the process drains first.
    async fn list_of(
        &self,
        principal: &Principal,
        context: &RequestContext<RoleServer>,
    ) -> Result<Option<String>, ErrorData> {
        let store = self.client.store(&principal.tenant);
        let began = Instant::now();
        let mut polls = LIST_POLLS;
        loop {
            // Errors are retried too, because Redis may start at the same time as the fleet.
            let list = store.tool_list(&principal.tenant, &principal.agent).await;
            let is_over = began.elapsed() >= LIST_WAIT || context.ct.is_cancelled() || self.draining.is_cancelled();
            if is_over || matches!(list, Ok(Some(_))) {
                return list.map_err(|error| failed(&error.into()));
            }
            tokio::select! {
                () = context.ct.cancelled() => {}
                () = self.draining.cancelled() => {}
                () = tokio::time::sleep(polls.next_wait()) => {}
            }
        }
    }

    fn principal(&self, context: &RequestContext<RoleServer>) -> Result<Principal, ErrorData> {
        if let Some(principal) = &self.only {
            return Ok(principal.clone());
        }
        let parts = context.extensions.get::<axum::http::request::Parts>();
        let principal = parts.and_then(|parts| parts.extensions.get::<Principal>());
        principal.cloned().ok_or_else(|| ErrorData::internal_error("the gateway lost the caller's identity", None))
    }
}

fn dialect(context: &RequestContext<RoleServer>) -> Dialect {
    if is_stateless(context) { Dialect::Mcp2026_07_28 } else { Dialect::Mcp }
}

/// True for revisions without a handshake, from 2026-07-28 on.
fn is_stateless(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| !version.has_initialize())
}

fn refused(problem: &Problem) -> ErrorData {
    ErrorData::invalid_request(problem.summary().0.to_owned(), None)
}

fn failed(problem: &Problem) -> ErrorData {
    ErrorData::internal_error(problem.summary().0.to_owned(), None)
}

fn unknown_task(task_id: &str) -> ErrorData {
    let message = format!("unknown task {task_id:?}: it does not exist or its record has expired");
    ErrorData::invalid_params(message, None)
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tasks().build());
        info.server_info = Implementation::new("tickfleet", env!("CARGO_PKG_VERSION"));
        info.instructions = Some(
            "Calls run under limits and permissions. A call that has to wait returns later; an error says what to do."
                .into(),
        );
        info
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let principal = self.principal(&context)?;
        principal.require_permission(Verb::Read)?;
        let cursor = request.and_then(|request| request.cursor);
        let from = cursor.map_or(Ok(0), |cursor| cursor.parse::<usize>());
        let from = from.map_err(|_| ErrorData::invalid_params("cursor: expected a cursor returned by a list", None))?;
        let Some(list) = self.list_of(&principal, &context).await? else {
            let message =
                format!("no tool list for {}: the tenant has no such agent, or no worker is running", principal.agent);
            return Err(ErrorData::internal_error(message, None));
        };
        let list = define_shared(dialect(&context), &list).map(|list| list.to_string());
        let tools = list.and_then(|list| serde_json::from_str::<Vec<Tool>>(&digits::guarded(&list)));
        let tools = tools.map_err(|error| {
            tracing::error!(%error, agent = %principal.agent, "invalid tool list");
            ErrorData::internal_error("cannot read the tool list in Redis", None)
        })?;
        let left = tools.len().saturating_sub(from);
        let mut page = ListToolsResult::with_all_items(tools.into_iter().skip(from).take(PAGE).collect());
        page.next_cursor = (left > PAGE).then(|| (from + PAGE).to_string());
        Ok(page)
    }

    // Revision 2026-07-28 forbids methods without a matching capability. The methods below therefore return "method not
    // found" instead of an empty list.

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let principal = self.principal(&context)?;
        principal.require_permission(Verb::Submit)?;
        let answer = self.call(&principal, request, &context).await;
        if let Some(metrics) = &self.metrics {
            metrics.gateway.mcp_called(match &answer {
                _ if context.ct.is_cancelled() => "given_up",
                Ok(CallToolResponse::Complete(_)) => "result",
                Ok(CallToolResponse::Task(_)) => "task",
                Ok(_) | Err(_) => "error",
            });
        }
        answer
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let principal = self.principal(&context)?;
        principal.require_permission(Verb::Read)?;
        self.task(&principal, &request.task_id, &context).await.map(GetTaskResult::new)
    }

    /// The client's responses decide nothing: the caller cannot approve its own call.
    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let principal = self.principal(&context)?;
        principal.require_permission(Verb::Read)?;
        self.task(&principal, &request.task_id, &context).await.map(drop)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let principal = self.principal(&context)?;
        principal.require_permission(Verb::Cancel)?;
        // This read fails for a task of another agent, as if the task were unknown.
        self.task(&principal, &request.task_id, &context).await?;
        self.cancel(&principal.turn(&request.task_id)?).await
    }
}
