//! Rules on a call's arguments and context: what a row of `permissions.yaml` may require beside who calls.
//!
//! A condition is written in CEL and parsed by the `cel` crate. It is compiled here to a small language of its own, for
//! three things that the crate's interpreter does not give: every evaluation has a bound on its work, numbers are the
//! decimals that were written, and what is never looked at is never parsed. What both can evaluate, both evaluate alike: a
//! test compares them. ADR 14 says why.
//!
//! Read in this order: `compile` (from text to [`Rulebook`]), `evaluate`, `value`, `number`, `facts` (what a condition may
//! name), `message` (what a rule tells), `names` (whether what it names is there).

mod compile;
mod evaluate;
mod facts;
mod message;
mod names;
mod number;
mod value;
mod work;

#[cfg(test)]
mod referee;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use tickfleet_model::policy::{Rule, RuleMode, ShadowDenial, ToolGrant};
use tickfleet_model::{ApprovalDemand, AskedBy};

pub use compile::Refused;
use evaluate::{Evaluation, Node};
pub use facts::Facts;
use message::Message;
pub use names::Unknown;
use work::Problem;

/// Checks the condition of a rule for whoever reads a configuration.
///
/// # Errors
/// What is wrong with it, and what is expected instead.
pub fn check_condition(text: &str) -> Result<(), Refused> {
    compile::condition(text).map(drop)
}

/// Checks the message of a rule for whoever reads a configuration.
///
/// # Errors
/// What is wrong with it, and what is expected instead.
pub fn check_message(text: &str) -> Result<(), Refused> {
    Message::compile(text).map(drop)
}

/// The arguments in a condition that the input schemas of its tool do not declare; `schemas` are those of all its versions.
/// None of a text that does not compile.
#[must_use]
pub fn unknown_in_condition(text: &str, schemas: &[&serde_json::Value]) -> Vec<Unknown> {
    compile::condition(text).map(|node| names::unknown_arguments(&[&node], schemas)).unwrap_or_default()
}

/// As [`unknown_in_condition`], of the values that a message shows.
#[must_use]
pub fn unknown_in_message(text: &str, schemas: &[&serde_json::Value]) -> Vec<Unknown> {
    let compiled = Message::compile(text);
    compiled.map(|message| names::unknown_arguments(&message.values(), schemas)).unwrap_or_default()
}

/// The rules of a permission matrix, compiled. Copies share them.
#[derive(Debug, Clone, Default)]
pub struct Rulebook(Arc<BTreeMap<String, Vec<Compiled>>>);

/// One rule.
#[derive(Debug)]
struct Compiled {
    /// Where the configuration has it.
    place: String,
    /// The condition as it is written, for a rule without a message.
    text: String,
    mode: RuleMode,
    /// Who may let pass what does not meet it, and the whole rule as text, which a consent is bound to.
    ask: Option<(ApprovalDemand, String)>,
    /// None where something does not compile. A configuration with such a rule is refused when it is read; should one
    /// come another way, the rule stops every call.
    parts: Option<Parts>,
}

#[derive(Debug)]
struct Parts {
    when: Option<Node>,
    require: Node,
    message: Option<Message>,
}

/// Why a rule stops a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// What it requires is not so.
    NotMet,
    /// Whether it is so cannot be said.
    Undecided,
}

impl Why {
    /// A stable word for `details.reason`.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotMet => "rule_not_met",
            Self::Undecided => "rule_undecided",
        }
    }
}

/// The rule that stops a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmet {
    /// The rule, as the configuration has it (`permissions.send_money.rules.small_amounts`).
    pub rule: String,
    /// Why.
    pub why: Why,
    /// The same in words, for the model.
    pub message: String,
}

impl Unmet {
    /// What stops the calls of a tool whose rules were declared and never compiled: a policy that was put in force past
    /// the handle which compiles them must not be a laxer one.
    #[must_use]
    pub fn not_compiled(tool: &str) -> Self {
        let message = "the tool has rules that were not compiled, so that they stop every call".to_owned();
        Self { rule: format!("permissions.{tool}.rules"), why: Why::Undecided, message }
    }

    /// What is asked of people, who may let the call pass all the same.
    fn asked(self, demand: ApprovalDemand, terms: String) -> AskedBy {
        AskedBy { place: self.rule, why: self.message, terms, demand }
    }

    fn in_shadow(self) -> ShadowDenial {
        ShadowDenial { rule: self.rule, reason: self.why.reason(), message: self.message }
    }
}

/// What rules say of a call that they do not deny.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruling {
    /// The rules in shadow that would have stopped it.
    pub shadow: Vec<ShadowDenial>,
    /// The rules that it does not meet, for which a person may let it pass.
    pub asked: Vec<AskedBy>,
}

impl Rulebook {
    /// Compiles the rules of a matrix.
    #[must_use]
    pub fn of(matrix: &BTreeMap<String, ToolGrant>) -> Self {
        let with_rules = matrix.iter().filter(|(_, row)| !row.rules.is_empty());
        let rules = |(tool, row): (&String, &ToolGrant)| {
            let rules = row.rules.iter().enumerate().map(|(at, rule)| Compiled::of(tool, at, rule));
            (tool.clone(), rules.collect())
        };
        Self(Arc::new(with_rules.map(rules).collect()))
    }

    /// The number of rules on calls of a tool, those in shadow included.
    #[must_use]
    pub fn count(&self, tool: &str) -> usize {
        self.0.get(tool).map_or(0, Vec::len)
    }

    /// The number of rules that calls of a tool have to meet.
    #[must_use]
    pub fn enforced(&self, tool: &str) -> usize {
        self.0.get(tool).map_or(0, |rules| rules.iter().filter(|rule| rule.mode.is_enforced()).count())
    }

    /// Decides about a call of a tool: every rule of its row has to be met, or a person lets it pass. Answers those in
    /// shadow that would have stopped it, and those that ask.
    ///
    /// # Errors
    /// The first rule that is not met and asks nobody, or that cannot be decided.
    pub fn decide(&self, tool: &str, facts: &Facts<'_>) -> Result<Ruling, Unmet> {
        let Some(rules) = self.0.get(tool) else { return Ok(Ruling::default()) };
        let (mut evaluation, mut asked) = (Evaluation::of(facts), Vec::new());
        for rule in rules.iter().filter(|rule| rule.mode.is_enforced()) {
            match (rule.decide(&mut evaluation), &rule.ask) {
                (Ok(()), _) => {}
                // What cannot be decided, nobody can be asked about.
                (Err(unmet), Some((demand, terms))) if unmet.why == Why::NotMet => {
                    asked.push(unmet.asked(demand.clone(), terms.clone()));
                }
                (Err(unmet), _) => return Err(unmet),
            }
        }
        // They come last, so that their work is never missing where something is decided.
        let shadows = rules.iter().filter(|rule| !rule.mode.is_enforced());
        let shadow = shadows.filter_map(|rule| rule.decide(&mut evaluation).err()).map(Unmet::in_shadow).collect();
        Ok(Ruling { shadow, asked })
    }
}

impl Compiled {
    fn of(tool: &str, at: usize, rule: &Rule) -> Self {
        let when = rule.when.as_deref().map(compile::condition).transpose();
        let message = rule.message.as_deref().map(Message::compile).transpose();
        let parts = match (when, compile::condition(&rule.require), message) {
            (Ok(when), Ok(require), Ok(message)) => Some(Parts { when, require, message }),
            _ => None,
        };
        // A rule is plain data, and can be written.
        let terms = || serde_json::to_string(rule).unwrap_or_default();
        let ask = rule.otherwise_ask.clone().map(|demand| (demand, terms()));
        Self { place: rule.place(tool, at), text: rule.require.clone(), mode: rule.mode, ask, parts }
    }

    fn decide<'a>(&'a self, evaluation: &mut Evaluation<'a>) -> Result<(), Unmet> {
        let unmet = |why, message: String| Err(Unmet { rule: self.place.clone(), why, message });
        let Some(parts) = &self.parts else {
            return unmet(Why::Undecided, "the rule cannot be read, so that it stops every call".to_owned());
        };
        let applies = parts.when.as_ref().map_or(Ok(true), |when| evaluation.holds(when));
        let met = match applies {
            Ok(true) => evaluation.holds(&parts.require),
            other => other.map(|_| true),
        };
        match met {
            Ok(true) => Ok(()),
            Ok(false) => unmet(
                Why::NotMet,
                match &parts.message {
                    Some(message) => message.told(evaluation),
                    None => format!("they do not meet {:?}", self.text),
                },
            ),
            Err(Problem::Cannot(why)) => {
                unmet(Why::Undecided, format!("whether they meet {:?} cannot be said: {why}", self.text))
            }
            Err(Problem::TooMuch) => unmet(
                Why::Undecided,
                format!("to see whether they meet {:?} takes more work than a rule may", self.text),
            ),
        }
    }
}
