//! Bounds the number of values of the labels `tool` and `rule`. Models invent tool names, and each label value stays
//! until the process ends.

use std::collections::HashSet;
use std::sync::Arc;

use super::labels::OTHER;
use parking_lot::RwLock;
use tickfleet_model::Outcome;

/// More tools than a fleet is likely to configure.
const TOOLS_MAX: usize = 500;

/// A rule gets a label only after a call has violated the rule.
const RULES_MAX: usize = 200;

#[derive(Debug, Default)]
struct FirstNames<const MAX: usize> {
    seen: RwLock<HashSet<Arc<str>>>,
}

impl<const MAX: usize> FirstNames<MAX> {
    fn get(&self, name: &str) -> Option<Arc<str>> {
        self.seen.read().get(name).cloned()
    }

    fn take(&self, name: &str) -> Arc<str> {
        if let Some(label) = self.get(name) {
            return label;
        }
        let mut seen = self.seen.write();
        if seen.len() >= MAX && !seen.contains(name) {
            return OTHER.into();
        }
        let label: Arc<str> = name.into();
        seen.insert(Arc::clone(&label));
        label
    }
}

/// The configuration can change while the process runs, so the number of rules is bounded.
#[derive(Debug, Default)]
pub(super) struct RuleLabels(FirstNames<RULES_MAX>);

impl RuleLabels {
    /// `other` if the maximum is reached.
    pub(super) fn label(&self, rule: &str) -> Arc<str> {
        self.0.take(rule)
    }
}

#[derive(Debug, Default)]
pub(super) struct ToolLabels(FirstNames<TOOLS_MAX>);

impl ToolLabels {
    /// A new name becomes a label only if the outcome proves that the tool exists. Otherwise, invented names could use
    /// up the maximum.
    pub(super) fn label(&self, tool: &str, outcome: Outcome) -> Arc<str> {
        if outcome.proves_tool() { self.0.take(tool) } else { self.0.get(tool).unwrap_or_else(|| OTHER.into()) }
    }

    /// `None` becomes `other`.
    pub(super) fn known_label(&self, tool: Option<&str>) -> Arc<str> {
        tool.map_or_else(|| OTHER.into(), |tool| self.0.take(tool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_tool_names_never_become_labels() {
        let labels = ToolLabels::default();
        for n in 0..2 * TOOLS_MAX {
            assert_eq!(&*labels.label(&format!("made_up_{n}"), Outcome::UnknownTool), OTHER);
            assert_eq!(&*labels.label(&format!("made_up_{n}"), Outcome::DailyCapReached), OTHER);
        }
        assert_eq!(&*labels.label("search", Outcome::Ok), "search");
        assert_eq!(&*labels.label("search", Outcome::Expired), "search", "a known name keeps its label");
    }

    #[test]
    fn labels_are_bounded() {
        let labels = ToolLabels::default();
        for n in 0..TOOLS_MAX {
            assert_ne!(&*labels.label(&format!("tool_{n}"), Outcome::Ok), OTHER);
        }
        assert_eq!(&*labels.label("one_more", Outcome::Ok), OTHER);
        assert_eq!(&*labels.label("tool_0", Outcome::Ok), "tool_0");
    }
}
