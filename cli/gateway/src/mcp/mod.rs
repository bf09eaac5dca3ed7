//! An MCP server for each agent: its tools, as the permission matrix has them, and calls that take the whole way of a turn
//! through caps, permission, validation and audit. A call that takes long is a task for clients that know tasks, and its
//! task is the turn's record: any gateway answers for it, also after the one that took it has gone.
//!
//! START HERE: [`McpServer`] answers requests; `call` is a call from its parameters to its result; `task` is what is told
//! of one that is under way, `asked` of one that waits for people; `digits` carries large numbers through the library.

mod asked;
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
use tickfleet_model::{AgentId, Dialect, TenantId, TurnId};
use tickfleet_ops::metrics::Metrics;
use tickfleet_protocol::define_shared;
use tickfleet_store::TurnName;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;
use crate::problem::Problem;
use crate::serving::public::PublicUrl;
use crate::verbs::{Held, Holder, Verb, Whose};
use crate::waiting::Waiting;

pub use call::META;
pub(crate) use http::{HttpServer, answer, http_server};
pub use stdio::serve_stdio;

/// Tools in one page of a list.
const PAGE: usize = 200;
/// How long a list is waited for that no worker has written: clients ask as soon as a fleet starts, and once.
const LIST_WAIT: Duration = Duration::from_secs(5);
/// It is looked for again after this time, then after twice as long, up to [`LIST_LOOKS_MAX`].
const LIST_LOOKS_MIN: Duration = Duration::from_millis(100);
/// See [`LIST_LOOKS_MIN`].
const LIST_LOOKS_MAX: Duration = Duration::from_secs(1);

/// Whose server it is.
#[derive(Debug, Clone)]
pub(crate) struct Principal {
    tenant: TenantId,
    agent: AgentId,
    /// Who asks, by its key; none where whoever started the process speaks for the agent.
    caller: Option<Caller>,
}

impl Principal {
    fn may(&self, verb: Verb) -> Result<(), ErrorData> {
        self.caller.as_ref().map_or(Ok(()), |caller| caller.may(verb)).map_err(|problem| refused(&problem))
    }

    /// Who calls, for what is counted by callers.
    fn holder(&self) -> Holder {
        let started = || Holder { held: Held::Key, tenant: Whose::One(self.tenant.clone()), id: String::new() };
        self.caller.as_ref().map_or_else(started, Caller::holder)
    }

    /// The turn behind a task's id. What is no id is no task.
    fn turn(&self, task_id: &str) -> Result<TurnName, ErrorData> {
        let turn = TurnId::new(task_id).map_err(|_| unknown_task(task_id))?;
        Ok(TurnName { tenant: self.tenant.clone(), turn })
    }
}

/// Answers MCP requests.
#[derive(Clone)]
pub(crate) struct McpServer {
    client: Client,
    waiting: Waiting,
    /// Of a gateway; none where one agent is served over standard input and output.
    metrics: Option<Arc<Metrics>>,
    draining: CancellationToken,
    /// The one agent that it serves; none where each request says so.
    only: Option<Principal>,
    /// Where people reach the pages of the gateway; none where nobody has said so, or there are none.
    public: Option<PublicUrl>,
}

impl McpServer {
    /// One whose requests come with a key and the agent's name.
    pub(crate) const fn for_keys(
        client: Client,
        waiting: Waiting,
        metrics: Arc<Metrics>,
        draining: CancellationToken,
        public: Option<PublicUrl>,
    ) -> Self {
        Self { client, waiting, metrics: Some(metrics), draining, only: None, public }
    }

    /// The list of an agent's tools in the shared form; none where it has none, or no worker has written it in time.
    async fn list_of(
        &self,
        who: &Principal,
        context: &RequestContext<RoleServer>,
    ) -> Result<Option<String>, ErrorData> {
        let (store, asked, mut pause) = (self.client.store(&who.tenant), Instant::now(), LIST_LOOKS_MIN);
        loop {
            // Redis may start with the fleet, too.
            let list = store.tool_list(&who.tenant, &who.agent).await;
            let is_over = asked.elapsed() >= LIST_WAIT || context.ct.is_cancelled() || self.draining.is_cancelled();
            if is_over || matches!(list, Ok(Some(_))) {
                return list.map_err(|error| failed(&error.into()));
            }
            tokio::select! {
                () = context.ct.cancelled() => {}
                () = self.draining.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(LIST_LOOKS_MAX);
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

/// The form in which a revision of MCP has tools and results.
fn dialect(context: &RequestContext<RoleServer>) -> Dialect {
    if is_stateless(context) { Dialect::Mcp2026_07_28 } else { Dialect::Mcp }
}

/// Returns true if the client speaks a revision without a handshake, 2026-07-28 or later.
fn is_stateless(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| !version.has_initialize())
}

fn refused(problem: &Problem) -> ErrorData {
    ErrorData::invalid_request(problem.told().0.to_owned(), None)
}

fn failed(problem: &Problem) -> ErrorData {
    ErrorData::internal_error(problem.told().0.to_owned(), None)
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

    /// The tools that the agent may call, in pages.
    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let who = self.principal(&context)?;
        who.may(Verb::Read)?;
        let cursor = request.and_then(|request| request.cursor);
        let from = cursor.map_or(Ok(0), |cursor| cursor.parse::<usize>());
        let from = from.map_err(|_| ErrorData::invalid_params("cursor: expected a cursor returned by a list", None))?;
        let Some(list) = self.list_of(&who, &context).await? else {
            let message =
                format!("no tool list for {}: the tenant has no such agent, or no worker is running", who.agent);
            return Err(ErrorData::internal_error(message, None));
        };
        let list = define_shared(dialect(&context), &list).map(|list| list.to_string());
        let tools = list.and_then(|list| serde_json::from_str::<Vec<Tool>>(&digits::guarded(&list)));
        let tools = tools.map_err(|error| {
            tracing::error!(%error, agent = %who.agent, "invalid tool list");
            ErrorData::internal_error("cannot read the tool list in Redis", None)
        })?;
        let left = tools.len().saturating_sub(from);
        let mut page = ListToolsResult::with_all_items(tools.into_iter().skip(from).take(PAGE).collect());
        page.next_cursor = (left > PAGE).then(|| (from + PAGE).to_string());
        Ok(page)
    }

    // What no capability promises is no method, and not an empty list: 2026-07-28 asks that the two agree.

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
        let who = self.principal(&context)?;
        who.may(Verb::Submit)?;
        let answer = self.call(&who, request, &context).await;
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
        let who = self.principal(&context)?;
        who.may(Verb::Read)?;
        self.task(&who, &request.task_id, &context).await.map(GetTaskResult::new)
    }

    /// Answers to questions that a task has asked. Whatever they say, they decide nothing: whoever calls does not approve.
    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let who = self.principal(&context)?;
        who.may(Verb::Read)?;
        self.task(&who, &request.task_id, &context).await.map(drop)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let who = self.principal(&context)?;
        who.may(Verb::Cancel)?;
        // What is another agent's is not there.
        self.task(&who, &request.task_id, &context).await?;
        self.cancel(&who.turn(&request.task_id)?).await
    }
}
