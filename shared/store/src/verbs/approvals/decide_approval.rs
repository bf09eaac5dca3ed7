//! A person agrees to a call, or denies it.

use std::collections::BTreeSet;

use tickfleet_model::TenantId;

use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// What a person says about a call.
#[derive(Debug, Clone)]
pub struct Decision<'a> {
    /// Whose call it is.
    pub tenant: &'a TenantId,
    /// The approval.
    pub id: &'a str,
    /// Who.
    pub by: &'a str,
    /// That one's roles, as the configuration has them.
    pub roles: &'a BTreeSet<String>,
    /// True to agree, false to deny.
    pub agrees: bool,
    /// Why.
    pub reason: &'a str,
    /// What is changed of the arguments, JSON; empty where nothing is.
    pub narrowed: &'a str,
    /// What was changed of them when that one looked, likewise.
    pub seen: &'a str,
    /// What is changed of the arguments, without secrets, for notices.
    pub shown: &'a str,
    /// For the audit log: a JSON object whose last member is an object, both still open.
    pub entry: &'a str,
}

/// The outcome of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// It counts.
    Counts {
        /// `approved`, `denied`, or `waiting` for more people.
        state: String,
        /// So many more have to agree.
        missing: u32,
    },
    /// There is no such approval: never asked for, or it ended longer ago than they are kept.
    Unknown,
    /// It is an agent's own call.
    Own,
    /// Somebody else has to decide.
    Role,
    /// It was decided before, has expired, or its call has it: its state.
    Ended(String),
    /// Its call is over, or another one by now.
    Gone,
    /// The arguments are others than that one has looked at.
    Changed,
    /// That one has agreed already.
    Again,
}

impl Store {
    /// A person agrees to a call, or denies it.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be said again.
    pub async fn decide_approval(&self, decision: &Decision<'_>) -> Result<Decided, StoreError> {
        let roles: Vec<&str> = decision.roles.iter().map(String::as_str).collect();
        let mut args = self.args();
        args.show(decision.tenant).text(decision.id).text(decision.by).text(roles.join(","));
        args.text(if decision.agrees { "approve" } else { "deny" }).text(decision.reason);
        args.text(decision.narrowed).text(decision.seen).text(decision.entry).text(decision.shown);
        let value = self.run(Verb::DecideApproval, args).await?;
        decided(&value)
    }
}

fn decided(value: &redis::Value) -> Result<Decided, StoreError> {
    let redis::Value::Array(values) = value else { return Err(unexpected(Verb::DecideApproval.as_str(), value)) };
    let texts: Vec<String> = values.iter().map(|value| text_of(value).unwrap_or_default()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    Ok(match texts[..] {
        ["OK", state, missing] => {
            Decided::Counts { state: state.to_owned(), missing: missing.parse().unwrap_or_default() }
        }
        ["UNKNOWN"] => Decided::Unknown,
        ["OWN"] => Decided::Own,
        ["ROLE"] => Decided::Role,
        ["ENDED", state] => Decided::Ended(state.to_owned()),
        ["GONE"] => Decided::Gone,
        ["CHANGED"] => Decided::Changed,
        ["AGAIN"] => Decided::Again,
        _ => return Err(unexpected(Verb::DecideApproval.as_str(), value)),
    })
}
