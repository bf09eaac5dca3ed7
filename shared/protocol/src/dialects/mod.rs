//! One module per dialect: how it is recognised, how its calls are read and written, how results become its messages,
//! how it defines tools, and which names it allows.
//!
//! A dialect is added with a line in [`tickfleet_model::for_each_dialect`] and a module here: the compiler asks for
//! whatever else is missing.

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
use super::message::problem::Problem;
use super::names::NameRules;
use tickfleet_model::{Call, CallResult, Dialect, ToolSpec};

/// The member of a turn that takes the calls of every dialect, as `format` says.
pub(super) const CALLS: &str = "calls";

/// The description of a dialect for those who choose one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// The word that options of the command line name it by.
    pub option: &'static str,
    /// Other words that they take for it.
    pub aliases: &'static [&'static str],
    /// One line of help.
    pub summary: &'static str,
    /// True if its definitions can hold a model to a schema.
    pub has_strict: bool,
    /// True if the model answers in plain words: tools are described in a prompt, an answer may call nothing, and a
    /// call in it may be one that cannot be read.
    pub in_words: bool,
}

/// The rules of one dialect.
pub(super) trait DialectRules: Sync {
    /// Its description.
    fn about(&self) -> About;

    /// The member of a turn that holds calls of this dialect where `format` names none, and how errors call what is in
    /// it; none where `format` has to name the dialect.
    fn member(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Returns true if the member `name` of a turn may hold calls of this dialect.
    fn takes(&self, name: &str) -> bool {
        name == CALLS || self.member().is_some_and(|(own, _)| own == name)
    }

    /// The list of calls in `held`, which the member `name` of a turn holds, with the list's name for errors.
    fn list<'a, 'd>(&self, name: &'static str, held: Value<'a, 'd>) -> (&'static str, Value<'a, 'd>) {
        (name, held)
    }

    /// The calls in `held`, which the member `name` of `turn` holds.
    fn read(&self, name: &'static str, held: Value<'_, '_>, turn: &Fields<'_, '_>) -> Result<Vec<Call>, Problem> {
        read_list(self, name, held, turn)
    }

    /// The call that a list's element is; none for an element that is no call.
    fn read_call(&self, element: Element<'_, '_>) -> Result<Option<Call>, Problem>;

    /// Returns true if `held`, which the member `name` of a turn holds, ends with a call: the one that a response lacks
    /// the end of, if it was cut off.
    fn ends_with_call(&self, name: &'static str, held: Value<'_, '_>) -> bool {
        let last = self.list(name, held).1.elements().last();
        last.is_some_and(|element| self.salvage_call(element).is_some())
    }

    /// The predicate of the error that a list holds no call.
    fn without_calls(&self) -> &'static str {
        "is empty"
    }

    /// The calls of a refused turn that can be read in `held`, which its member `name` holds.
    fn salvage(&self, name: &'static str, held: Value<'_, '_>) -> Vec<RejectedCall> {
        self.list(name, held).1.elements().filter_map(|element| self.salvage_call(element)).collect()
    }

    /// Id and tool of a list's element, where it is a call and at least one of them can be read.
    fn salvage_call(&self, element: Value<'_, '_>) -> Option<RejectedCall>;

    /// A call as [`Self::read_call`] reads it.
    fn write_call(&self, call: &Call) -> String;

    /// The message, or the part of one, that tells a model of a result; none where the dialect has no messages.
    ///
    /// The provider's id is echoed unchanged, and our own stands in for one that was not given.
    fn message(&self, result: &CallResult) -> Option<String>;

    /// The message that tells a model that its call was refused.
    fn rejection_message(&self, result: &CallResult, _call: &RejectedCall) -> Option<String> {
        self.message(result)
    }

    /// The text before and after the comma-joined messages of a turn; none where the dialect has no messages.
    fn frame(&self) -> Option<(&'static str, &'static str)> {
        Some(("[", "]"))
    }

    /// The definitions of `tools` for a request, strict where asked for and possible.
    fn define(&self, tools: &[&ToolSpec], strict: bool) -> Definitions;

    /// The names of tools that it allows; none where it allows all.
    fn names(&self) -> Option<NameRules>;
}

macro_rules! table {
    ($($(#[$doc:meta])* $variant:ident: $module:ident = $word:literal,)+) => {
        /// The rules of `dialect`.
        pub(super) fn rules(dialect: Dialect) -> &'static dyn DialectRules {
            match dialect {
                $(Dialect::$variant => &$module::Rules,)+
            }
        }
    };
}

tickfleet_model::for_each_dialect!(table);

/// The description of `dialect`.
#[must_use]
pub fn about(dialect: Dialect) -> About {
    rules(dialect).about()
}

/// The members of a turn that hold calls, each with the dialect that it stands for where `format` names none, and how
/// errors call what is in it.
pub(super) fn members() -> impl Iterator<Item = (&'static str, Dialect, &'static str)> {
    Dialect::ALL.into_iter().filter_map(|dialect| rules(dialect).member().map(|(name, of)| (name, dialect, of)))
}
