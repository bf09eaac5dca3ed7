//! Checks whether a process can work now, for `/readyz`.

use std::collections::BTreeSet;
use std::time::Duration;

use tickfleet_model::Policy;
use tickfleet_ops::health::NotReady;
use tickfleet_store::{Store, StoreError, TlsFault};
use tokio::time::timeout;

/// A probe's timeout is longer, so that the probe receives the reason.
const ASK_TIMEOUT: Duration = Duration::from_millis(700);

/// Returns the primaries that the Sentinels or cluster nodes name, if any are configured.
pub(crate) async fn ready(stores: &[Store]) -> Result<String, NotReady> {
    let mut primaries = BTreeSet::new();
    for store in stores {
        match timeout(ASK_TIMEOUT, store.probe()).await {
            Ok(answer) => answer.map_err(|error| not_ready(&error))?,
            Err(_) => {
                let why = store.connection().primary().and_then(Result::err);
                let why = why.unwrap_or_else(|| format!("no answer within {ASK_TIMEOUT:?}"));
                let remedy = TlsFault::of(&why).map(|fault| format!("; {}", fault.remedy())).unwrap_or_default();
                return Err(format!("{why}{remedy}").into());
            }
        }
        primaries.extend(store.connection().primary().and_then(Result::ok));
    }
    Ok(primaries.iter().map(|primary| format!("primary {primary}\n")).collect())
}

/// A policy that rejects every turn leaves the process ready, because it can reject turns.
pub(crate) fn warning(policy: &Policy) -> String {
    policy.all_rejected_reason().map(|why| format!("warning: {why}\n")).unwrap_or_default()
}

fn not_ready(error: &StoreError) -> NotReady {
    let refusal = error.refusal();
    let prefix = if refusal.is_some() { "Redis rejects commands: " } else { "" };
    let remedy = error.remedy().map(|remedy| format!("; {remedy}")).unwrap_or_default();
    NotReady { reason: format!("{prefix}{error}{remedy}"), refusal }
}
