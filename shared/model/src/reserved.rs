//! The fleet derives the IDs of some work from other IDs, and finds this work by ID. A caller with such an ID could
//! replace the fleet's turn or get its result.

/// Length of an ID's hexadecimal part: half of the digest from which the ID is derived.
const DELEGATED_HEX: usize = 32;

/// Names the kind of work. `None` if a caller may choose the ID.
#[must_use]
pub fn reserved(id: &str) -> Option<&'static str> {
    let mut parts = id.split('.');
    let first = parts.next().unwrap_or_default();
    let rest: Vec<&str> = parts.collect();
    if rest.iter().any(|part| is_numbered(part, "call-")) {
        return Some("calls that a tool makes");
    }
    if rest.iter().any(|part| is_numbered(part, "again-")) {
        return Some("calls that operators replay");
    }
    let is_step = |part: &&str| is_numbered(part, "step-");
    if rest.iter().any(is_step) || !rest.is_empty() && is_step(&first) {
        return Some("steps of tasks");
    }
    if id.strip_prefix("ses-").and_then(|rest| rest.rsplit_once('-')).is_some_and(|(_, number)| is_number(number)) {
        return Some("exchanges of conversations");
    }
    if id.strip_prefix("d-").is_some_and(|hex| hex.len() == DELEGATED_HEX && hex.bytes().all(is_hex)) {
        return Some("tasks that an agent delegates");
    }
    let entry = id.strip_prefix(['t', 'k']).and_then(|entry| entry.split_once('-'));
    entry
        .is_some_and(|(ms, seq)| is_number(ms) && is_number(seq))
        .then_some("turns and tasks without an id of their own")
}

fn is_numbered(part: &str, word: &str) -> bool {
    part.strip_prefix(word).is_some_and(is_number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

const fn is_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::turn::inner::inner_turn;
    use crate::{CallId, TurnId};

    #[test]
    fn ids_derived_by_the_fleet_are_reserved() {
        let outer = CallId { turn: TurnId::new("order-7.x").unwrap(), position: 2 };
        let inner = inner_turn(&outer, 1).unwrap();
        let delegated = format!("d-{}", "0a".repeat(16));
        for id in [
            inner.as_str(),
            "order-7.again-0",
            "job.step-1",
            "job.step-12.3.call-4",
            "step-3.0123456789abcdef",
            "ses-release-7-4",
            delegated.as_str(),
            "t1764130000000-0",
            "k1764130000000-12",
        ] {
            assert!(reserved(id).is_some(), "{id}");
        }
    }

    #[test]
    fn ordinary_caller_ids_are_not_reserved() {
        for id in [
            "order-17",
            "job-1",
            "step-1",
            "call-1",
            "a.step-x",
            "a.again",
            "a.b",
            "t-18",
            "t17",
            "k-1",
            "ses-talk",
            "session-4",
            "d-1",
            "m6fH2kP0aZb9",
            "p3-1",
        ] {
            assert_eq!(reserved(id), None, "{id}");
        }
    }
}
