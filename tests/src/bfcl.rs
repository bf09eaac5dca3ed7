//! The Berkeley Function Calling Leaderboard. `bfcl/invalid_calls.txt` lists calls that do not fit their schemas.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fetched::FetchedData;

/// Arguments of these categories are source text of another language (`new Point(1, 2)`), not JSON values.
const SOURCE_TEXT: [&str; 2] = ["simple_java", "simple_javascript"];

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tool {
    #[serde(rename = "tool")]
    pub name: String,
    /// Not unique. The unique [`Self::name`] may end in a digest.
    #[serde(rename = "name")]
    pub original: String,
    pub description: String,
    #[serde(rename = "input_schema")]
    pub schema: Value,
}

#[derive(Debug, Clone)]
pub struct Turn {
    /// The same for all turns of a conversation.
    pub entry: String,
    pub category: String,
    pub calls: Vec<(String, Value)>,
    pub valid: Vec<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keyword {
    Type,
    Enum,
    Required,
}

impl Keyword {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Type => "type",
            Self::Enum => "enum",
            Self::Required => "required",
        }
    }
}

/// The first of a call's errors in the order of [`Keyword`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub keyword: Keyword,
    /// JSON pointer to the invalid value or the missing argument.
    pub at: String,
}

#[derive(Debug)]
pub struct Bfcl {
    tools: Vec<Tool>,
    by_name: HashMap<String, usize>,
    offered: BTreeMap<String, Vec<String>>,
    single: Vec<Turn>,
    source_text: Vec<Turn>,
    conversations: Vec<Vec<Turn>>,
}

impl Bfcl {
    /// Ordered by name. Includes tools that no expected call uses.
    #[must_use]
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.by_name.get(name).and_then(|&at| self.tools.get(at))
    }

    /// Entry → names of its tools. Includes entries without an expected call.
    #[must_use]
    pub fn offered(&self) -> &BTreeMap<String, Vec<String>> {
        &self.offered
    }

    /// Without the turns of [`Self::source_text_turns`].
    #[must_use]
    pub fn single_turns(&self) -> Vec<Turn> {
        self.single.clone()
    }

    /// Some arguments are source text of Java or JavaScript, which does not fit the tools' schemas.
    #[must_use]
    pub fn source_text_turns(&self) -> Vec<Turn> {
        self.source_text.clone()
    }

    /// Leaves out turns that expect no call.
    #[must_use]
    pub fn conversations(&self) -> Vec<Vec<Turn>> {
        self.conversations.clone()
    }

    /// Returns `None` if the arguments fit. Fails if the arguments violate a keyword that [`Keyword`] lacks.
    pub fn judge(&self, tool: &str, arguments: &Value) -> Result<Option<Problem>> {
        let tool = self.tool(tool).with_context(|| format!("no tool is called {tool:?}"))?;
        problem(&compile(tool)?, arguments).with_context(|| format!("judging a call of {}", tool.name))
    }
}

#[derive(Deserialize)]
struct CallRow {
    tool: String,
    arguments: Value,
}

#[derive(Deserialize)]
struct SingleRow {
    entry_id: String,
    category: String,
    tools: Vec<String>,
    calls: Vec<CallRow>,
}

#[derive(Deserialize)]
struct MultiRow {
    entry_id: String,
    category: String,
    turns: Vec<Vec<CallRow>>,
}

const DATA: FetchedData = FetchedData {
    script: "bfcl.py",
    folder: "bfcl-2026.3.23",
    what: "the PyPI package bfcl-eval 2026.3.23 (1.9 MB)",
    skip_variable: "TICKFLEET_SKIP_BFCL",
};

/// `None` if `TICKFLEET_SKIP_BFCL` is `1`.
pub fn load_unless_skipped() -> Result<Option<Bfcl>> {
    DATA.unless_skipped()?.map(|dir| load(&dir)).transpose()
}

pub fn load(dir: &Path) -> Result<Bfcl> {
    let mut tools: Vec<Tool> = read_lines(&dir.join("tools.jsonl"))?;
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    let by_name: HashMap<_, _> = tools.iter().enumerate().map(|(at, tool)| (tool.name.clone(), at)).collect();
    ensure!(by_name.len() == tools.len(), "two tools have the same name");
    let mut data = Bfcl {
        tools,
        by_name,
        offered: BTreeMap::new(),
        single: Vec::new(),
        source_text: Vec::new(),
        conversations: Vec::new(),
    };
    let mut judge = CallValidator::default();
    for row in read_lines::<SingleRow>(&dir.join("single_turn.jsonl"))? {
        data.offered.insert(row.entry_id.clone(), row.tools);
        if row.calls.is_empty() {
            continue;
        }
        let turn = judge.turn(&data, &row.entry_id, &row.category, row.calls)?;
        let is_source_text = SOURCE_TEXT.contains(&turn.category.as_str());
        if is_source_text { data.source_text.push(turn) } else { data.single.push(turn) }
    }
    for row in read_lines::<MultiRow>(&dir.join("multi_turn.jsonl"))? {
        let with_calls = row.turns.into_iter().filter(|calls| !calls.is_empty());
        let turns = with_calls.map(|calls| judge.turn(&data, &row.entry_id, &row.category, calls));
        let turns = turns.collect::<Result<_>>()?;
        data.conversations.push(turns);
    }
    Ok(data)
}

fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let rows = text.split('\n').enumerate().filter(|(_, line)| !line.is_empty());
    rows.map(|(at, line)| serde_json::from_str(line).with_context(|| format!("{} line {}", path.display(), at + 1)))
        .collect()
}

#[derive(Default)]
struct CallValidator {
    compiled: HashMap<String, Validator>,
}

impl CallValidator {
    fn turn(&mut self, data: &Bfcl, entry: &str, category: &str, calls: Vec<CallRow>) -> Result<Turn> {
        let mut valid = Vec::with_capacity(calls.len());
        for call in &calls {
            if !self.compiled.contains_key(&call.tool) {
                let tool = data.tool(&call.tool).with_context(|| format!("{entry}: no tool {:?}", call.tool))?;
                self.compiled.insert(call.tool.clone(), compile(tool)?);
            }
            valid.push(self.compiled.get(&call.tool).is_some_and(|schema| schema.is_valid(&call.arguments)));
        }
        let calls = calls.into_iter().map(|call| (call.tool, call.arguments)).collect();
        Ok(Turn { entry: entry.to_owned(), category: category.to_owned(), calls, valid })
    }
}

fn compile(tool: &Tool) -> Result<Validator> {
    jsonschema::validator_for(&tool.schema).map_err(|error| anyhow!("the schema of {} is broken: {error}", tool.name))
}

fn problem(schema: &Validator, arguments: &Value) -> Result<Option<Problem>> {
    let mut worst: Option<Problem> = None;
    for error in schema.iter_errors(arguments) {
        let at = error.instance_path().to_string();
        let found = match error.kind() {
            ValidationErrorKind::Type { .. } => Problem { keyword: Keyword::Type, at },
            ValidationErrorKind::Enum { .. } => Problem { keyword: Keyword::Enum, at },
            ValidationErrorKind::Required { property } => {
                Problem { keyword: Keyword::Required, at: format!("{at}/{}", property.as_str().unwrap_or_default()) }
            }
            other => bail!("unexpected keyword {:?} at {at}", other.keyword()),
        };
        worst = worst.into_iter().chain([found]).min();
    }
    Ok(worst)
}

#[cfg(test)]
mod tests;
