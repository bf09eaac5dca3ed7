//! Reads hostile JSON under bounds, in one pass that allocates almost nothing. Unlike serde_json, [`check`] rejects
//! duplicate keys and all lone surrogates.

mod document;
mod error;
mod node;
mod repair;
mod scan;
mod strings;

pub use document::{Document, Value};
pub use error::{JsonError, JsonProblem};
pub use node::Kind;
pub use repair::{repaired, replace_beyond, with_numbers_as_text};
pub(crate) use strings::{bounded, escaped_len, prefix, push_escaped};
pub use strings::{push_quoted, unescape};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub bytes_max: usize,
    /// A scalar has depth 0, `[]` has 1.
    pub depth_max: usize,
}

/// Rejects more than one value, invalid UTF-8, duplicate keys at any depth, and lone surrogates.
pub fn check(bytes: &[u8], bounds: Bounds) -> Result<(), JsonError> {
    if bytes.len() > bounds.bytes_max {
        return Err(JsonError::too_large(bytes.len(), bounds.bytes_max));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| JsonError::not_utf8(bytes, e.valid_up_to()))?;
    scan::Scan::new(text, bounds.depth_max, scan::IndexDepth::Nothing).run().1.map_or(Ok(()), Err)
}

/// The length is in bytes. The text after the value is not examined.
pub fn leading(text: &str, depth_max: usize) -> Result<usize, JsonError> {
    scan::Scan::new(text, depth_max, scan::IndexDepth::Nothing).leading()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { bytes_max: 1_000, depth_max: 8 };

    fn problem(text: &str) -> JsonProblem {
        check(text.as_bytes(), BOUNDS).expect_err(text).problem
    }

    #[test]
    fn valid_json_passes() {
        for text in [
            "0",
            "-0",
            "-1.5e+10",
            "123456789012345678901234567890",
            "1e999",
            "\"\"",
            "\"\\u0000\"",
            "true",
            "null",
            " [1 , 2] ",
            "{}",
            "{\"a\":{\"a\":1},\"b\":[{\"a\":1}]}",
            "\"\\ud83d\\ude00\"",
            "\"é😀\"",
            "\"\\/\\b\\f\"",
        ] {
            check(text.as_bytes(), BOUNDS).unwrap_or_else(|e| panic!("{text}: {e}"));
        }
    }

    #[test]
    fn invalid_json_is_rejected_with_its_position() {
        for text in [
            "",
            " ",
            "[",
            "[1",
            "[1,",
            "[1,]",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,",
            "\"",
            "\"\\",
            "\"\\u00",
            "tru",
        ] {
            assert!(matches!(problem(text), JsonProblem::Ended { .. } | JsonProblem::Syntax { .. }), "{text}");
        }
        for text in [
            "01", "1.", ".5", "+1", "1e", "-", "nul ", "{a:1}", "{'a':1}", "[1 2]", "\"\\x\"", "\"\t\"", "1 2", "NaN",
            "{,}",
        ] {
            assert!(
                matches!(problem(text), JsonProblem::Syntax { .. } | JsonProblem::Trailing | JsonProblem::Ended { .. }),
                "{text}: {:?}",
                problem(text)
            );
        }
        let error = check(b"{\"a\": [1,\n  oops]}", BOUNDS).unwrap_err();
        assert_eq!((error.path.as_str(), error.line, error.column), ("a[1]", 2, 3));
    }

    #[test]
    fn duplicate_keys_are_rejected_at_any_depth_even_when_escaped() {
        let error = check(br#"{"calls":[{"arguments":{"to":1,"x":2,"t\u006f":3}}]}"#, BOUNDS).unwrap_err();
        assert_eq!(error.problem, JsonProblem::DuplicateKey("to".into()));
        assert_eq!(error.path, "calls[0].arguments");
        let many = (0..200).map(|i| format!("\"k{i}\":0,")).collect::<String>();
        let bounds = Bounds { bytes_max: 10_000, depth_max: 8 };
        assert!(check(format!("{{{many}\"z\":0}}").as_bytes(), bounds).is_ok());
        assert!(check(format!("{{{many}\"k7\":0}}").as_bytes(), bounds).is_err());
        assert!(check(format!("{{{many}\"k19\\u0039\":0}}").as_bytes(), bounds).is_err());
    }

    #[test]
    fn lone_surrogates_raw_control_characters_and_broken_utf8_are_refused() {
        for text in [r#""\ud800""#, r#""\udc00""#, r#""\ud800\u0041""#, r#""\ud800x""#, r#""\ud800\n""#] {
            assert_eq!(problem(text), JsonProblem::LoneSurrogate, "{text}");
        }
        assert_eq!(check(b"\"a\xff\"", BOUNDS).unwrap_err().problem, JsonProblem::NotUtf8);
        assert!(matches!(problem("\"a\0b\""), JsonProblem::Syntax { .. }));
    }

    #[test]
    fn bytes_and_depth_are_bounded_exactly() {
        assert!(
            check(
                "[".repeat(8).as_bytes().iter().chain("]".repeat(8).as_bytes()).copied().collect::<Vec<_>>().as_slice(),
                BOUNDS
            )
            .is_ok()
        );
        assert_eq!(problem(&format!("{}{}", "[".repeat(9), "]".repeat(9))), JsonProblem::TooDeep { max: 8 });
        assert_eq!(problem(&"[".repeat(900)), JsonProblem::TooDeep { max: 8 });
        assert!(
            check(" ".repeat(999).as_bytes().iter().chain(b"1").copied().collect::<Vec<_>>().as_slice(), BOUNDS)
                .is_ok()
        );
        assert_eq!(problem(&" ".repeat(1_001)), JsonProblem::TooLarge { bytes: 1_001, max: 1_000 });
    }

    #[test]
    fn an_error_never_echoes_much_of_the_text() {
        let key = "k".repeat(100_000);
        let text = format!("{{\"{key}\":{{\"{key}\":[1,}}}}");
        let error = check(text.as_bytes(), Bounds { bytes_max: 1 << 20, depth_max: 64 }).unwrap_err();
        assert!(error.to_string().len() < 500, "{}", error.to_string().len());
        let twice = format!("{{\"{key}\":1,\"{key}\":1}}");
        let error = check(twice.as_bytes(), Bounds { bytes_max: 1 << 20, depth_max: 64 }).unwrap_err();
        assert!(error.to_string().len() < 500);
    }

    fn serde_accepts(bytes: &[u8]) -> bool {
        serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok() && std::str::from_utf8(bytes).is_ok()
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_agree_with_serde_on_syntax(
            bytes in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..200),
                "[\\[\\]{}\",:0-9a-fu\\\\ eE.+truln-]{0,40}".prop_map(String::into_bytes),
            ]
        ) {
            let ours = check(&bytes, Bounds { bytes_max: 1_000, depth_max: 100 });
            match ours {
                Ok(()) => prop_assert!(serde_accepts(&bytes)),
                Err(JsonError { problem: JsonProblem::DuplicateKey(_) | JsonProblem::LoneSurrogate, .. }) => {}
                Err(error) => prop_assert!(!serde_accepts(&bytes), "{error}"),
            }
        }

        #[test]
        fn one_changed_byte_is_accepted_or_rejected_as_serde_does(at in 0usize..90, with in any::<u8>()) {
            let mut text = br#"{"a":[1,-2.5e3,true,null,"x\u00e9\n"],"b":{"c":{},"d":[]},"e":"\ud83d\ude00","f":false}  "#.to_vec();
            if at < text.len() { text[at] = with; }
            match check(&text, Bounds { bytes_max: 1_000, depth_max: 100 }) {
                Ok(()) => prop_assert!(serde_accepts(&text)),
                Err(JsonError { problem: JsonProblem::DuplicateKey(_) | JsonProblem::LoneSurrogate, .. }) => {}
                Err(error) => prop_assert!(!serde_accepts(&text), "{error}"),
            }
        }
    }
}
