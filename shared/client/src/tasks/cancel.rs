use std::collections::BTreeSet;

use serde::Serialize;
use tickfleet_model::TurnId;
use tickfleet_store::{CancelResult, Store, StoreError, TurnName, TurnView};

/// Longer than any history, so that a read from this position returns no steps.
const NO_STEPS: usize = 1 << 40;
const TASKS_MAX: usize = 200;

/// A canceled task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CanceledTask {
    /// The task.
    pub task: TurnId,
    /// The result.
    pub result: CancelResult,
    /// The unfinished turns of the task's calls.
    pub turns: Vec<CanceledTurn>,
    /// The tasks that this task delegated.
    pub children: Vec<CanceledTask>,
}

/// A canceled turn of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CanceledTurn {
    /// The turn.
    pub turn: TurnId,
    /// The result of canceling the turn.
    pub result: CancelResult,
}

/// Cancels a task, its current turn, and all tasks below it. Turns and tasks below it end even if the result does not
/// list them (see [`Store::cancel`]).
///
/// # Errors
/// [`StoreError`]; the turns and tasks already canceled still end. The call can be repeated.
pub async fn cancel_task(store: &Store, name: &TurnName, reason: &str) -> Result<CanceledTask, StoreError> {
    // Read the tree first: after the cancel, schedulers end the turns and tasks below, so a later read can miss some.
    let branch = find_descendants(store, name, &mut BTreeSet::new()).await?;
    end(store, branch, reason, &format!("its parent was canceled: {reason}")).await
}

struct Branch {
    name: TurnName,
    awaits: Option<TurnName>,
    children: Vec<Branch>,
}

async fn find_descendants(store: &Store, name: &TurnName, seen: &mut BTreeSet<TurnId>) -> Result<Branch, StoreError> {
    seen.insert(name.turn.clone());
    let mut branch = Branch { name: name.clone(), awaits: None, children: Vec::new() };
    let awaits = store.task_steps(name, NO_STEPS).await?.live.and_then(|turn| turn.state.awaits().cloned());
    let awaits = awaits.filter(|turn| seen.insert(turn.clone()));
    if let Some(turn) = awaits {
        let turn = TurnName { tenant: name.tenant.clone(), turn };
        // A turn without a record may be waiting for admission.
        let is_there = is_live(store, &turn).await? || store.waits_for_admission(&turn).await?;
        branch.awaits = is_there.then_some(turn);
    }
    for child in store.children(name, TASKS_MAX).await? {
        let child = TurnName::task(&name.tenant, &child);
        if seen.len() < TASKS_MAX && !seen.contains(&child.turn) && is_live(store, &child).await? {
            branch.children.push(Box::pin(find_descendants(store, &child, seen)).await?);
        }
    }
    Ok(branch)
}

async fn is_live(store: &Store, name: &TurnName) -> Result<bool, StoreError> {
    Ok(matches!(store.turn_view(name).await?, TurnView::Live(_)))
}

async fn end(store: &Store, branch: Branch, reason: &str, below: &str) -> Result<CanceledTask, StoreError> {
    let result = store.cancel(&branch.name, reason).await?;
    let mut turns = Vec::new();
    let mut children = Vec::new();
    if let Some(turn) = branch.awaits {
        let result = store.cancel(&turn, below).await?;
        turns.push(CanceledTurn { turn: turn.turn, result });
    }
    for child in branch.children {
        children.push(Box::pin(end(store, child, below, below)).await?);
    }
    Ok(CanceledTask { task: branch.name.turn, result, turns, children })
}
