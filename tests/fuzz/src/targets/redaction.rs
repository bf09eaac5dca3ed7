//! Texts that are stored or logged must contain no secret.

use serde_json::Value;
use tickfleet_model::Redactor;
use tickfleet_protocol::json::{Bounds, check};

use crate::bounds::{assert_json, text};

/// This secret has no known shape. Only its key shows that it is a secret.
const VALUE: &str = "Tr0ub4dor9canary";
const SHAPED: &str = "ghp_canary0canary1canary2canary3canary4";

const BOUNDS: Bounds = Bounds { bytes_max: 1 << 20, depth_max: 48 };

pub(super) fn redaction(bytes: &[u8]) {
    let redactor = Redactor::new(["iban"]);
    let given = text(bytes);
    let clean = redactor.text(&given);
    assert_eq!(redactor.text(&clean), clean, "text: {given:?}");
    let clean = redactor.json(&given);
    assert_eq!(redactor.json(&clean), clean, "JSON: {given:?}");
    for bytes_max in [0, 1, 80, 4_096] {
        assert!(redactor.head(bytes, bytes_max).len() <= bytes_max);
    }
    beside_text(&redactor, &given);
    if check(given.as_bytes(), BOUNDS).is_ok() {
        beside_json(&redactor, &given);
    }
}

fn beside_text(redactor: &Redactor, given: &str) {
    if given.contains("canary") {
        return;
    }
    let shown = redactor.text(&format!("{given}\n{SHAPED}\n")).into_owned();
    assert!(!shown.contains(SHAPED), "{shown:?}");
    let shown = redactor.text(&format!("password={VALUE}\n{given}")).into_owned();
    assert!(!shown.contains(VALUE), "{shown:?}");
}

fn beside_json(redactor: &Redactor, given: &str) {
    let clean = redactor.json(given);
    assert_json(&clean);
    if given.contains("canary") {
        return;
    }
    let quoted = Value::from(format!("{{\"api_key\":\"{VALUE}\",\"in\":{given}}}")).to_string();
    for json in [
        format!("{{\"in\":{given},\"accessToken\":\"{VALUE}\"}}"),
        format!("[{given},{{\"name\":\"X-Api-Key\",\"value\":\"{VALUE}\"}}]"),
        format!("{{\"in\":{given},\"text\":{quoted}}}"),
        format!("{{\"in\":{given},\"text\":\"see {SHAPED}\"}}"),
        format!("{{\"password\":[{given},\"{VALUE}\"]}}"),
    ] {
        let shown = redactor.json(&json);
        assert!(!shown.contains(VALUE) && !shown.contains(SHAPED), "{shown} was {json}");
        assert_json(&shown);
        let head = redactor.head(json.as_bytes(), json.len());
        assert!(!head.contains(VALUE) && !head.contains(SHAPED), "{head} was {json}");
    }
}
