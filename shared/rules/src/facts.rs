//! The values that conditions can use.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tickfleet_model::policy::{AgentPolicy, TenantPolicy};
use tickfleet_model::{AgentId, Context, TaskGrant, TaskId, TenantId, TenantUser, ToolSpec};

use crate::value::Value;

#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    pub arguments: &'a RawValue,
    pub agent: (&'a AgentId, &'a AgentPolicy),
    pub tenant: (&'a TenantId, &'a TenantPolicy),
    pub tool: &'a ToolSpec,
    pub context: &'a Context,
    pub task: Option<&'a (TaskId, TaskGrant)>,
}

macro_rules! variables {
    ($($variant:ident $name:literal),+ $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Variable { $($variant),+ }

        impl Variable {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

variables! {
    Args "args",
    AgentName "agent.name",
    AgentRoles "agent.roles",
    TenantName "tenant.name",
    TenantPlan "tenant.plan",
    TenantFeatures "tenant.features",
    TenantUsers "tenant.users",
    ToolName "tool.name",
    ToolVersion "tool.version",
    ToolCategory "tool.category",
    ToolEffect "tool.effect",
    TaskId "task.id",
    TaskChain "task.chain",
    UserContext "user_context",
    SessionData "session_data",
}

impl Variable {
    pub(crate) fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }

    pub(crate) fn is_group(name: &str) -> bool {
        Self::ALL.iter().any(|known| known.name().split_once('.').is_some_and(|(group, _)| group == name))
    }

    pub(crate) const fn is_there(self, facts: &Facts<'_>) -> bool {
        !matches!(self, Self::TaskId) || facts.task.is_some()
    }

    /// Without a task, `task.id` is null and `task.chain` is empty. Without context from the producer, the context is
    /// an empty object.
    pub(crate) fn value<'a>(self, facts: &'a Facts<'a>) -> Value<'a> {
        let agent = facts.agent;
        let tenant = facts.tenant;
        let value_of = |json: &'a Option<Box<RawValue>>| json.as_deref().map_or_else(Value::nothing, Value::Json);
        match self {
            Self::Args => Value::Json(facts.arguments),
            Self::AgentName => Value::text(agent.0.as_str()),
            Self::AgentRoles => Value::texts(agent.1.roles.iter().map(String::as_str)),
            Self::TenantName => Value::text(tenant.0.as_str()),
            Self::TenantPlan => Value::text(&tenant.1.plan),
            Self::TenantFeatures => Value::texts(tenant.1.features.iter().map(String::as_str)),
            Self::TenantUsers => Value::List(tenant.1.users.iter().map(user).collect()),
            Self::ToolName => Value::text(&facts.tool.name),
            Self::ToolVersion => Value::text(&facts.tool.version),
            Self::ToolCategory => Value::text(&facts.tool.category),
            Self::ToolEffect => Value::text(facts.tool.effect.as_str()),
            Self::TaskId => facts.task.map_or(Value::Null, |(task, _)| Value::text(task.as_str())),
            Self::TaskChain => {
                let chain = facts.task.map(|(_, grant)| grant.chain.as_slice()).unwrap_or_default();
                Value::texts(chain.iter().map(AgentId::as_str))
            }
            Self::UserContext => value_of(&facts.context.user_context),
            Self::SessionData => value_of(&facts.context.session_data),
        }
    }
}

fn user(user: &TenantUser) -> Value<'_> {
    let mut members = vec![
        (Cow::Borrowed("name"), Value::text(&user.name)),
        (Cow::Borrowed("roles"), Value::texts(user.roles.iter().map(String::as_str))),
    ];
    for (name, text) in [("email", &user.email), ("status", &user.status)] {
        members.extend(text.as_deref().map(|text| (Cow::Borrowed(name), Value::text(text))));
    }
    Value::Map(members.into())
}
