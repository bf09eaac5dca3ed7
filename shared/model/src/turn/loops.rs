//! Agents that go in circles: the same call, with the same result, again and again.

use serde_json::value::RawValue;

use crate::digest::hash_of;
use crate::tool::canonical;
use crate::{CallResult, Context};

/// What a model is told that goes in circles: the model loop's and others'.
pub const IN_CIRCLES: &str = "Doing it again changes nothing: take another way, or answer with what you have.";

/// How many of the last rounds are like the very last.
#[must_use]
pub fn alike_in_a_row<T: PartialEq>(rounds: &[T]) -> usize {
    rounds.last().map_or(0, |last| rounds.iter().rev().take_while(|round| *round == last).count())
}

/// A hash by which equal calls know each other: tool and arguments, whichever way these are written, and for whom they
/// are made. Arguments that are no JSON are compared as they stand.
#[must_use]
pub fn call_hash(tool: &str, arguments: &str, context: &Context) -> String {
    let said = serde_json::from_str::<&RawValue>(arguments).ok().and_then(canonical);
    let user = context.user_context.as_deref().map_or("", RawValue::get);
    hash_of([tool, said.as_deref().unwrap_or(arguments), user].into_iter())
}

/// A hash by which equal results know each other: the outcome, and what the tool said.
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
    fn only_the_last_rounds_in_a_row_count() {
        assert_eq!(alike_in_a_row::<u8>(&[]), 0);
        assert_eq!(alike_in_a_row(&[1, 1, 2, 1, 1, 1]), 3);
        assert_eq!(alike_in_a_row(&[1, 2]), 1);
    }

    #[test]
    fn a_call_is_the_same_however_its_arguments_are_written_and_another_for_somebody_else() {
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
