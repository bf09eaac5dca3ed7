//! The steps of a task that a model carries out, as its history in Redis has them.

use serde::{Deserialize, Serialize};

/// One entry of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "snake_case")]
pub enum Step {
    /// What the model answered.
    Plan(PlanStep),
    /// The result of one call of the plan before it, in the order of the calls.
    Result(ResultStep),
    /// What the loop told the model beside results.
    Note {
        /// In words.
        text: String,
    },
    /// A message of another agent that the model was given.
    Heard {
        /// Who sent it.
        from: String,
        /// Its words.
        text: String,
    },
    /// What a model wrote down of the first steps, which the agent's model is not told any more.
    Summary(SummaryStep),
    /// One of a later build.
    #[serde(other)]
    Other,
}

/// An answer of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStep {
    /// The model that gave it.
    pub model: String,
    /// Its words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Its calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<PlannedCall>,
    /// Tokens of the request.
    #[serde(default)]
    pub input: u64,
    /// Tokens of the answer.
    #[serde(default)]
    pub output: u64,
    /// What they cost, in millionths of the currency.
    #[serde(default)]
    pub cost: u64,
}

/// A summary of first steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryStep {
    /// The model that wrote it.
    pub model: String,
    /// Its words.
    pub text: String,
    /// Tokens of the request.
    pub input: u64,
    /// Tokens of the answer.
    pub output: u64,
    /// What they cost, in millionths of the currency.
    pub cost: u64,
}

/// A call that the model asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedCall {
    /// The tool.
    pub tool: String,
    /// Its arguments, as the model wrote them.
    pub arguments: String,
}

/// The result of a call as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultStep {
    /// The tool.
    pub tool: String,
    /// True if it succeeded.
    pub ok: bool,
    /// The result, or why there is none.
    pub content: String,
}

impl Step {
    /// Reads an entry. One that cannot be read is [`Step::Other`]: whoever looks on goes on.
    #[must_use]
    pub fn read(entry: &str) -> Self {
        serde_json::from_str(entry).unwrap_or(Self::Other)
    }
}

/// The step that a task is in by its history, and how often its model has answered; none where it has no history.
#[must_use]
pub fn step_of(steps: &[Step]) -> Option<(&'static str, usize)> {
    let iterations = steps.iter().filter(|step| matches!(step, Step::Plan(_))).count();
    let step = match steps.last()? {
        Step::Plan(plan) if plan.calls.is_empty() => "answer",
        Step::Plan(_) => "execute",
        Step::Result(_) | Step::Note { .. } | Step::Heard { .. } | Step::Summary(_) | Step::Other => "plan",
    };
    Some((step, iterations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_later_build_writes_is_passed_over() {
        assert_eq!(Step::read(r#"{"k":"dream","text":"x"}"#), Step::Other);
        assert_eq!(Step::read("no JSON"), Step::Other);
        let note = Step::read(r#"{"k":"note","text":"x","more":1}"#);
        assert_eq!(note, Step::Note { text: "x".into() });
    }
}
