//! Cancels many turns and tasks, and records the cancellation in the audit log.

use std::collections::BTreeMap;

use tickfleet_core::audit::Report;
use tickfleet_model::TenantId;
use tickfleet_protocol::{AuditAction, AuditValue, OperatorAct};
use tickfleet_store::{CancelResult, StoreError, TurnName, TurnView};

use crate::Client;
use crate::operate::Operator;

/// In one audit entry.
const NAMED_MAX: usize = 100;

/// How the turns and tasks were selected.
#[derive(Debug, Clone, Copy)]
pub enum CancelSelection<'a> {
    /// By name.
    Named,
    /// By name. An unknown turn or task ends when it arrives.
    Early,
    /// By this filter, which the audit log records.
    Filter(&'a str),
}

/// Cancels turns and tasks, and returns the results in the same order. First, writes an entry to the audit log of each
/// tenant. After an error, some turns may have been canceled, and the call can be repeated.
pub async fn end_many(
    client: &Client,
    names: &[TurnName],
    selection: CancelSelection<'_>,
    operator: Operator<'_>,
) -> Result<Vec<CancelResult>, StoreError> {
    let mut known = Vec::with_capacity(names.len());
    for name in names {
        known.push(matches!(selection, CancelSelection::Early) || turn_exists(client, name).await?);
    }
    let found: Vec<TurnName> =
        names.iter().zip(&known).filter(|(_, known)| **known).map(|(name, _)| name.clone()).collect();
    note(client, &found, selection, operator).await?;
    // The results of canceled calls contain the operator together with the reason.
    let reason = format!("{}: {}", operator.by, operator.reason);
    let mut answers = Vec::with_capacity(names.len());
    for (name, known) in names.iter().zip(known) {
        answers.push(if known { end(client, name, &reason).await? } else { CancelResult::Unknown });
    }
    Ok(answers)
}

/// Returns true if a turn or task with this name waits for admission, is in progress, or ended with a stored record.
async fn turn_exists(client: &Client, name: &TurnName) -> Result<bool, StoreError> {
    let store = client.store(&name.tenant);
    let is_known = || async { Ok::<_, StoreError>(!matches!(store.turn_view(name).await?, TurnView::Unknown)) };
    // If a scheduler admits the turn between the first two reads, the third read finds the record.
    Ok(is_known().await? || client.undecided(name).await?.is_some() || is_known().await?)
}

async fn end(client: &Client, name: &TurnName, reason: &str) -> Result<CancelResult, StoreError> {
    let is_task = match client.store(&name.tenant).turn_view(name).await? {
        TurnView::Live(live) => live.turn.is_task(),
        TurnView::Finished(_) | TurnView::Unknown => false,
    };
    if is_task {
        return Ok(client.cancel_task(name, reason).await?.result);
    }
    client.cancel(name, reason).await
}

/// Writes one audit entry per tenant before an operator cancels these turns and tasks.
async fn note(
    client: &Client,
    names: &[TurnName],
    selection: CancelSelection<'_>,
    operator: Operator<'_>,
) -> Result<(), StoreError> {
    let mut by_tenant: BTreeMap<&TenantId, Vec<&str>> = BTreeMap::new();
    for name in names {
        by_tenant.entry(&name.tenant).or_default().push(name.turn.as_str());
    }
    for (tenant, turns) in by_tenant {
        let store = client.store(tenant);
        let count = turns.len().to_string();
        let listed = turns.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(" ");
        let mut details = vec![("count", AuditValue::Name(&count))];
        if let CancelSelection::Filter(filter) = selection {
            details.push(("filter", AuditValue::Text(filter)));
        }
        details.push(("turns", AuditValue::Name(&listed)));
        let (entity_type, id) = match turns.as_slice() {
            [turn] => ("turn", format!("{tenant}:{turn}")),
            _ => ("turns", format!("{count} turns of {tenant}")),
        };
        let act = OperatorAct {
            action: AuditAction::Cancel,
            entity_type,
            entity_id: &id,
            did: &format!("canceled {id}"),
            tenant: Some(tenant),
            details: &details,
        };
        let now_ms = store.now_ms().await?;
        store.decide(Report(store.audit_append(&act, operator, now_ms))).await?;
    }
    Ok(())
}
