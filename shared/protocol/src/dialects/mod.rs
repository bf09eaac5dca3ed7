//! One module per dialect. To add a dialect, add a line to [`tickfleet_model::for_each_dialect`] and a module here. The
//! compiler reports everything else that is missing.

mod anthropic;
mod call;
mod content;
mod definitions;
mod gemini;
mod mcp;
mod mcp_2026_07_28;
mod names;
mod openai_chat;
mod openai_responses;
mod raw;
mod text;

use self::call::{Element, read_list};
pub use self::call::{RejectedCall, cut_off, cut_response, is_cut};
pub use self::definitions::Definitions;
use super::json::Value;
use super::message::fields::Fields;
use super::message::problem::MessageProblem;
use super::names::NameRules;
use tickfleet_model::{Call, CallResult, Dialect, ToolSpec};

/// A member of a turn that can contain calls of any dialect. The turn's member `format` names the dialect.
pub(super) const CALLS: &str = "calls";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialectInfo {
    pub option: &'static str,
    pub aliases: &'static [&'static str],
    pub summary: &'static str,
    pub has_strict: bool,
    /// True if the model answers in plain text. An answer can then have no calls or an unreadable call.
    pub in_words: bool,
    /// The words, in lower case, with which providers report a response that was cut off. Every other word, such as
    /// `stop` or `end_turn`, means that the response is complete.
    pub cut_off: &'static [&'static str],
}

pub(super) trait DialectRules: Sync {
    fn info(&self) -> DialectInfo;

    /// The turn's member with the calls, and the term for its content in error messages. `None` if the dialect requires
    /// `format`.
    fn member(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    fn takes(&self, name: &str) -> bool {
        name == CALLS || self.member().is_some_and(|(own, _)| own == name)
    }

    /// Also returns the list's name in error messages. `held` is the value of the turn's member `name`.
    fn list<'a, 'd>(&self, name: &'static str, held: Value<'a, 'd>) -> (&'static str, Value<'a, 'd>) {
        (name, held)
    }

    fn read(
        &self,
        name: &'static str,
        held: Value<'_, '_>,
        turn: &Fields<'_, '_>,
    ) -> Result<Vec<Call>, MessageProblem> {
        read_list(self, name, held, turn)
    }

    /// `None` if the element is not a call.
    fn read_call(&self, element: Element<'_, '_>) -> Result<Option<Call>, MessageProblem>;

    /// True if the last element of the list is a call. If the response was cut off, this call is incomplete.
    fn ends_with_call(&self, name: &'static str, held: Value<'_, '_>) -> bool {
        let last = self.list(name, held).1.elements().last();
        last.is_some_and(|element| self.salvage_call(element).is_some())
    }

    fn without_calls(&self) -> &'static str {
        "is empty"
    }

    fn salvage(&self, name: &'static str, held: Value<'_, '_>) -> Vec<RejectedCall> {
        self.list(name, held).1.elements().filter_map(|element| self.salvage_call(element)).collect()
    }

    /// `None` if the element is not a call, or if neither its ID nor its tool can be read.
    fn salvage_call(&self, element: Value<'_, '_>) -> Option<RejectedCall>;

    fn write_call(&self, call: &Call) -> String;

    /// `None` if the dialect has no messages. The message has the provider's ID, or the fleet's ID if the provider gave
    /// none.
    fn message(&self, result: &CallResult) -> Option<String>;

    fn rejection_message(&self, result: &CallResult, _call: &RejectedCall) -> Option<String> {
        self.message(result)
    }

    /// `None` if the dialect has no messages.
    fn frame(&self) -> Option<(&'static str, &'static str)> {
        Some(("[", "]"))
    }

    fn define(&self, tools: &[&ToolSpec], strict: bool) -> Definitions;

    fn names(&self) -> Option<NameRules>;
}

macro_rules! table {
    ($($(#[$doc:meta])* $variant:ident: $module:ident = $word:literal,)+) => {
        pub(super) fn rules(dialect: Dialect) -> &'static dyn DialectRules {
            match dialect {
                $(Dialect::$variant => &$module::Rules,)+
            }
        }
    };
}

tickfleet_model::for_each_dialect!(table);

#[must_use]
pub fn dialect_info(dialect: Dialect) -> DialectInfo {
    rules(dialect).info()
}

/// True if a provider reports with this word that a response was cut off.
#[must_use]
pub fn is_unfinished(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let word = word.strip_prefix("finish_reason_").unwrap_or(&word);
    Dialect::ALL.into_iter().any(|dialect| dialect_info(dialect).cut_off.contains(&word))
}

/// The member's name, its dialect if `format` is absent, and the term for its content in error messages.
pub(super) fn members() -> impl Iterator<Item = (&'static str, Dialect, &'static str)> {
    Dialect::ALL.into_iter().filter_map(|dialect| rules(dialect).member().map(|(name, of)| (name, dialect, of)))
}
