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
    /// That as it stands in the entry: calls of one slice have the same.
    pub(super) admitted: String,
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
}

impl CallEntry {
    /// Reads an entry; none where it is not that of a call.
    pub(super) fn read(id: EntryId, admitted: &str, text: &str) -> Option<Self> {
        let said: Said<'_> = serde_json::from_str(text).ok()?;
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
