//! The names of tools as dialects show them.

use super::super::names::{NameMap, NameRules};
use super::rules;
use tickfleet_model::Dialect;

impl NameMap {
    /// The map of these tools' names for the strictest dialects. It also leads back from what any other shows.
    pub fn new<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<N> = names.into_iter().collect();
        let names = || names.iter().map(AsRef::as_ref);
        let mut map = Self::within(Some(NameRules::STRICTEST), names());
        // A name that is too long is shortened from the form that it has by each dialect's own rules.
        for dialect in Dialect::ALL {
            map.lead_back(&Self::of(dialect, names()));
        }
        map
    }

    /// The map of these tools' names for `dialect`.
    pub fn of<N: AsRef<str>>(dialect: Dialect, names: impl IntoIterator<Item = N>) -> Self {
        Self::within(rules(dialect).names(), names)
    }
}
