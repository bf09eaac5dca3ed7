//! Checks that no effect happened twice: while a claim was valid, at most one of the calls with this claim may have
//! run.

use std::collections::HashMap;

use tickfleet_model::outcome::EffectHappened;

use super::Claim;
use super::entry::CallEntry;

/// Entries are written later than claims, so the last tenth of a claim's window, up to this maximum, is not checked.
const NOT_JUDGED_MS_MAX: i64 = 60_000;

struct EffectRun {
    call: String,
    began_ms: i64,
    ended_ms: i64,
    window_ms: i64,
}

#[derive(Default)]
pub(super) struct Effects {
    ran: HashMap<String, Vec<EffectRun>>,
    repeated: u64,
}

impl Effects {
    pub(super) fn add(&mut self, call: &CallEntry<'_>) {
        let meta = &call.entry.meta;
        if meta.repeats.is_some() {
            // The call got the result of an equal call.
            self.repeated += 1;
            return;
        }
        let happened = meta.outcome.is_some_and(|outcome| outcome.happened() != EffectHappened::No);
        let Some(effect) = meta.effect.as_ref().filter(|_| happened) else { return };
        let key = format!("{}:{}:{}", call.tenant(), call.entry.entity_id, effect.key);
        self.ran.entry(key).or_default().push(EffectRun {
            call: call.call().to_owned(),
            began_ms: call.ended_ms - i64::try_from(meta.duration_ms).unwrap_or(i64::MAX),
            ended_ms: call.ended_ms,
            window_ms: effect.window_ms,
        });
    }

    pub(super) fn claim(self) -> Claim {
        let mut claim = Claim::new(
            "No effect key ran twice within its window.",
            "keys",
            "calls of tools without an effect key have none",
        );
        let mut keys: Vec<(String, Vec<EffectRun>)> = self.ran.into_iter().collect();
        keys.sort_by(|a, b| a.0.cmp(&b.0));
        for (key, mut calls) in keys {
            claim.checked += 1;
            calls.sort_by_key(|ran| ran.began_ms);
            for pair in calls.windows(2) {
                let judged_ms = pair[0].window_ms - (pair[0].window_ms / 10).min(NOT_JUDGED_MS_MAX);
                if pair[1].began_ms < pair[0].ended_ms + judged_ms {
                    claim.violated(format!("{key} ran as {} and again as {}", pair[0].call, pair[1].call));
                }
            }
        }
        claim
    }
}
