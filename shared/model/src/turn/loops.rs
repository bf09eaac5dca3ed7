//! Detects agents that repeat the same call and get the same result.

use serde_json::value::RawValue;

use crate::digest::hash_of;
use crate::tool::canonical;
use crate::{CallResult, Context};

/// The model loop and the loop breaker send this text.
pub const LOOP_ADVICE: &str = "Repeating it changes nothing: use another approach, or answer with what you have.";

#[must_use]
pub fn trailing_repeats<T: PartialEq>(rounds: &[T]) -> usize {
    rounds.last().map_or(0, |last| rounds.iter().rev().take_while(|round| *round == last).count())
}

/// Arguments that are not JSON are compared as text.
#[must_use]
pub fn call_hash(tool: &str, arguments: &str, context: &Context) -> String {
    let canonical_arguments = serde_json::from_str::<&RawValue>(arguments).ok().and_then(canonical);
    let user = context.user_context.as_deref().map_or("", RawValue::get);
    hash_of([tool, canonical_arguments.as_deref().unwrap_or(arguments), user].into_iter())
}

#[must_use]
pub fn result_hash(result: &CallResult) -> String {
    let output = result.output.as_deref().map_or("", RawValue::get);
    let (code, message) = result.error.as_ref().map_or(("", ""), |error| (&error.code, &error.message));
    hash_of([result.outcome.as_str(), output, code, message].into_iter())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn only_trailing_equal_rounds_count() {
        assert_eq!(trailing_repeats::<u8>(&[]), 0);
        assert_eq!(trailing_repeats(&[1, 1, 2, 1, 1, 1]), 3);
        assert_eq!(trailing_repeats(&[1, 2]), 1);
    }

    #[test]
    fn call_hashes_ignore_formatting_but_depend_on_the_user_context() {
        let nobody = Context::default();
        let somebody =
            Context { user_context: Some(RawValue::from_string("{}".into()).unwrap()), ..Context::default() };
        let hash = |tool, arguments| call_hash(tool, arguments, &nobody);
        assert_eq!(hash("a", r#"{"x":1,"y":2}"#), hash("a", r#"{ "y": 2.0, "x": 1 }"#));
        assert_ne!(hash("a", "{}"), hash("b", "{}"));
        assert_ne!(hash("a", "{}"), call_hash("a", "{}", &somebody));
        assert_ne!(hash("a", "no JSON"), hash("a", "no json"));
    }
}
