//! Text that a model wrote: plain answers that contain calls, and JSON alone.

use serde_json::Value;
use tickfleet_model::limits;
use tickfleet_protocol::json::{Bounds, Document, check, leading, push_quoted, unescape};
use tickfleet_protocol::text::{calls_in, problem};
use tickfleet_protocol::{cut_output, demangle, mangle};

use crate::bounds::{assert_json, depth, text};

const BOUNDS: Bounds = Bounds { bytes_max: limits::TURN_BYTES_MAX, depth_max: limits::JSON_DEPTH_MAX };

pub(super) fn answer(bytes: &[u8]) {
    let answer = text(bytes);
    let calls = calls_in(&answer);
    assert!(calls.len() <= limits::CALLS_PER_TURN_MAX + 1, "{} calls", calls.len());
    let bytes: usize = calls.iter().map(|call| call.arguments.len()).sum();
    assert!(bytes <= answer.len() + 2 * calls.len(), "{bytes} bytes of arguments out of {}", answer.len());
    for (position, call) in calls.iter().enumerate() {
        match problem(call) {
            Some(words) => {
                assert_eq!(position + 1, calls.len(), "nothing is read behind what cannot be read");
                assert!(words.len() <= limits::ERROR_BYTES_MAX, "{words}");
            }
            None => {
                assert!(!call.tool.is_empty(), "a call without a tool");
                assert_json(&call.arguments);
            }
        }
    }
}

pub(super) fn json(bytes: &[u8]) {
    let judged = check(bytes, BOUNDS);
    let Ok(given) = std::str::from_utf8(bytes) else {
        assert!(judged.is_err(), "no text is no JSON");
        return;
    };
    let (document, error) = Document::read(given, BOUNDS.depth_max, BOUNDS.depth_max);
    match &judged {
        Ok(()) => {
            assert!(error.is_none(), "{error:?}");
            assert_json(given);
            if let Ok(value) = serde_json::from_str::<Value>(given) {
                assert!(depth(&value) <= BOUNDS.depth_max, "it nests too deep");
            }
            assert_eq!(leading(given, BOUNDS.depth_max).ok(), Some(given.trim_end().len()), "{given}");
            let whole = document.root().and_then(|root| root.text()).unwrap_or_default();
            assert_eq!(whole, given.trim_matches([' ', '\t', '\r', '\n']), "the root is the text");
            for bytes_max in [150, 1_000, 64 * 1024] {
                let cut = cut_output(whole, bytes_max);
                assert!(cut.len() <= bytes_max, "{} > {bytes_max}", cut.len());
                assert_json(&cut);
            }
        }
        Err(refused) => {
            assert!(refused.byte <= bytes.len() && refused.line >= 1 && refused.column >= 1);
            assert!(refused.to_string().len() <= limits::ERROR_BYTES_MAX, "{refused}");
            assert_eq!(error.as_ref(), Some(refused), "both readers find the same");
        }
    }
    strings(given);
}

fn strings(given: &str) {
    let mut quoted = String::new();
    push_quoted(&mut quoted, given);
    assert_eq!(serde_json::from_str::<String>(&quoted).expect("a quoted text is JSON"), given);
    assert_eq!(unescape(&quoted[1..quoted.len() - 1]).as_deref(), Some(given));
    assert_eq!(demangle(&mangle(given)), given, "a name comes back");
}
