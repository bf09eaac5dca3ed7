//! The tools of the Atlas sample business that are written in Rust. Every worker has them: information about an agent's
//! account ([`account`]), and X ([`x`]). `send_telegram_message` needs no code, because `config/tools.yaml` declares
//! it.
//!
//! An agent may use these tools if a row of the permission matrix allows it. If `tools.yaml` declares an `http` tool of
//! the same name, that tool is used instead. Descriptions, schemas and timeouts in `tools.yaml` take precedence.

pub mod account;
pub mod x;

use std::sync::Arc;

use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_store::Store;
use tickfleet_tools::{Environment, TypedTool};

pub const NAMES: [&str; 4] = ["get_subscription_info", "get_team_members", "post_to_x", "search_x"];

/// `home` is the shard that stores the access and refresh tokens of X. Every worker of the fleet uses the same `home`.
/// The error names an environment variable that cannot be used.
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
