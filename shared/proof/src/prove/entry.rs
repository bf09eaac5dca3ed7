//! The parts of an entry that the checks need.

use std::borrow::Cow;

use chrono::DateTime;
use serde::Deserialize;
use tickfleet_model::AdmissionNote;

use crate::seal::EntryId;

pub(super) struct CallEntry {
    pub(super) id: EntryId,
    pub(super) tenant: String,
    pub(super) agent: String,
    /// `<turn>/<position>`.
    pub(super) call: String,
    pub(super) turn: String,
    pub(super) tool: String,
    /// When the call ended (ms by the shard's clock).
    pub(super) ended_ms: i64,
    /// The duration of the last attempt (ms).
    pub(super) duration_ms: i64,
    pub(super) outcome: String,
    /// If the call did not run: the equal call whose outcome it got.
    pub(super) repeats: Option<String>,
    pub(super) effect: Option<EffectFacts>,
    /// When the call was admitted and which counters the admission debited, if known.
    pub(super) admission: Option<AdmissionNote>,
    /// The text of the admission, with the notes after the admission.
    pub(super) admitted: String,
}

pub(super) enum EntryRead {
    Call(Box<CallEntry>),
    /// An operator reset a counter that was unreadable, named `limit@counter`.
    Remade(String),
    Other,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct EffectFacts {
    /// A hash of the values by which two calls are compared.
    pub(super) key: String,
    /// How long the claim is valid after the call ended (ms).
    pub(super) window_ms: i64,
}

#[derive(Deserialize)]
struct RawEntry<'a> {
    #[serde(borrow)]
    timestamp: Cow<'a, str>,
    #[serde(borrow)]
    action: Cow<'a, str>,
    #[serde(borrow)]
    entity_id: Cow<'a, str>,
    #[serde(borrow)]
    actor_id: Cow<'a, str>,
    #[serde(default)]
    tenant: Option<String>,
    meta: RawMeta,
}

#[derive(Deserialize, Default)]
struct RawMeta {
    #[serde(default)]
    call: String,
    #[serde(default)]
    turn: String,
    #[serde(default)]
    agent: Option<String>,
    #[serde(default)]
    outcome: String,
    #[serde(default)]
    duration_ms: i64,
    #[serde(default)]
    repeats: Option<String>,
    #[serde(default)]
    effect: Option<EffectFacts>,
    #[serde(default)]
    limit: String,
    #[serde(default)]
    counter: String,
    #[serde(default)]
    window_ends_ms: Option<i64>,
}

impl EntryRead {
    pub(super) fn of(id: EntryId, admitted: &str, text: &str) -> Self {
        let Ok(raw) = serde_json::from_str::<RawEntry<'_>>(text) else { return Self::Other };
        if raw.action == "LIMIT_RESET" {
            let RawMeta { limit, counter, window_ends_ms, .. } = raw.meta;
            return if window_ends_ms.is_none() { Self::Remade(format!("{limit}@{counter}")) } else { Self::Other };
        }
        CallEntry::of(id, admitted, raw).map_or(Self::Other, |call| Self::Call(Box::new(call)))
    }
}

impl CallEntry {
    /// The admission without the notes after it. The admission is the same for all calls of a slice. The notes differ
    /// between versions of the fleet.
    pub(super) fn admission_text(&self) -> &str {
        self.admitted.split(';').next().unwrap_or_default()
    }

    /// Returns `None` if the entry does not describe a call.
    fn of(id: EntryId, admitted: &str, raw: RawEntry<'_>) -> Option<Self> {
        if raw.action != "TOOL_CALL" {
            return None;
        }
        let meta = raw.meta;
        Some(Self {
            id,
            tenant: raw.tenant.unwrap_or_default(),
            agent: meta.agent.unwrap_or_else(|| raw.actor_id.into_owned()),
            call: meta.call,
            turn: meta.turn,
            tool: raw.entity_id.into_owned(),
            ended_ms: DateTime::parse_from_rfc3339(&raw.timestamp).ok()?.timestamp_millis(),
            duration_ms: meta.duration_ms,
            outcome: meta.outcome,
            repeats: meta.repeats,
            effect: meta.effect,
            admission: AdmissionNote::read(admitted),
            admitted: admitted.to_owned(),
        })
    }
}
