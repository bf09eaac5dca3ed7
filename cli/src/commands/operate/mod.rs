//! Commands for operators.

pub(crate) mod audit_note;
mod causes;
pub(crate) mod dead;
mod history;
pub(crate) mod pause;
pub(crate) mod stats;
pub(crate) mod turns;
pub(crate) mod workers;

use tickfleet_model::{TenantId, TurnId};
use tickfleet_store::TurnName;

use crate::failure::Failure;

/// Accepts `tenant id` or `tenant:id`.
pub(crate) fn parse_turn_name(tenant: &str, id: Option<&TurnId>) -> Result<TurnName, Failure> {
    match id {
        Some(turn) => Ok(TurnName { tenant: TenantId::new(tenant)?, turn: turn.clone() }),
        None => TurnName::parse(tenant)
            .ok_or_else(|| Failure::usage("expected tenant and id, or tenant:id, such as demo:t1700000000000-0")),
    }
}
