//! Whether a process can do its work now: for `/readyz`.

use std::collections::BTreeSet;
use std::time::Duration;

use tickfleet_store::Store;
use tokio::time::timeout;

/// Longest wait for one shard: less than a probe waits, so that the reason is told and not the waiting.
const ASK_TIMEOUT: Duration = Duration::from_millis(700);

/// Asks every shard. Answers where the primaries are, where sentinels or nodes of a cluster name them, else nothing.
///
/// # Errors
/// The first shard that does not answer, for people; and why there is no primary, where somebody is asked for it.
pub(crate) async fn ready(stores: &[Store]) -> Result<String, String> {
    let mut primaries = BTreeSet::new();
    for store in stores {
        match timeout(ASK_TIMEOUT, store.now_ms()).await {
            Ok(answer) => answer.map_err(|error| error.to_string())?,
            Err(_) => {
                let why = store.connection().primary().and_then(Result::err);
                return Err(why.unwrap_or_else(|| format!("no answer within {ASK_TIMEOUT:?}")));
            }
        };
        primaries.extend(store.connection().primary().and_then(Result::ok));
    }
    Ok(primaries.iter().map(|primary| format!("primary {primary}\n")).collect())
}
