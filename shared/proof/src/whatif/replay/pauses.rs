//! Reads the pauses of tenants and agents from the log. During a pause, the cap on calls per tick is 0.

use std::collections::HashMap;

use crate::whatif::recorded::Pause;
use crate::whatif::turns::{Decision, DispatchDecision, Turn};

/// The key is `<tenant>` or `<tenant>:<agent>`. The values are the beginning and end (ms) of each pause, in order.
#[derive(Debug, Default)]
pub(super) struct Pauses(HashMap<String, Vec<(i64, i64)>>);

impl Pauses {
    /// A pause without a beginning began before the log. A pause without an end has not ended yet.
    pub(super) fn of(acts: &[Pause]) -> Self {
        let mut acts: Vec<&Pause> = acts.iter().collect();
        acts.sort_by_key(|act| act.at_ms);
        let mut pauses: HashMap<String, Vec<(i64, i64)>> = HashMap::new();
        for act in acts {
            let of = pauses.entry(act.who.clone()).or_default();
            let is_open = of.last().is_some_and(|(_, to)| *to == i64::MAX);
            match (act.ends, of.last_mut()) {
                (false, _) if !is_open => of.push((act.at_ms, i64::MAX)),
                (true, Some(last)) if is_open => last.1 = act.at_ms,
                (true, None) => of.push((i64::MIN, act.at_ms)),
                // Ignore a repeated action: parts of an export can overlap.
                _ => {}
            }
        }
        Self(pauses)
    }

    /// The end (ms) of the pause that applies at `now_ms`. In the millisecond in which a pause begins or ends, the
    /// recorded decision `on` shows whether the pause applied.
    pub(super) fn until(&self, turn: &Turn, on: Option<&Decision>, now_ms: i64) -> Option<i64> {
        if self.0.is_empty() {
            return None;
        }
        let went = on.is_some_and(|on| matches!(on.what, DispatchDecision::Go(..)));
        let lasts = |&&(from, to): &&(i64, i64)| {
            if went { from < now_ms && now_ms < to } else { from <= now_ms && now_ms <= to }
        };
        let of = |who: &str| self.0.get(who).and_then(|of| of.iter().find(lasts)).map(|(_, to)| *to);
        of(&turn.tenant).max(of(&super::agent_of(turn)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(at_ms: i64, ends: bool) -> Pause {
        Pause { at_ms, who: "acme:kelly".into(), ends }
    }

    #[test]
    fn a_pause_without_a_recorded_start_or_end_is_open_ended() {
        let of = |acts: &[Pause]| Pauses::of(acts).0.remove("acme:kelly").unwrap_or_default();
        assert_eq!(of(&[act(5, false), act(9, true), act(20, false)]), [(5, 9), (20, i64::MAX)]);
        assert_eq!(of(&[act(9, true), act(20, false), act(20, false), act(30, true)]), [(i64::MIN, 9), (20, 30)]);
        assert_eq!(of(&[act(5, false), act(9, true), act(9, true)]), [(5, 9)]);
    }
}
