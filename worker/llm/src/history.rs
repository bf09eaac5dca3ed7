//! The history of a task: a list of entries in Redis, which determine the next step.

use serde::{Deserialize, Serialize};
use tickfleet_model::loops::trailing_repeats;
use tickfleet_models::{ModelAnswer, StopReason, ToolCall};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "snake_case")]
pub(crate) enum HistoryEntry {
    Plan(Plan),
    /// In the order of the calls of the preceding plan.
    Result(CallOutcome),
    Note {
        text: String,
    },
    AgentMessage {
        id: String,
        from: String,
        text: String,
    },
    Earlier {
        user: String,
        /// `None` if the agent gave no answer.
        agent: Option<String>,
    },
    /// Replaces all entries before [`Summary::upto`].
    Summary(Summary),
    Unfit {
        text: String,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) model: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) text: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) calls: Vec<PlanCall>,
    /// True if the model had to answer without calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) last: bool,
    /// True if the token limit cut off the answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) cut: bool,
    #[serde(default)]
    pub(crate) input: u64,
    #[serde(default)]
    pub(crate) output: u64,
    /// In millionths of the currency.
    #[serde(default)]
    pub(crate) cost: u64,
    /// When the model was asked, in ms of shard time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at_ms: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The index of the first entry that the summary does not replace. This entry is a plan.
    pub(crate) upto: usize,
    pub(crate) text: String,
    pub(crate) model: String,
    pub(crate) input: u64,
    pub(crate) output: u64,
    /// In millionths of the currency.
    pub(crate) cost: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlanCall {
    pub(crate) id: String,
    pub(crate) tool: String,
    pub(crate) arguments: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signature: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallOutcome {
    pub(crate) tool: String,
    pub(crate) ok: bool,
    pub(crate) content: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    Plan {
        /// True if the model must answer without calls.
        last: bool,
    },
    Warn,
    Execute {
        /// From 1.
        number: usize,
    },
    Answer,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) entries: Vec<HistoryEntry>,
}

impl History {
    pub(crate) fn read(entries: &[String]) -> Result<Self, String> {
        let read = |(at, text): (usize, &String)| {
            serde_json::from_str(text).map_err(|error| format!("entry {at} of the history cannot be read: {error}"))
        };
        Ok(Self { entries: entries.iter().enumerate().map(read).collect::<Result<_, _>>()? })
    }

    pub(crate) fn plans(&self) -> impl DoubleEndedIterator<Item = &Plan> {
        self.entries.iter().filter_map(|entry| if let HistoryEntry::Plan(plan) = entry { Some(plan) } else { None })
    }

    pub(crate) fn last_plan(&self) -> Option<&Plan> {
        self.plans().next_back()
    }

    /// Each summary covers more steps than the previous one.
    pub(crate) fn summaries(&self) -> impl DoubleEndedIterator<Item = &Summary> {
        self.entries
            .iter()
            .filter_map(|entry| if let HistoryEntry::Summary(summary) = entry { Some(summary) } else { None })
    }

    pub(crate) fn summary(&self) -> Option<&Summary> {
        self.summaries().next_back().filter(|summary| summary.upto <= self.entries.len())
    }

    /// Returns input tokens, output tokens, and the cost in millionths of the currency.
    pub(crate) fn used(&self) -> (u64, u64, u64) {
        let of_plans = self.plans().map(|plan| (plan.input, plan.output, plan.cost));
        let of_summaries = self.summaries().map(|summary| (summary.input, summary.output, summary.cost));
        of_plans.chain(of_summaries).fold((0, 0, 0), |sum, used| (sum.0 + used.0, sum.1 + used.1, sum.2 + used.2))
    }

    /// True if the first final answer had to come without calls. Later answers only correct the form.
    pub(crate) fn was_last(&self) -> bool {
        self.plans().find(|plan| plan.calls.is_empty() || plan.last).is_some_and(|plan| plan.last)
    }

    pub(crate) fn last_plan_at(&self) -> Option<usize> {
        self.entries.iter().rposition(|entry| matches!(entry, HistoryEntry::Plan(_)))
    }

    pub(crate) fn unfit(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry, HistoryEntry::Unfit { .. })).count()
    }

    /// `repeats_max` is the limit of equal rounds in a row.
    pub(crate) fn next(&self, iterations_max: u32, repeats_max: u32) -> NextStep {
        let Some(at) = self.last_plan_at() else {
            return NextStep::Plan { last: iterations_max <= 1 };
        };
        let HistoryEntry::Plan(plan) = &self.entries[at] else { return NextStep::Answer };
        let behind = &self.entries[at + 1..];
        if plan.calls.is_empty() || plan.last {
            // The answer is final. Only its form can be wrong.
            let is_unfit = behind.iter().any(|entry| matches!(entry, HistoryEntry::Unfit { .. }));
            return if is_unfit { NextStep::Plan { last: true } } else { NextStep::Answer };
        }
        let number = self.plans().count();
        if behind.iter().filter(|entry| matches!(entry, HistoryEntry::Result(_))).count() < plan.calls.len() {
            return NextStep::Execute { number };
        }
        let warned = self.entries.iter().any(|entry| matches!(entry, HistoryEntry::Note { .. }));
        let repeats = self.repeats();
        if repeats > repeats_max && warned {
            return NextStep::Plan { last: true };
        }
        if repeats == repeats_max && repeats_max > 1 && !behind.iter().any(|e| matches!(e, HistoryEntry::Note { .. })) {
            return NextStep::Warn;
        }
        NextStep::Plan { last: number + 1 >= iterations_max as usize }
    }

    /// Rounds are equal if they have the same calls with the same results.
    fn repeats(&self) -> u32 {
        type Round<'a> = (Vec<(&'a str, &'a str)>, Vec<&'a CallOutcome>);
        let rounds: Vec<Round<'_>> = self
            .rounds()
            .map(|(calls, results)| (calls.iter().map(|c| (c.tool.as_str(), c.arguments.as_str())).collect(), results))
            .collect();
        u32::try_from(trailing_repeats(&rounds)).unwrap_or(u32::MAX)
    }

    pub(crate) fn rounds(&self) -> impl Iterator<Item = (&[PlanCall], Vec<&CallOutcome>)> {
        let is_plan = |entry: &HistoryEntry| matches!(entry, HistoryEntry::Plan(_));
        let starts = self.entries.iter().enumerate().filter(move |(_, e)| is_plan(e)).map(|(at, _)| at);
        starts.filter_map(move |at| {
            let HistoryEntry::Plan(plan) = &self.entries[at] else { return None };
            let behind = self.entries[at + 1..].iter().take_while(move |e| !is_plan(e));
            let results = behind.filter_map(|e| if let HistoryEntry::Result(r) = e { Some(r) } else { None });
            Some((plan.calls.as_slice(), results.collect()))
        })
    }
}

impl Plan {
    /// `at_ms` is the time of the request, in ms of shard time.
    pub(crate) fn of(model: &str, answer: ModelAnswer, last: bool, cost: u64, at_ms: i64) -> Self {
        let planned = |call: ToolCall| PlanCall {
            id: call.id,
            tool: call.tool,
            arguments: call.arguments,
            signature: call.signature,
        };
        Self {
            model: model.to_owned(),
            text: answer.text,
            calls: answer.calls.into_iter().map(planned).collect(),
            last,
            cut: answer.stop == StopReason::Length,
            input: answer.usage.input,
            output: answer.usage.output,
            cost,
            at_ms: Some(at_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(calls: &[&str]) -> HistoryEntry {
        let call = |arguments: &&str| PlanCall {
            id: "c".into(),
            tool: "look".into(),
            arguments: (*arguments).to_owned(),
            signature: None,
        };
        HistoryEntry::Plan(Plan { calls: calls.iter().map(call).collect(), text: "hm".into(), ..Plan::default() })
    }

    fn result(content: &str) -> HistoryEntry {
        HistoryEntry::Result(CallOutcome { tool: "look".into(), ok: true, content: content.to_owned() })
    }

    fn next(entries: Vec<HistoryEntry>) -> NextStep {
        History { entries }.next(5, 3)
    }

    #[test]
    fn a_task_alternates_plans_and_turns_until_a_plan_has_no_calls() {
        assert_eq!(next(vec![]), NextStep::Plan { last: false });
        assert_eq!(next(vec![plan(&["1", "2"])]), NextStep::Execute { number: 1 });
        assert_eq!(next(vec![plan(&["1", "2"]), result("a")]), NextStep::Execute { number: 1 });
        assert_eq!(next(vec![plan(&["1"]), result("a")]), NextStep::Plan { last: false });
        assert_eq!(next(vec![plan(&["1"]), result("a"), plan(&[])]), NextStep::Answer);
    }

    #[test]
    fn the_last_permitted_answer_is_requested_without_tools() {
        let round = |n: &str| [plan(&[n]), result(n)];
        let four: Vec<HistoryEntry> = ["1", "2", "3", "4"].iter().flat_map(|n| round(n)).collect();
        assert_eq!(next(four), NextStep::Plan { last: true });
        assert_eq!(History::default().next(1, 3), NextStep::Plan { last: true });
    }

    #[test]
    fn a_model_that_repeats_calls_is_warned_once_and_then_must_answer() {
        let rounds = |n: usize| (0..n).flat_map(|_| [plan(&["1"]), result("same")]).collect::<Vec<_>>();
        let of = |entries| History { entries }.next(100, 3);
        assert_eq!(of(rounds(2)), NextStep::Plan { last: false });
        assert_eq!(of(rounds(3)), NextStep::Warn);
        let mut warned = rounds(3);
        warned.push(HistoryEntry::Note { text: "in circles".into() });
        assert_eq!(of(warned.clone()), NextStep::Plan { last: false });
        warned.extend([plan(&["1"]), result("same")]);
        assert_eq!(of(warned.clone()), NextStep::Plan { last: true });
        // With another result, the call does not count as a repetition: the model may be waiting for something.
        let mut other = rounds(3);
        other.extend([plan(&["1"]), result("at last")]);
        assert_eq!(of(other), NextStep::Plan { last: false });
    }

    #[test]
    fn an_unfit_answer_is_requested_again_without_tools() {
        let unfit = || HistoryEntry::Unfit { text: "no JSON".into() };
        assert_eq!(next(vec![plan(&[]), unfit()]), NextStep::Plan { last: true });
        assert_eq!(next(vec![plan(&[]), unfit(), plan(&[])]), NextStep::Answer);
    }

    #[test]
    fn history_entries_round_trip_through_json() {
        let entries = vec![plan(&["{\"a\":1}"]), result("é"), HistoryEntry::Note { text: "n".into() }];
        let written: Vec<String> = entries.iter().filter_map(|e| serde_json::to_string(e).ok()).collect();
        assert_eq!(History::read(&written).map(|h| h.entries), Ok(entries));
        assert!(History::read(&["{}".to_owned()]).is_err());
    }
}
