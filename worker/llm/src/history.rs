//! The history of a task: a list of entries in Redis, and what follows from it.

use serde::{Deserialize, Serialize};
use tickfleet_model::loops::alike_in_a_row;
use tickfleet_models::{Answer, Stop, ToolCall};

/// One entry. Nothing else is known of a task that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "snake_case")]
pub(crate) enum Entry {
    /// What the model answered.
    Plan(Plan),
    /// The result of one call of the plan before it, in the order of the calls.
    Result(CallOutcome),
    /// What the loop tells the model beside results.
    Note {
        /// In words.
        text: String,
    },
    /// A message of another agent.
    Heard {
        /// Its id.
        id: String,
        /// Who sent it.
        from: String,
        /// Its words.
        text: String,
    },
    /// An exchange of the session that the task belongs to, from before it.
    Earlier {
        /// What the user said.
        user: String,
        /// What the agent answered; none where it did not.
        agent: Option<String>,
    },
    /// What stands for all entries before a certain one: they are not told any more.
    Summary(Summary),
    /// The answer before it does not fit the agent's schema.
    Unfit {
        /// Why not, for the model.
        text: String,
    },
}

/// An answer of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The model that gave it.
    pub(crate) model: String,
    /// Its words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) text: String,
    /// Its calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) calls: Vec<Planned>,
    /// True if it had to answer without calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) last: bool,
    /// True if the limit of tokens cut it off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) cut: bool,
    /// Tokens of the request.
    #[serde(default)]
    pub(crate) input: u64,
    /// Tokens of the answer.
    #[serde(default)]
    pub(crate) output: u64,
    /// What they cost, in millionths of the currency.
    #[serde(default)]
    pub(crate) cost: u64,
    /// When it was asked for, ms of shard time: its calls are out since then at the earliest. None in the history of a
    /// build before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at_ms: Option<i64>,
}

/// What a model wrote down of the first steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The first entry that it does not stand for, a plan.
    pub(crate) upto: usize,
    /// Its words.
    pub(crate) text: String,
    /// The model that wrote it.
    pub(crate) model: String,
    /// Tokens of the request.
    pub(crate) input: u64,
    /// Tokens of the answer.
    pub(crate) output: u64,
    /// What they cost, in millionths of the currency.
    pub(crate) cost: u64,
}

/// A call that the model asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Planned {
    pub(crate) id: String,
    pub(crate) tool: String,
    pub(crate) arguments: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signature: Option<String>,
}

/// The result of a call as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallOutcome {
    pub(crate) tool: String,
    pub(crate) ok: bool,
    pub(crate) content: String,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask the model; `last`: for an answer without calls.
    Plan {
        /// True if it may call nothing any more.
        last: bool,
    },
    /// Tell the model that it goes in circles.
    Warn,
    /// Carry out the calls of the last plan, which is the `number`th, from 1.
    Execute {
        /// Its number.
        number: usize,
    },
    /// It has answered.
    Answer,
}

/// The history of one task.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) entries: Vec<Entry>,
}

impl History {
    /// Reads entries as Redis has them.
    ///
    /// # Errors
    /// Which of them cannot be read.
    pub(crate) fn read(entries: &[String]) -> Result<Self, String> {
        let read = |(at, text): (usize, &String)| {
            serde_json::from_str(text).map_err(|error| format!("entry {at} of the history cannot be read: {error}"))
        };
        Ok(Self { entries: entries.iter().enumerate().map(read).collect::<Result<_, _>>()? })
    }

    /// The answers of the model.
    pub(crate) fn plans(&self) -> impl DoubleEndedIterator<Item = &Plan> {
        self.entries.iter().filter_map(|entry| if let Entry::Plan(plan) = entry { Some(plan) } else { None })
    }

    /// Its last answer.
    pub(crate) fn last_plan(&self) -> Option<&Plan> {
        self.plans().next_back()
    }

    /// The summaries of its first steps, each of more of them than the one before.
    pub(crate) fn summaries(&self) -> impl DoubleEndedIterator<Item = &Summary> {
        self.entries.iter().filter_map(|entry| if let Entry::Summary(summary) = entry { Some(summary) } else { None })
    }

    /// The one that counts.
    pub(crate) fn summary(&self) -> Option<&Summary> {
        self.summaries().next_back().filter(|summary| summary.upto <= self.entries.len())
    }

    /// What was used in all: tokens of requests and of answers, and their cost in millionths of the currency.
    pub(crate) fn used(&self) -> (u64, u64, u64) {
        let of_plans = self.plans().map(|plan| (plan.input, plan.output, plan.cost));
        let of_summaries = self.summaries().map(|summary| (summary.input, summary.output, summary.cost));
        of_plans.chain(of_summaries).fold((0, 0, 0), |sum, used| (sum.0 + used.0, sum.1 + used.1, sum.2 + used.2))
    }

    /// Whether the first answer that it gave was the last that it might give: what came after it is about its form.
    pub(crate) fn was_last(&self) -> bool {
        self.plans().find(|plan| plan.calls.is_empty() || plan.last).is_some_and(|plan| plan.last)
    }

    /// Which entry that is.
    pub(crate) fn last_plan_at(&self) -> Option<usize> {
        self.entries.iter().rposition(|entry| matches!(entry, Entry::Plan(_)))
    }

    /// How often an answer did not fit.
    pub(crate) fn unfit(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry, Entry::Unfit { .. })).count()
    }

    /// What is to be done next. `iterations_max` and `repeats_max` are the agent's.
    pub(crate) fn next(&self, iterations_max: u32, repeats_max: u32) -> Next {
        let Some(at) = self.last_plan_at() else {
            return Next::Plan { last: iterations_max <= 1 };
        };
        let Entry::Plan(plan) = &self.entries[at] else { return Next::Answer };
        let behind = &self.entries[at + 1..];
        if plan.calls.is_empty() || plan.last {
            // It has its answer, and only the form is wrong.
            let is_unfit = behind.iter().any(|entry| matches!(entry, Entry::Unfit { .. }));
            return if is_unfit { Next::Plan { last: true } } else { Next::Answer };
        }
        let number = self.plans().count();
        if behind.iter().filter(|entry| matches!(entry, Entry::Result(_))).count() < plan.calls.len() {
            return Next::Execute { number };
        }
        let warned = self.entries.iter().any(|entry| matches!(entry, Entry::Note { .. }));
        let repeats = self.repeats();
        if repeats > repeats_max && warned {
            return Next::Plan { last: true };
        }
        if repeats == repeats_max && repeats_max > 1 && !behind.iter().any(|e| matches!(e, Entry::Note { .. })) {
            return Next::Warn;
        }
        // The last of its answers has to do without calls.
        Next::Plan { last: number + 1 >= iterations_max as usize }
    }

    /// How often the last plan's calls came in a row with the same results.
    fn repeats(&self) -> u32 {
        type Round<'a> = (Vec<(&'a str, &'a str)>, Vec<&'a CallOutcome>);
        let rounds: Vec<Round<'_>> = self
            .rounds()
            .map(|(calls, results)| (calls.iter().map(|c| (c.tool.as_str(), c.arguments.as_str())).collect(), results))
            .collect();
        u32::try_from(alike_in_a_row(&rounds)).unwrap_or(u32::MAX)
    }

    /// Each plan's calls with their results.
    pub(crate) fn rounds(&self) -> impl Iterator<Item = (&[Planned], Vec<&CallOutcome>)> {
        let is_plan = |entry: &Entry| matches!(entry, Entry::Plan(_));
        let starts = self.entries.iter().enumerate().filter(move |(_, e)| is_plan(e)).map(|(at, _)| at);
        starts.filter_map(move |at| {
            let Entry::Plan(plan) = &self.entries[at] else { return None };
            let behind = self.entries[at + 1..].iter().take_while(move |e| !is_plan(e));
            let results = behind.filter_map(|e| if let Entry::Result(r) = e { Some(r) } else { None });
            Some((plan.calls.as_slice(), results.collect()))
        })
    }
}

impl Plan {
    /// What a model answered, what it cost, and when it was asked.
    pub(crate) fn of(model: &str, answer: Answer, last: bool, cost: u64, at_ms: i64) -> Self {
        let planned = |call: ToolCall| Planned {
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
            cut: answer.stop == Stop::Length,
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

    fn plan(calls: &[&str]) -> Entry {
        let call = |arguments: &&str| Planned {
            id: "c".into(),
            tool: "look".into(),
            arguments: (*arguments).to_owned(),
            signature: None,
        };
        Entry::Plan(Plan { calls: calls.iter().map(call).collect(), text: "hm".into(), ..Plan::default() })
    }

    fn result(content: &str) -> Entry {
        Entry::Result(CallOutcome { tool: "look".into(), ok: true, content: content.to_owned() })
    }

    fn next(entries: Vec<Entry>) -> Next {
        History { entries }.next(5, 3)
    }

    #[test]
    fn a_task_goes_from_plan_to_turn_to_results_to_plan_until_there_are_no_calls() {
        assert_eq!(next(vec![]), Next::Plan { last: false });
        assert_eq!(next(vec![plan(&["1", "2"])]), Next::Execute { number: 1 });
        assert_eq!(next(vec![plan(&["1", "2"]), result("a")]), Next::Execute { number: 1 });
        assert_eq!(next(vec![plan(&["1"]), result("a")]), Next::Plan { last: false });
        assert_eq!(next(vec![plan(&["1"]), result("a"), plan(&[])]), Next::Answer);
    }

    #[test]
    fn the_last_answer_that_it_may_give_is_asked_for_without_tools() {
        let round = |n: &str| [plan(&[n]), result(n)];
        let four: Vec<Entry> = ["1", "2", "3", "4"].iter().flat_map(|n| round(n)).collect();
        assert_eq!(next(four), Next::Plan { last: true });
        assert_eq!(History::default().next(1, 3), Next::Plan { last: true });
    }

    #[test]
    fn a_model_that_goes_in_circles_is_told_so_once_and_then_asked_for_its_answer() {
        let rounds = |n: usize| (0..n).flat_map(|_| [plan(&["1"]), result("same")]).collect::<Vec<_>>();
        let of = |entries| History { entries }.next(100, 3);
        assert_eq!(of(rounds(2)), Next::Plan { last: false });
        assert_eq!(of(rounds(3)), Next::Warn);
        let mut warned = rounds(3);
        warned.push(Entry::Note { text: "in circles".into() });
        assert_eq!(of(warned.clone()), Next::Plan { last: false });
        warned.extend([plan(&["1"]), result("same")]);
        assert_eq!(of(warned.clone()), Next::Plan { last: true });
        // Another result is no circle: it may be waiting for something.
        let mut other = rounds(3);
        other.extend([plan(&["1"]), result("at last")]);
        assert_eq!(of(other), Next::Plan { last: false });
    }

    #[test]
    fn an_answer_that_does_not_fit_is_asked_for_once_more_without_tools() {
        let unfit = || Entry::Unfit { text: "no JSON".into() };
        assert_eq!(next(vec![plan(&[]), unfit()]), Next::Plan { last: true });
        assert_eq!(next(vec![plan(&[]), unfit(), plan(&[])]), Next::Answer);
    }

    #[test]
    fn what_was_written_is_read_again() {
        let entries = vec![plan(&["{\"a\":1}"]), result("é"), Entry::Note { text: "n".into() }];
        let written: Vec<String> = entries.iter().filter_map(|e| serde_json::to_string(e).ok()).collect();
        assert_eq!(History::read(&written).map(|h| h.entries), Ok(entries));
        assert!(History::read(&["{}".to_owned()]).is_err());
    }
}
