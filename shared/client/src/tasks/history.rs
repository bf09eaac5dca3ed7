//! The steps of a task that runs on a model, as stored in the task's history in Redis.

use serde::{Deserialize, Serialize};

/// An entry of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "snake_case")]
pub enum HistoryStep {
    /// A response of the model.
    Plan(PlanStep),
    /// The result of one call of the preceding plan. Results are in the order of the calls.
    Result(ResultStep),
    /// A note for the model, in addition to results.
    Note {
        /// The text.
        text: String,
    },
    /// A message from another agent that the model received.
    AgentMessage {
        /// The sender.
        from: String,
        /// The text.
        text: String,
    },
    /// A summary of the first steps. The summary replaces these steps in requests to the agent's model.
    Summary(SummaryStep),
    /// An unreadable entry, or an entry of a newer build.
    #[serde(other)]
    Other,
}

/// A response of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStep {
    /// The model.
    pub model: String,
    /// The text of the response.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The calls that the model requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<PlannedCall>,
    /// Tokens of the request.
    #[serde(default)]
    pub input: u64,
    /// Tokens of the response.
    #[serde(default)]
    pub output: u64,
    /// The cost, in millionths of the currency.
    #[serde(default)]
    pub cost: u64,
}

/// A summary of the first steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryStep {
    /// The model that wrote the summary.
    pub model: String,
    /// The text of the summary.
    pub text: String,
    /// Tokens of the request.
    pub input: u64,
    /// Tokens of the response.
    pub output: u64,
    /// The cost, in millionths of the currency.
    pub cost: u64,
}

/// A call that the model requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedCall {
    /// The tool.
    pub tool: String,
    /// The call's arguments, as the model wrote them.
    pub arguments: String,
}

/// The result of a call, as the model receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultStep {
    /// The tool.
    pub tool: String,
    /// True if the call succeeded.
    pub ok: bool,
    /// The output or the error.
    pub content: String,
}

impl HistoryStep {
    /// Returns [`HistoryStep::Other`] for an unreadable entry.
    #[must_use]
    pub fn read(entry: &str) -> Self {
        serde_json::from_str(entry).unwrap_or(Self::Other)
    }
}

/// The task's current step, and the number of model responses so far. `None` if the history is empty.
#[must_use]
pub fn step_of(steps: &[HistoryStep]) -> Option<(&'static str, usize)> {
    let iterations = steps.iter().filter(|step| matches!(step, HistoryStep::Plan(_))).count();
    let step = match steps.last()? {
        HistoryStep::Plan(plan) if plan.calls.is_empty() => "answer",
        HistoryStep::Plan(_) => "execute",
        HistoryStep::Result(_)
        | HistoryStep::Note { .. }
        | HistoryStep::AgentMessage { .. }
        | HistoryStep::Summary(_)
        | HistoryStep::Other => "plan",
    };
    Some((step, iterations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_steps_and_fields_are_ignored() {
        assert_eq!(HistoryStep::read(r#"{"k":"dream","text":"x"}"#), HistoryStep::Other);
        assert_eq!(HistoryStep::read("no JSON"), HistoryStep::Other);
        let note = HistoryStep::read(r#"{"k":"note","text":"x","more":1}"#);
        assert_eq!(note, HistoryStep::Note { text: "x".into() });
    }
}
