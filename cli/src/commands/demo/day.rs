//! The scripted day: turns as submitters send them (`day.json`), each with its time and its scripted faults.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use serde_json::{Value, json};
use tickfleet_model::{TenantId, Turn};
use tickfleet_protocol::parse_turn;

pub(super) const TENANT: &str = "atlas-ux";
const HOUR: Duration = Duration::from_secs(1);
const DAY: &str = include_str!("day.json");

#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) enum ServiceResponse {
    #[default]
    #[serde(rename = "ok")]
    Ok,
    #[serde(rename = "429")]
    SlowDown,
    #[serde(rename = "503")]
    Unavailable,
    #[serde(rename = "403")]
    Forbidden,
    /// The service handles the request, but the connection breaks during the response.
    #[serde(rename = "cut")]
    Cut,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// In the form `HH:MM`. The times of the entries ascend.
    at: String,
    /// The rest of a sentence that begins with the agent's name.
    story: String,
    /// The tenant and the ID are added later.
    turn: Value,
    /// Repeats a single raw call this many times. `{n}` in the call is replaced by 1, 2, ….
    #[serde(default)]
    repeat: Option<usize>,
    /// Responses to the first requests of the turn, in order. Later requests succeed.
    #[serde(default)]
    stand_in: Vec<ServiceResponse>,
    #[serde(default)]
    expires_after_ms: Option<i64>,
    /// The reason of a cancellation; `None` does not cancel the turn.
    #[serde(default)]
    cancel: Option<String>,
    #[serde(default = "once")]
    submits: usize,
}

const fn once() -> usize {
    1
}

pub(super) struct Planned {
    pub(super) at: String,
    pub(super) after: Duration,
    pub(super) story: String,
    pub(super) turn: Turn,
    /// The fake services recognize each call by this text, query or title.
    pub(super) asks: Vec<Option<String>>,
    pub(super) stand_in: Vec<ServiceResponse>,
    pub(super) expires_after_ms: Option<i64>,
    pub(super) cancel: Option<String>,
    pub(super) submits: usize,
}

impl Planned {
    pub(super) fn turn_id(&self) -> String {
        self.turn.id.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

pub(super) fn plan() -> Result<Vec<Planned>> {
    let entries: Vec<Entry> = serde_json::from_str(DAY).context("day.json")?;
    let mut begin = None;
    let mut planned = Vec::with_capacity(entries.len());
    for entry in entries {
        let at = entry.at.clone();
        let minutes = minutes(&at).with_context(|| format!("day.json: {at} is not a time"))?;
        let since = minutes.saturating_sub(*begin.get_or_insert(minutes));
        planned.push(of(entry, HOUR * since / 60).with_context(|| format!("day.json at {at}"))?);
    }
    Ok(planned)
}

fn minutes(at: &str) -> Option<u32> {
    let (hours, minutes) = at.split_once(':')?;
    Some(hours.parse::<u32>().ok()? * 60 + minutes.parse::<u32>().ok()?)
}

fn of(entry: Entry, after: Duration) -> Result<Planned> {
    let mut message = entry.turn;
    if let Some(times) = entry.repeat {
        message["calls"] = repeated(&message["calls"][0], times)?;
    }
    let agent = message["agent"].as_str().unwrap_or_default();
    // With a chosen ID, it is safe to submit the turn twice.
    let id = format!("{}-{agent}", entry.at.replace(':', ""));
    message["turn_id"] = json!(id);
    message["tenant"] = json!(TENANT);
    let turn = parse_turn(message.to_string().as_bytes()).map_err(|refusal| anyhow!(refusal.message))?;
    let asks = turn.calls.iter().map(|call| asked(&call.arguments)).collect();
    Ok(Planned {
        at: entry.at,
        after,
        story: entry.story,
        turn,
        asks,
        stand_in: entry.stand_in,
        expires_after_ms: entry.expires_after_ms,
        cancel: entry.cancel,
        submits: entry.submits,
    })
}

fn repeated(call: &Value, times: usize) -> Result<Value> {
    let text = call.to_string();
    let calls = (1..=times).map(|n| serde_json::from_str(&text.replace("{n}", &n.to_string())));
    Ok(Value::Array(calls.collect::<Result<_, _>>()?))
}

fn asked(arguments: &str) -> Option<String> {
    let arguments: Value = serde_json::from_str(arguments).ok()?;
    let asked = ["content", "message", "query", "title"].iter().find_map(|name| arguments.get(*name))?;
    asked.as_str().map(ToOwned::to_owned)
}

pub(super) fn tenant() -> Result<TenantId> {
    TenantId::new(TENANT).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_plan_is_in_order_and_its_turns_and_requests_are_unique() {
        let day = plan().unwrap();
        assert!(day.len() >= 40);
        assert!(day.windows(2).all(|pair| pair[0].after <= pair[1].after));
        let ids: BTreeSet<_> = day.iter().map(|planned| planned.turn.id.clone().unwrap()).collect();
        assert_eq!(ids.len(), day.len());
        let asks: Vec<_> = day.iter().flat_map(|planned| planned.asks.iter().flatten()).collect();
        assert_eq!(asks.iter().collect::<BTreeSet<_>>().len(), asks.len());
    }

    #[test]
    fn a_repeated_call_is_numbered_from_one() {
        let calls = repeated(&json!({"name": "x", "arguments": {"message": "no {n}"}}), 2).unwrap();
        assert_eq!(calls[1]["arguments"]["message"], "no 2");
    }
}
