//! Maps tool names to the names that a dialect permits.

use super::super::names::{NameMap, NameRules};
use super::rules;
use tickfleet_model::Dialect;

impl NameMap {
    /// The map is for the strictest dialects, but resolves the wire names of all dialects.
    pub fn new<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<N> = names.into_iter().collect();
        let names = || names.iter().map(AsRef::as_ref);
        let mut map = Self::within(Some(NameRules::STRICTEST), names());
        // Dialects shorten a long name in different ways, so add the names of each dialect.
        for dialect in Dialect::ALL {
            map.add_aliases(&Self::of(dialect, names()));
        }
        map
    }

    pub fn of<N: AsRef<str>>(dialect: Dialect, names: impl IntoIterator<Item = N>) -> Self {
        Self::within(rules(dialect).names(), names)
    }
}
