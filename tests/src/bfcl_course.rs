//! Tracks the leaderboard's turns through a fleet: messages, order and expected replies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use tickfleet_protocol::NameMap;

use crate::bfcl::{Bfcl, Keyword, Problem, Turn};

pub const AGENTS: usize = 100;

pub fn agents() -> Vec<String> {
    (0..AGENTS).map(|n| format!("agent-{n}")).collect()
}

/// The index of the conversation, and the index of the turn in it.
type TurnPosition = (usize, usize);

/// Each turn is sent after the reply to the previous turn. Every second conversation uses OpenAI's dialect.
pub struct Course {
    conversations: Vec<Vec<Turn>>,
    names: NameMap,
    sent: HashMap<String, TurnPosition>,
    answered: HashMap<String, Value>,
}

impl Course {
    pub fn new(data: &Bfcl) -> Self {
        let single = data.single_turns().into_iter().chain(data.source_text_turns()).map(|turn| vec![turn]);
        let mut conversations: Vec<Vec<Turn>> = data.conversations().into_iter().filter(|c| !c.is_empty()).collect();
        // Long conversations start first, so that none runs alone at the end.
        conversations.sort_by_key(|turns| std::cmp::Reverse(turns.len()));
        conversations.extend(single);
        Self {
            conversations,
            names: NameMap::new(data.tools().iter().map(|tool| &tool.name)),
            sent: HashMap::new(),
            answered: HashMap::new(),
        }
    }

    pub fn turns(&self) -> usize {
        self.conversations.iter().map(Vec::len).sum()
    }

    pub fn answered(&self) -> usize {
        self.answered.len()
    }

    pub fn missing(&self) -> Vec<&str> {
        let mut ids: Vec<&str> =
            self.sent.keys().filter(|id| !self.answered.contains_key(*id)).map(String::as_str).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the first turn of every conversation.
    pub fn begin(&mut self) -> Vec<Value> {
        (0..self.conversations.len()).map(|conversation| self.send((conversation, 0))).collect()
    }

    /// Returns the next turn of the reply's conversation. `None` at the end of the conversation.
    pub fn take(&mut self, reply: Value) -> Option<Value> {
        let id = reply["turn_id"].as_str().unwrap_or_else(|| panic!("a reply without a turn: {reply}")).to_owned();
        let (conversation, turn) = *self.sent.get(&id).unwrap_or_else(|| panic!("nobody sent the turn {id}"));
        if let Some(first) = self.answered.insert(id, reply.clone()) {
            panic!("two replies to one turn: {first} and {reply}");
        }
        let next = (conversation, turn + 1);
        (next.1 < self.conversations[conversation].len()).then(|| self.send(next))
    }

    fn send(&mut self, place: TurnPosition) -> Value {
        let message = self.message(place);
        self.sent.insert(message["turn_id"].as_str().unwrap().to_owned(), place);
        message
    }

    fn message(&self, place: TurnPosition) -> Value {
        let turn = &self.conversations[place.0][place.1];
        let id = format!("{}.{}", turn.entry, place.1);
        let mut message = json!({
            "turn_id": id, "tenant": "acme", "agent": format!("agent-{}", place.0 % AGENTS), "reply_to": "box",
        });
        let calls = turn.calls.iter().enumerate();
        if place.0.is_multiple_of(2) {
            let calls = calls.map(|(n, (tool, arguments))| {
                let function = json!({"name": self.names.wire(tool), "arguments": arguments.to_string()});
                json!({"id": format!("call_{n}"), "type": "function", "function": function})
            });
            message["tool_calls"] = calls.collect();
        } else {
            let calls = calls
                .map(|(n, (tool, arguments))| json!({"id": format!("call_{n}"), "name": tool, "arguments": arguments}));
            message["calls"] = calls.collect();
        }
        message
    }

    /// Panics unless every turn has a reply with one result per call, in order.
    pub fn results(&self) -> Vec<(&str, &Turn, &Vec<Value>)> {
        let mut all = Vec::with_capacity(self.turns());
        for (id, (conversation, at)) in &self.sent {
            let reply = self.answered.get(id).unwrap_or_else(|| panic!("no reply to {id}"));
            let turn = &self.conversations[*conversation][*at];
            let results = reply["results"].as_array().unwrap();
            assert_eq!((reply["status"].as_str(), results.len()), (Some("done"), turn.calls.len()), "{reply}");
            for (n, result) in results.iter().enumerate() {
                assert_eq!(result["tool_call_id"], format!("call_{n}"), "{reply}");
                assert_eq!(result["call"], format!("{id}/{n}"), "{reply}");
            }
            all.push((id.as_str(), turn, results));
        }
        assert_eq!(all.len(), self.turns(), "turns that were sent");
        all.sort_by_key(|(id, ..)| *id);
        all
    }
}

pub fn outcomes<'a>(results: impl IntoIterator<Item = &'a Value>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for result in results {
        *counts.entry(result["outcome"].as_str().unwrap()).or_default() += 1;
    }
    counts
}

pub fn names_problem(result: &Value, problem: &Problem) -> bool {
    let path = dotted(&problem.at);
    let expected = match problem.keyword {
        Keyword::Type => format!("Argument '{path}' must be of type "),
        Keyword::Enum => format!("Argument '{path}' must be one of "),
        Keyword::Required => format!("Missing required argument '{path}'"),
    };
    let problems = result["error"]["details"]["problems"].as_array();
    problems.into_iter().flatten().any(|p| p["message"].as_str().is_some_and(|m| m.starts_with(&expected)))
}

/// Writes a path as models see it: `/a/0/b` becomes `a[0].b`.
fn dotted(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        if part.bytes().all(|b| b.is_ascii_digit()) {
            path += &format!("[{part}]");
        } else {
            path += if path.is_empty() { "" } else { "." };
            path += part;
        }
    }
    path
}
