//! What a call has to pass before it runs: the same for every call of a worker and for `tickfleet tools try`.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::value::RawValue;
use tickfleet_model::{AgentId, CallError, Outcome, TenantId};
use tickfleet_protocol::without_nulls;

use crate::messages;
use crate::tools::{RegisteredTool, Toolbox, Unusable};

/// How a call ends that does not pass. Boxed: most calls pass, and a refusal is large.
pub(crate) type Refusal = Box<(Outcome, CallError)>;

/// The tool that an agent means by `name`: it is known, and the agent may call it.
pub(crate) fn usable(
    tools: &Toolbox,
    tenant: &TenantId,
    agent: &AgentId,
    name: &str,
) -> Result<Arc<RegisteredTool>, Refusal> {
    let unusable = match tools.find(tenant, agent, name) {
        Ok(tool) => return Ok(Arc::clone(tool)),
        Err(unusable) => unusable,
    };
    let may = tools.may_call(tenant, agent);
    let allowed: Vec<&str> = may.iter().map(|tool| tool.spec.name.as_str()).collect();
    Err(Box::new(match unusable {
        Unusable::NoAgent => {
            let message = format!("Agent {:?} is no longer configured.", agent.as_str());
            (Outcome::Denied, messages::error(Outcome::Denied, message))
        }
        Unusable::Withheld => {
            (Outcome::Denied, messages::error(Outcome::Denied, tickfleet_engine::delegation::unreadable(tenant)))
        }
        Unusable::NoTool => {
            let close = tools.close_to(name, &allowed);
            (Outcome::UnknownTool, messages::unknown_tool(name, &close, &allowed))
        }
        Unusable::Denied(denial, rule) => (Outcome::Denied, messages::denied(name, &denial, &rule, &allowed)),
    }))
}

/// The arguments as the tool gets them: within bounds and as its schema wants them. Of a strict answer, the nulls that
/// stand for optional arguments are left out.
pub(crate) async fn fitting(
    tool: &RegisteredTool,
    name: &str,
    text: &str,
    strict: bool,
) -> Result<Box<RawValue>, Refusal> {
    let text = if strict { without_nulls(&tool.spec.input_schema, text) } else { Cow::Borrowed(text) };
    tool.arguments.check_in_time(&text).await.map_err(|error| {
        let told = messages::error(Outcome::InvalidArguments, error.message(name));
        Box::new((Outcome::InvalidArguments, CallError { details: Some(error.details()), ..told }))
    })
}

/// A task as its handler gets it. What is in it is the producer's own JSON, numbers included that no schema can compare.
pub(crate) async fn fitting_task(handler: &RegisteredTool, text: &str) -> Result<Box<RawValue>, Refusal> {
    handler.arguments.check_task_in_time(text).await.map_err(|error| {
        let told = messages::error(Outcome::InvalidArguments, error.message(&handler.spec.name));
        Box::new((Outcome::InvalidArguments, CallError { details: Some(error.details()), ..told }))
    })
}

/// What the tool itself finds wrong with arguments that fit its schema.
pub(crate) fn validated(tool: &RegisteredTool, arguments: &RawValue) -> Result<(), Refusal> {
    match catch_unwind(AssertUnwindSafe(|| tool.handler.validate(arguments))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(problem)) => {
            Err(Box::new((Outcome::InvalidArguments, messages::invalid_arguments(&tool.spec.name, &problem))))
        }
        Err(_) => {
            tracing::error!(tool = tool.spec.name, "the validation of a tool panicked");
            Err(Box::new((Outcome::Internal, messages::internal())))
        }
    }
}

/// Whether a person has agreed, where the tool wants that.
pub(crate) fn approved(tool: &RegisteredTool) -> Result<(), Refusal> {
    if !tool.spec.requires_approval {
        return Ok(());
    }
    let message = "This tool needs a person's approval, and this fleet has no way to ask for one.";
    Err(Box::new((Outcome::ApprovalRefused, messages::error(Outcome::ApprovalRefused, message))))
}
