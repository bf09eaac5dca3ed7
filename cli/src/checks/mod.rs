//! Checks whether the server of the store is suitable for a fleet's state. Only [`problems_of_servers`] does I/O.

pub(crate) mod durable;
pub(crate) mod server;

use serde::Serialize;
use tickfleet_model::Durability;
use tickfleet_store::{Keys, Pool, StoreError};

use crate::failure::Failure;
use crate::setup::Setup;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Level {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct CheckResult {
    pub(crate) level: Level,
    pub(crate) what: &'static str,
    pub(crate) says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

impl CheckResult {
    pub(crate) fn ok(what: &'static str, says: impl Into<String>) -> Self {
        Self { level: Level::Ok, what, says: says.into(), advice: None }
    }

    pub(crate) fn warn(what: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Warn, what, says: says.into(), advice: Some(advice.into()) }
    }

    pub(crate) fn fail(what: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Fail, what, says: says.into(), advice: Some(advice.into()) }
    }
}

/// Ignores facts that a server hides from this user, because `doctor` reports such facts.
pub(crate) async fn problems_of_servers(setup: &Setup) -> Result<Vec<CheckResult>, Failure> {
    if setup.is_in_memory() {
        return Ok(Vec::new());
    }
    let pool = setup.pool()?;
    let needs = durable::durability_needs(setup);
    let keys: Vec<Keys> = setup.stores()?.iter().map(|store| store.keys().clone()).collect();
    let Some(view) = pool.cluster(&keys).await.filter(|view| !view.holders.is_empty()) else {
        return Ok(problems(&pool, &needs).await?);
    };
    let mut found: Vec<CheckResult> = Vec::new();
    for first in view.holders.iter().filter_map(|holder| keys.get(*holder.shards.first()? as usize)) {
        for problem in problems(&pool.at(first)?, &needs).await? {
            if !found.contains(&problem) {
                found.push(problem);
            }
        }
    }
    Ok(found)
}

async fn problems(pool: &Pool, needs: &[(String, Durability)]) -> Result<Vec<CheckResult>, StoreError> {
    /// These checks need no operator rights.
    const READABLE: [&str; 4] = ["version", "durability", "memory", "durable"];
    let facts = pool.server().await?;
    let found = server::check(&facts).into_iter().chain(durable::check(&facts, needs));
    let is_known = |one: &CheckResult| one.what == "version" || !one.says.contains("does not report");
    let is_problem = |one: &CheckResult| match one.level {
        Level::Ok => false,
        Level::Warn => READABLE.contains(&one.what) && is_known(one),
        Level::Fail => true,
    };
    Ok(found.filter(is_problem).collect())
}
