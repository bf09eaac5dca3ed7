//! The tools of the Atlas sample business that are written in Rust: an agent's account ([`account`]), and X ([`x`]).

pub mod account;
pub mod x;

use std::sync::Arc;

use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_store::Store;
use tickfleet_tools::{Environment, TypedTool};

pub const NAMES: [&str; 4] = ["get_subscription_info", "get_team_members", "post_to_x", "search_x"];

/// `home` is the shard that stores the tokens of X. All workers of the fleet must use the same `home`.
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
