//! Narrowed arguments: what an approver may change about a call, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;

use crate::tool::effect_key::at;

/// What an approver gives a call instead: JSON pointer → value.
pub type Narrowed = BTreeMap<String, Box<RawValue>>;

/// Why an argument cannot be narrowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotNarrowed {
    /// The arguments of the call are no JSON.
    #[error("the arguments of the call cannot be read")]
    Unreadable,
    /// Nothing is there.
    #[error("the call has no argument at '{0}'")]
    Absent(String),
    /// It is none of those that may be changed.
    #[error("the argument at '{pointer}' may not be changed; {may}")]
    NotAllowed {
        /// The argument.
        pointer: String,
        /// What may be.
        may: String,
    },
}

/// The arguments with other values, each at the pointer of an argument that the call has and that may be changed. All else
/// stays as it was written, to the last digit.
///
/// # Errors
/// [`NotNarrowed`] says which value it is that cannot be put there.
pub fn narrow(arguments: &str, may: &BTreeSet<String>, values: &Narrowed) -> Result<String, NotNarrowed> {
    let mut text = arguments.trim().to_owned();
    for (pointer, value) in values {
        if !may.contains(pointer) {
            return Err(not_allowed(pointer.clone(), may));
        }
        let whole: &RawValue = serde_json::from_str(&text).map_err(|_| NotNarrowed::Unreadable)?;
        let found = at(whole, pointer).ok_or_else(|| NotNarrowed::Absent(pointer.clone()))?;
        // It is a part of the text, not a copy: where it begins there is how far it lies behind the text's beginning.
        let begins = found.get().as_ptr().addr().wrapping_sub(text.as_ptr().addr());
        let ends = begins.wrapping_add(found.get().len());
        let (Some(before), Some(behind)) = (text.get(..begins), text.get(ends..)) else {
            return Err(NotNarrowed::Unreadable);
        };
        text = [before, value.get(), behind].concat();
    }
    Ok(text)
}

fn not_allowed(pointer: String, may: &BTreeSet<String>) -> NotNarrowed {
    let names: Vec<&str> = may.iter().map(String::as_str).collect();
    let may = if names.is_empty() { "nothing may".to_owned() } else { format!("these may: {}", names.join(", ")) };
    NotNarrowed::NotAllowed { pointer, may }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const CALL: &str = r#" {"amount": 12345678901234567890.10, "to": {"name": "kim", "iban":"x"}, "lines": [1, 2]} "#;

    fn may(pointers: &[&str]) -> BTreeSet<String> {
        pointers.iter().map(ToString::to_string).collect()
    }

    fn values(pairs: &[(&str, &str)]) -> Narrowed {
        pairs.iter().map(|(at, value)| ((*at).to_owned(), serde_json::from_str(value).unwrap())).collect()
    }

    #[test]
    fn what_may_be_changed_is_and_all_else_stays_as_it_was_written() {
        let allowed = may(&["/amount", "/to/name", "/lines/1", "/to"]);
        let narrowed = |pairs: &[(&str, &str)]| narrow(CALL, &allowed, &values(pairs)).unwrap();
        assert_eq!(narrowed(&[]), CALL.trim());
        assert_eq!(
            narrowed(&[("/lines/1", "[3]"), ("/to/name", "\"ann\"")]),
            r#"{"amount": 12345678901234567890.10, "to": {"name": "ann", "iban":"x"}, "lines": [1, [3]]}"#
        );
        assert_eq!(
            narrowed(&[("/amount", "4"), ("/to", r#"{"name":"y"}"#), ("/to/name", "\"z\"")]),
            r#"{"amount": 4, "to": {"name":"z"}, "lines": [1, 2]}"#
        );
    }

    #[test]
    fn nothing_else_can_be_changed_and_nothing_made_up() {
        let refused = |pairs: &[(&str, &str)]| narrow(CALL, &may(&["/amount", "/note"]), &values(pairs)).unwrap_err();
        let other = refused(&[("/amount", "1"), ("/to/iban", "\"y\"")]);
        assert_eq!(other.to_string(), "the argument at '/to/iban' may not be changed; these may: /amount, /note");
        assert_eq!(refused(&[("/note", "1")]), NotNarrowed::Absent("/note".into()));
        assert_eq!(narrow("no JSON", &may(&["/a"]), &values(&[("/a", "1")])), Err(NotNarrowed::Unreadable));
    }
}
