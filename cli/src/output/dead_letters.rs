//! Finds dead letters: rejected turns and tasks in the dead stream.

use tickfleet_store::{DeadLetter, Inbound, Store, StoreError, TurnName};

const SEARCHED: usize = 500;

pub(crate) async fn about(store: &Store, name: &TurnName) -> Result<Option<DeadLetter>, StoreError> {
    let tenant = name.tenant.as_str();
    let minted = minted(name);
    let is_it = |letter: &DeadLetter| {
        let by_id = ["turn_id", "task_id"].iter().any(|field| has_member(&letter.raw, field, name.turn.as_str()));
        // A dead letter has no tenant if its message requested no reply or could not get one. The raw text is then
        // searched.
        let of_tenant =
            letter.tenant == tenant || letter.tenant.is_empty() && has_member(&letter.raw, "tenant", tenant);
        of_tenant && (by_id || minted.is_some_and(|(_, entry)| letter.entry == entry))
    };
    Ok(store.dead_letters(SEARCHED).await?.into_iter().find(is_it))
}

pub(crate) fn minted(name: &TurnName) -> Option<(Inbound, &str)> {
    let kinds = [(Inbound::Turns, 't'), (Inbound::Tasks, 'k')];
    kinds.into_iter().find_map(|(from, prefix)| Some((from, name.turn.as_str().strip_prefix(prefix)?)))
}

/// Searches the text, because the message may be truncated. IDs contain no characters that JSON escapes.
fn has_member(raw: &str, member: &str, id: &str) -> bool {
    ["", " "].iter().any(|blank| raw.contains(&format!("\"{member}\":{blank}\"{id}\"")))
}
