//! Rules on a call's arguments and context, from `permissions.yaml`. The `cel` crate parses a condition, and this crate
//! evaluates it under a bound on its work. ADR 14 has the reasons.

mod compile;
mod evaluate;
mod facts;
mod message;
mod names;
mod value;
mod work;

#[cfg(test)]
mod cel_comparison;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use tickfleet_model::policy::{Rule, RuleMode, ShadowDenial, ToolGrant};
use tickfleet_model::{ApprovalDemand, ApprovalReason};

pub use compile::RuleError;
use evaluate::{Evaluation, Node};
pub use facts::Facts;
use message::Message;
pub use names::UnknownName;
use work::Problem;

pub fn check_condition(text: &str) -> Result<(), RuleError> {
    compile::condition(text).map(drop)
}

pub fn check_message(text: &str) -> Result<(), RuleError> {
    Message::compile(text).map(drop)
}

/// `schemas` has the schemas of all versions of the tool. Empty if the text does not compile.
#[must_use]
pub fn unknown_in_condition(text: &str, schemas: &[&serde_json::Value]) -> Vec<UnknownName> {
    compile::condition(text).map(|node| names::unknown_arguments(&[&node], schemas)).unwrap_or_default()
}

#[must_use]
pub fn unknown_in_message(text: &str, schemas: &[&serde_json::Value]) -> Vec<UnknownName> {
    let compiled = Message::compile(text);
    compiled.map(|message| names::unknown_arguments(&message.values(), schemas)).unwrap_or_default()
}

#[derive(Debug, Clone, Default)]
pub struct Rulebook(Arc<BTreeMap<String, Vec<CompiledRule>>>);

#[derive(Debug)]
struct CompiledRule {
    place: String,
    /// Messages show this text if the rule has no message of its own.
    text: String,
    mode: RuleMode,
    /// Set if people may approve the call. The text is the whole rule, because an approval is valid only for the same
    /// rule.
    ask: Option<(ApprovalDemand, String)>,
    /// `None` if a part does not compile. Such a rule stops every call.
    parts: Option<RuleParts>,
}

#[derive(Debug)]
struct RuleParts {
    when: Option<Node>,
    require: Node,
    message: Option<Message>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenialCause {
    NotMet,
    Undecided,
}

impl DenialCause {
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotMet => "rule_not_met",
            Self::Undecided => "rule_undecided",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleDenial {
    /// For example `permissions.send_money.rules.small_amounts`.
    pub rule: String,
    pub why: DenialCause,
    pub message: String,
}

impl RuleDenial {
    /// For declared rules that were not compiled. A policy without compiled rules must not allow calls that the rules
    /// would deny.
    #[must_use]
    pub fn not_compiled(tool: &str) -> Self {
        let message = "the tool has rules that were not compiled, so they deny every call".to_owned();
        Self { rule: format!("permissions.{tool}.rules"), why: DenialCause::Undecided, message }
    }

    fn reason(self, demand: ApprovalDemand, terms: String) -> ApprovalReason {
        ApprovalReason { place: self.rule, why: self.message, terms, demand }
    }

    fn in_shadow(self) -> ShadowDenial {
        ShadowDenial { rule: self.rule, reason: self.why.reason().into(), message: self.message }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleFindings {
    pub shadow: Vec<ShadowDenial>,
    pub approvals: Vec<ApprovalReason>,
}

impl Rulebook {
    #[must_use]
    pub fn of(matrix: &BTreeMap<String, ToolGrant>) -> Self {
        let with_rules = matrix.iter().filter(|(_, row)| !row.rules.is_empty());
        let rules = |(tool, row): (&String, &ToolGrant)| {
            let rules = row.rules.iter().enumerate().map(|(at, rule)| CompiledRule::of(tool, at, rule));
            (tool.clone(), rules.collect())
        };
        Self(Arc::new(with_rules.map(rules).collect()))
    }

    #[must_use]
    pub fn count(&self, tool: &str) -> usize {
        self.0.get(tool).map_or(0, Vec::len)
    }

    #[must_use]
    pub fn enforced(&self, tool: &str) -> usize {
        self.0.get(tool).map_or(0, |rules| rules.iter().filter(|rule| rule.mode.is_enforced()).count())
    }

    /// Fails with the first violated rule that does not ask people, or with the first rule that cannot be evaluated.
    pub fn decide(&self, tool: &str, facts: &Facts<'_>) -> Result<RuleFindings, RuleDenial> {
        let Some(rules) = self.0.get(tool) else { return Ok(RuleFindings::default()) };
        let mut evaluation = Evaluation::of(facts);
        let mut approvals = Vec::new();
        for rule in rules.iter().filter(|rule| rule.mode.is_enforced()) {
            match (rule.decide(&mut evaluation), &rule.ask) {
                (Ok(()), _) => {}
                // Only a violated rule asks people. A rule that cannot be evaluated denies the call.
                (Err(unmet), Some((demand, terms))) if unmet.why == DenialCause::NotMet => {
                    approvals.push(unmet.reason(demand.clone(), terms.clone()));
                }
                (Err(unmet), _) => return Err(unmet),
            }
        }
        // Shadow rules are last, so that they cannot use up the work that the enforced rules need.
        let shadows = rules.iter().filter(|rule| !rule.mode.is_enforced());
        let shadow = shadows.filter_map(|rule| rule.decide(&mut evaluation).err()).map(RuleDenial::in_shadow).collect();
        Ok(RuleFindings { shadow, approvals })
    }
}

impl CompiledRule {
    fn of(tool: &str, at: usize, rule: &Rule) -> Self {
        let when = rule.when.as_deref().map(compile::condition).transpose();
        let message = rule.message.as_deref().map(Message::compile).transpose();
        let parts = match (when, compile::condition(&rule.require), message) {
            (Ok(when), Ok(require), Ok(message)) => Some(RuleParts { when, require, message }),
            _ => None,
        };
        // A rule is plain data, so its serialization does not fail.
        let terms = || serde_json::to_string(rule).unwrap_or_default();
        let ask = rule.otherwise_ask.clone().map(|demand| (demand, terms()));
        Self { place: rule.place(tool, at), text: rule.require.clone(), mode: rule.mode, ask, parts }
    }

    fn decide<'a>(&'a self, evaluation: &mut Evaluation<'a>) -> Result<(), RuleDenial> {
        let unmet = |why, message: String| Err(RuleDenial { rule: self.place.clone(), why, message });
        let Some(parts) = &self.parts else {
            return unmet(DenialCause::Undecided, "the rule cannot be read, so it denies every call".to_owned());
        };
        let applies = parts.when.as_ref().map_or(Ok(true), |when| evaluation.holds(when));
        let met = match applies {
            Ok(true) => evaluation.holds(&parts.require),
            other => other.map(|_| true),
        };
        match met {
            Ok(true) => Ok(()),
            Ok(false) => unmet(
                DenialCause::NotMet,
                match &parts.message {
                    Some(message) => message.render(evaluation),
                    None => format!("they do not meet {:?}", self.text),
                },
            ),
            Err(Problem::Cannot(why)) => {
                unmet(DenialCause::Undecided, format!("it cannot be decided whether they meet {:?}: {why}", self.text))
            }
            Err(Problem::TooMuch) => unmet(
                DenialCause::Undecided,
                format!("the check of {:?} takes more work than a rule may use", self.text),
            ),
        }
    }
}
