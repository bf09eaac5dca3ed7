//! Approvals of calls by people.

mod binding;
mod narrowed;

pub use binding::ApprovalBinding;
pub use narrowed::{NarrowError, NarrowedValues, is_same, narrow};

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDemand {
    /// An approver needs at least one of these roles. If empty, every approver may decide.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub by: BTreeSet<String>,
    #[serde(default = "one")]
    pub quorum: u32,
    /// Time (ms) for the decisions, and for the validity of an approval. `None` means until the turn's deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
    /// JSON pointers (RFC 6901) of the arguments that an approver may narrow.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub narrow: BTreeSet<String>,
}

impl Default for ApprovalDemand {
    fn default() -> Self {
        Self { by: BTreeSet::new(), quorum: 1, expires_ms: None, narrow: BTreeSet::new() }
    }
}

const fn one() -> u32 {
    1
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalReason {
    /// The tool or rule in the configuration (`tools.pay`, `permissions.pay.rules.large`).
    pub place: String,
    /// In words for approvers (`amount 700 exceeds 500`).
    pub why: String,
    /// The complete text of the tool's demand or of the rule. If this text changes, earlier approvals become invalid.
    pub terms: String,
    pub demand: ApprovalDemand,
}

#[must_use]
pub fn expires_ms(reasons: &[ApprovalReason]) -> Option<i64> {
    reasons.iter().filter_map(|reason| reason.demand.expires_ms).min()
}

/// Returns the arguments that every reason allows an approver to narrow.
#[must_use]
pub fn may_narrow(reasons: &[ApprovalReason]) -> BTreeSet<String> {
    let mut all = reasons.iter().map(|reason| reason.demand.narrow.clone());
    let first = all.next().unwrap_or_default();
    all.fold(first, |both, next| both.intersection(&next).cloned().collect())
}

/// Accepts 1 to 64 characters of `A-Z a-z 0-9 _ . @ -`.
#[must_use]
pub fn is_approver_word(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '@');
    (1..=crate::limits::NAME_BYTES_MAX).contains(&text.len()) && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(quorum: u32, by: &[&str], expires_ms: Option<i64>, narrow: &[&str]) -> ApprovalReason {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        let demand = ApprovalDemand { by: words(by), quorum, expires_ms, narrow: words(narrow) };
        ApprovalReason { place: "tools.pay".into(), why: String::new(), terms: String::new(), demand }
    }

    #[test]
    fn several_approval_demands_combine_to_the_strictest() {
        let all = [reason(1, &[], None, &["/a", "/b"]), reason(2, &["legal", "finance"], Some(9), &["/b", "/c"])];
        assert_eq!(expires_ms(&all), Some(9));
        assert_eq!(may_narrow(&all), BTreeSet::from(["/b".to_owned()]));
        assert_eq!((expires_ms(&all[..1]), may_narrow(&[])), (None, BTreeSet::new()));
    }

    #[test]
    fn an_empty_demand_requires_one_approver_of_any_role() {
        let demand: ApprovalDemand = serde_json::from_str("{}").unwrap_or_default();
        assert_eq!(demand, ApprovalDemand::default());
        assert_eq!(serde_json::to_string(&demand).ok().as_deref(), Some(r#"{"quorum":1}"#));
    }
}
