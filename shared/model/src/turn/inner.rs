//! A running tool makes inner calls. The turn ID of an inner call is derived from the outer call, so that a retry does
//! not repeat the inner call.

use crate::ids::{CallId, TurnId};
use crate::limits;

const MARK: &str = ".call-";

/// Returns `<turn>.<position>.call-<number>`; `number` counts from 1. Fails for too many or too deep calls.
pub fn inner_turn(outer: &CallId, number: usize) -> Result<TurnId, String> {
    if number > limits::INNER_CALLS_MAX {
        return Err(format!("a call makes at most {} calls of other tools", limits::INNER_CALLS_MAX));
    }
    if outer.turn.as_str().matches(MARK).count() >= limits::INNER_DEPTH_MAX {
        return Err(format!("calls may be nested at most {} levels deep", limits::INNER_DEPTH_MAX));
    }
    let id = TurnId::new(format!("{}.{}{MARK}{number}", outer.turn, outer.position));
    id.map_err(|error| format!("the turn's id is too long for the ids of inner calls: {error}"))
}

/// Returns the outer turn if `turn` is the turn of an inner call.
#[must_use]
pub fn outer_turn(turn: &TurnId) -> Option<TurnId> {
    let (outer, number) = turn.as_str().rsplit_once(MARK)?;
    let (outer, position) = outer.rsplit_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number(number) && is_number(position) { TurnId::new(outer).ok() } else { None }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn an_inner_turn_id_identifies_its_outer_turn() {
        let call = |turn: &str, position| CallId { turn: TurnId::new(turn).unwrap(), position };
        let inner = inner_turn(&call("order-7.x", 2), 1).unwrap();
        assert_eq!(inner.as_str(), "order-7.x.2.call-1");
        assert_eq!(outer_turn(&inner).unwrap().as_str(), "order-7.x");
        let deeper = inner_turn(&call("order-7.x.2.call-1", 0), 3).unwrap();
        assert_eq!(outer_turn(&deeper), Some(inner));
        for other in ["order-7", "job.step-1", "a.call-1", "a.b.call-1", "a.1.call-x", ".call-1"] {
            assert_eq!(outer_turn(&TurnId::new(other).unwrap()), None, "{other}");
        }
    }

    #[test]
    fn inner_turns_are_bounded_in_number_depth_and_id_length() {
        let call = |turn: String| CallId { turn: TurnId::new(turn).unwrap(), position: 0 };
        assert!(inner_turn(&call("t".into()), limits::INNER_CALLS_MAX).is_ok());
        assert!(inner_turn(&call("t".into()), limits::INNER_CALLS_MAX + 1).unwrap_err().contains("at most"));
        let deep = format!("t{}", ".0.call-1".repeat(limits::INNER_DEPTH_MAX));
        assert!(inner_turn(&call(deep), 1).unwrap_err().contains("levels deep"));
        assert!(inner_turn(&call("t".repeat(limits::ID_BYTES_MAX)), 1).unwrap_err().contains("too long"));
    }
}
