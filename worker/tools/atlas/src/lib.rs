//! The tools of the Atlas business that come with every worker, written in Rust: what an agent may know of its account
//! ([`account`]), and X ([`x`]). `send_telegram_message` needs no code: `config/tools.yaml` declares it.
//!
//! They are there for whom a row of the permission matrix names, and where `tools.yaml` declares no `http` tool of the
//! same name. What `tools.yaml` says of them (description, schema, timeout) holds.

pub mod account;
pub mod x;

use std::sync::Arc;

use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_store::Store;
use tickfleet_tools::{Environment, TypedTool};

/// The names of all of them.
pub const NAMES: [&str; 4] = ["get_subscription_info", "get_team_members", "post_to_x", "search_x"];

/// All of them over the shard of `store`. `home` is the shard in which grants of token services are kept: the same for
/// every worker of the fleet.
///
/// # Errors
/// The variable of the environment that cannot be used, and why.
pub fn all(
    store: &Store,
    home: &Store,
    active: &Arc<PolicyHandle>,
    environment: &Environment,
) -> Result<Vec<TypedTool>, String> {
    let mut tools = vec![
        account::get_subscription_info(store.clone(), active.clone()),
        account::get_team_members(store.clone(), active.clone()),
    ];
    tools.extend(x::all(home, environment)?);
    Ok(tools)
}
