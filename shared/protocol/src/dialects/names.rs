//! Maps tool names to the names that a dialect permits.

use super::super::names::{NameMap, NameRules};
use super::rules;
use tickfleet_model::Dialect;

impl NameMap {
    /// Builds the map of the tool names `names` for the strictest dialects. The map can also resolve the wire names of
    /// all other dialects.
    pub fn new<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<N> = names.into_iter().collect();
        let names = || names.iter().map(AsRef::as_ref);
        let mut map = Self::within(Some(NameRules::STRICTEST), names());
        // Dialects have different rules, so their shortened forms of a long name can differ. Add the forms of all
        // dialects.
        for dialect in Dialect::ALL {
            map.add_aliases(&Self::of(dialect, names()));
        }
        map
    }

    pub fn of<N: AsRef<str>>(dialect: Dialect, names: impl IntoIterator<Item = N>) -> Self {
        Self::within(rules(dialect).names(), names)
    }
}
