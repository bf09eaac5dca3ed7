//! The bounds on the labels `tool` and `rule`: models invent tool names, and every new label value lives forever.

use std::collections::HashSet;
use std::sync::Arc;

use super::labels::OTHER;
use parking_lot::RwLock;
use tickfleet_model::Outcome;

/// Distinct values of the label; more tools than a fleet's configuration is likely to declare.
const TOOLS_MAX: usize = 500;

/// Distinct values of the label `rule`: a configuration may have more rules, but each counts only once it was not met.
const RULES_MAX: usize = 200;

/// Names that became labels so far, the first `MAX`.
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

/// The rules that became labels so far. Their names come from the configuration, which changes while a process runs.
#[derive(Debug, Default)]
pub(super) struct RuleLabels(FirstNames<RULES_MAX>);

impl RuleLabels {
    /// The label for a rule: its name, or `other`.
    pub(super) fn label(&self, rule: &str) -> Arc<str> {
        self.0.take(rule)
    }
}

/// The tool names that became labels so far.
#[derive(Debug, Default)]
pub(super) struct ToolLabels(FirstNames<TOOLS_MAX>);

impl ToolLabels {
    /// The label for a call of `tool` that ended as `outcome`: its name, or `other`.
    ///
    /// A new name is taken only with an outcome that proves that such a tool exists. Else an agent that makes up
    /// names would use up the bound, and real tools would hide under `other`.
    pub(super) fn label(&self, tool: &str, outcome: Outcome) -> Arc<str> {
        if outcome.proves_tool() { self.0.take(tool) } else { self.0.get(tool).unwrap_or_else(|| OTHER.into()) }
    }

    /// The label for a tool that the configuration knows; `other` for none.
    pub(super) fn known_label(&self, tool: Option<&str>) -> Arc<str> {
        tool.map_or_else(|| OTHER.into(), |tool| self.0.take(tool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_tool_has_never_become_labels() {
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
