//! What is read of an entry.

use std::borrow::Cow;

use chrono::DateTime;
use serde::Deserialize;
use tickfleet_model::AdmissionNote;

use crate::seal::EntryId;

/// A call that has ended.
pub(super) struct CallEntry {
    /// The entry's id.
    pub(super) id: EntryId,
    /// Whose call.
    pub(super) tenant: String,
    /// The agent that made it.
    pub(super) agent: String,
    /// `<turn>/<position>`.
    pub(super) call: String,
    /// The turn.
    pub(super) turn: String,
    /// The tool.
    pub(super) tool: String,
    /// When it ended, ms by the shard's clock.
    pub(super) ended_ms: i64,
    /// How long its last try took, ms.
    pub(super) duration_ms: i64,
    /// What became of it.
    pub(super) outcome: String,
    /// The call whose outcome it was told, where it did not run itself.
    pub(super) repeats: Option<String>,
    /// The effect that it had claimed.
    pub(super) effect: Option<EffectFacts>,
    /// When and by which counters it was admitted, where that is known.
    pub(super) admission: Option<AdmissionNote>,
    /// That as it stands in the entry, with what stands behind it.
    pub(super) admitted: String,
}

/// An entry.
pub(super) enum EntryRead {
    /// Of a call.
    Call(Box<CallEntry>),
    /// An operator reset a counter, `limit@counter`, that could not be read.
    Remade(String),
    /// Of something else.
    Other,
}

/// An effect that a call had claimed.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct EffectFacts {
    /// What makes calls equal, hashed.
    pub(super) key: String,
    /// For how long after its end, ms.
    pub(super) window_ms: i64,
}

#[derive(Deserialize)]
struct Said<'a> {
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
    meta: Meta,
}

#[derive(Deserialize, Default)]
struct Meta {
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
    /// Reads an entry.
    pub(super) fn of(id: EntryId, admitted: &str, text: &str) -> Self {
        let Ok(said) = serde_json::from_str::<Said<'_>>(text) else { return Self::Other };
        if said.action == "LIMIT_RESET" {
            let Meta { limit, counter, window_ends_ms, .. } = said.meta;
            return if window_ends_ms.is_none() { Self::Remade(format!("{limit}@{counter}")) } else { Self::Other };
        }
        CallEntry::of(id, admitted, said).map_or(Self::Other, |call| Self::Call(Box::new(call)))
    }
}

impl CallEntry {
    /// Its admission alone: calls of one slice have the same. What stands behind it depends on the build that wrote it down.
    pub(super) fn admission_text(&self) -> &str {
        self.admitted.split(';').next().unwrap_or_default()
    }

    /// Takes it from an entry; none where it is not that of a call.
    fn of(id: EntryId, admitted: &str, said: Said<'_>) -> Option<Self> {
        if said.action != "TOOL_CALL" {
            return None;
        }
        let meta = said.meta;
        Some(Self {
            id,
            tenant: said.tenant.unwrap_or_default(),
            agent: meta.agent.unwrap_or_else(|| said.actor_id.into_owned()),
            call: meta.call,
            turn: meta.turn,
            tool: said.entity_id.into_owned(),
            ended_ms: DateTime::parse_from_rfc3339(&said.timestamp).ok()?.timestamp_millis(),
            duration_ms: meta.duration_ms,
            outcome: meta.outcome,
            repeats: meta.repeats,
            effect: meta.effect,
            admission: AdmissionNote::read(admitted),
            admitted: admitted.to_owned(),
        })
    }
}
