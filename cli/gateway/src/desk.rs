//! What operators are told that takes more than Redis: the configuration, which whoever starts a gateway has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_client::rules::RuleHere;
use tickfleet_model::day::Tz;
use tickfleet_model::{AgentId, Redactor, TenantId};

use crate::problem::Problem;

/// Why a desk has no answer.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// That cannot be asked.
    #[error("{0}")]
    Invalid(String),
    /// Nothing of that name is known.
    #[error("{0}")]
    Unknown(String),
    /// Redis is away, or the configuration cannot be read: for the log.
    #[error("{0}")]
    Unavailable(String),
}

impl From<DeskError> for Problem {
    fn from(error: DeskError) -> Self {
        match error {
            DeskError::Invalid(message) => Self::invalid(message),
            DeskError::Unknown(message) => Self::not_found(message),
            DeskError::Unavailable(reason) => Self::unavailable(&reason),
        }
    }
}

/// What an operator names.
#[derive(Debug, Clone, Copy)]
pub enum Named<'a> {
    /// A tenant.
    Tenant(&'a TenantId),
    /// An agent of a tenant.
    Agent(&'a TenantId, &'a AgentId),
    /// A tool, by its name or id.
    Tool(&'a str),
}

/// An answer of a desk.
pub type Told<'a, T = Value> = BoxFuture<'a, Result<T, DeskError>>;

/// Which limits are asked about.
#[derive(Debug, Clone, Default)]
pub struct LimitsAsked {
    /// One limit or cap; none: all.
    pub limit: Option<String>,
    /// What calls of this tenant may meet.
    pub tenant: Option<TenantId>,
    /// What calls of this agent of the tenant may meet.
    pub agent: Option<AgentId>,
    /// Counters of each, the fullest first, from 1 to 100.
    pub top: u8,
}

/// Tells operators what takes the configuration: the views of `tickfleet top`, `explain`, `limits` and
/// `config print`.
pub trait Desk: Send + Sync {
    /// The fleet as it is now: backlog, rates, processes, tools by outcome.
    fn overview(&self) -> Told<'_>;

    /// The story of a turn, call or task, `<turn>` or `<turn>/<position>`; without a tenant it is looked for at all.
    /// `{"story": …, "lines": […]}`: as data, and line by line in words. Numbers in it keep their digits.
    fn explain<'a>(&'a self, tenant: Option<&'a TenantId>, id: &'a str) -> Told<'a, Box<RawValue>>;

    /// Limits and caps with their fullest counters.
    fn limits<'a>(&'a self, asked: &'a LimitsAsked) -> Told<'a>;

    /// The configuration as this gateway reads it: settings with where each comes from, and the files of the policy, with
    /// secrets masked.
    fn configuration(&self) -> Told<'_>;

    /// Rules, conditions of facts and limits as the configuration has them.
    fn rules(&self) -> Told<'_, Vec<RuleHere>>;

    /// All tenants.
    fn tenants(&self) -> Told<'_, BTreeSet<TenantId>>;

    /// All tenants, each with the time zone of its days.
    fn zones(&self) -> Told<'_, BTreeMap<TenantId, Tz>>;

    /// The roles of an approver as the configuration has them now; none where it names no such one.
    fn approver<'a>(&'a self, name: &'a str) -> Told<'a, Option<BTreeSet<String>>>;

    /// The name of a tool, given its name or its id.
    fn tool_name<'a>(&'a self, given: &'a str) -> Told<'a, String>;

    /// As [`Self::tool_name`], but the id of one version of a tool stays: it is switched alone.
    fn tool_switched<'a>(&'a self, given: &'a str) -> Told<'a, String>;

    /// Says that the fleet has nothing of that name, with the nearest names; none where it has, or that cannot be known.
    fn unknown<'a>(&'a self, named: Named<'a>) -> Told<'a, Option<String>>;

    /// Takes secrets out of what is written down.
    fn redactor(&self) -> Arc<Redactor>;
}
