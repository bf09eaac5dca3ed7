//! Makes fuzz inputs from the public data sets that the tests fetch.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tickfleet_config::{McpAnnotations, McpDefinition, McpPinned, McpPins};
use tickfleet_model::Dialect;
use tickfleet_protocol::{parse_turn, write_turn};

const LEADERBOARD: &str = "bfcl-2026.3.23";
const DOJO: &str = "agentdojo-0.1.35";
const OUTPUTS: &str = "canitoolcall-0.1.1";
const SUITE: &str = "schema-suite-4.23.0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Turns,
    Calls,
    Answers,
    Json,
    Schemas,
    McpMessages,
    Locks,
    HttpAnswers,
    Arguments,
    Configurations,
    Documents,
}

/// The list is empty if the data is missing.
#[must_use]
pub fn inputs(source: Source, data: &Path, at_most: usize) -> Vec<Vec<u8>> {
    let all = match source {
        Source::Turns => turns(data, at_most),
        Source::Calls => calls(data, at_most),
        Source::Answers => answers(data, at_most),
        Source::Json => values(data, at_most),
        Source::Schemas => schemas(data, at_most),
        Source::McpMessages => mcp_messages(data, at_most),
        Source::Locks => groups(data, at_most).iter().map(|tools| lock(tools)).collect(),
        Source::HttpAnswers => http_answers(data, at_most),
        Source::Arguments => spread(arguments(data), at_most).into_iter().map(|value| format!("0{value}")).collect(),
        Source::Configurations => groups(data, at_most).iter().map(|tools| configuration(tools)).collect(),
        Source::Documents => groups(data, at_most).iter().map(|tools| document(tools)).collect(),
    };
    all.into_iter().map(String::into_bytes).collect()
}

fn spread<T>(list: Vec<T>, at_most: usize) -> Vec<T> {
    let every = list.len().div_ceil(at_most.max(1)).max(1);
    list.into_iter().step_by(every).collect()
}

fn lines(data: &Path, folder: &str, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(data.join(folder).join(file)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn entries(data: &Path) -> Vec<Value> {
    let sets = [lines(data, DOJO, "tasks.jsonl"), lines(data, LEADERBOARD, "single_turn.jsonl")];
    let calls = sets.into_iter().flatten().map(|mut entry| entry["calls"].take());
    calls.filter(|calls| calls.as_array().is_some_and(|list| !list.is_empty())).collect()
}

fn arguments(data: &Path) -> Vec<Value> {
    entries(data).into_iter().flat_map(|mut calls| calls[0].get_mut("arguments").map(Value::take)).collect()
}

fn turn(calls: &Value, dialect: Dialect) -> Option<String> {
    let raw = |(at, call): (usize, &Value)| json!({"id": format!("c{at}"), "name": call["tool"], "arguments": call["arguments"]});
    let calls: Vec<Value> = calls.as_array()?.iter().enumerate().map(raw).collect();
    let message = json!({"tenant": "acme", "agent": "kelly", "reply_to": "in", "calls": calls}).to_string();
    let mut turn = parse_turn(message.as_bytes()).ok()?;
    turn.dialect = dialect;
    Some(write_turn(&turn))
}

fn in_all_dialects(data: &Path, at_most: usize) -> impl Iterator<Item = (Dialect, String)> {
    let dialects = Dialect::ALL.into_iter().cycle();
    let entries = spread(entries(data), at_most).into_iter().zip(dialects);
    entries.filter_map(|(calls, dialect)| Some((dialect, turn(&calls, dialect)?)))
}

fn turns(data: &Path, at_most: usize) -> Vec<String> {
    in_all_dialects(data, at_most).map(|(_, turn)| turn).collect()
}

fn calls(data: &Path, at_most: usize) -> Vec<String> {
    let list = |turn: String| {
        let turn: Map<String, Value> = serde_json::from_str(&turn).ok()?;
        turn.into_iter().find(|(name, _)| ["calls", "tool_calls", "content"].contains(&name.as_str())).map(|(_, l)| l)
    };
    in_all_dialects(data, at_most)
        .filter_map(|(dialect, turn)| Some(format!("{}\n{}", dialect.as_str(), list(turn)?)))
        .collect()
}

fn answers(data: &Path, at_most: usize) -> Vec<String> {
    let raw = lines(data, OUTPUTS, "fixtures.jsonl").into_iter();
    let raw = raw.filter_map(|fixture| fixture["raw"].as_str().map(str::to_owned)).collect();
    let plain = spread(entries(data), at_most / 4).into_iter().map(|calls| format!("I call it. {calls}"));
    spread(raw, at_most).into_iter().chain(plain).collect()
}

fn values(data: &Path, at_most: usize) -> Vec<String> {
    let suite = suite(data).into_iter().map(|(_, value)| value).collect();
    let both = [spread(suite, at_most), spread(arguments(data), at_most)];
    both.into_iter().flatten().map(|value| value.to_string()).collect()
}

fn suite(data: &Path) -> Vec<(Value, Value)> {
    let mut pairs = Vec::new();
    for draft in ["draft7", "draft2020-12"] {
        let folder = data.join(SUITE).join(draft);
        let mut files: Vec<_> = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        files.sort();
        for file in files {
            let groups = fs::read_to_string(file).ok().and_then(|text| serde_json::from_str::<Vec<Value>>(&text).ok());
            for group in groups.unwrap_or_default() {
                let tests = group["tests"].as_array().cloned().unwrap_or_default();
                pairs.extend(tests.into_iter().map(|test| (group["schema"].clone(), test["data"].clone())));
            }
        }
    }
    pairs
}

fn schemas(data: &Path, at_most: usize) -> Vec<String> {
    let tools = spread(tools(data), at_most).into_iter();
    let tools = tools.zip(arguments(data)).map(|(tool, value)| (tool["input_schema"].clone(), value));
    let pairs = spread(suite(data), at_most).into_iter().chain(tools);
    pairs.map(|(schema, value)| format!("{schema}\n{value}")).collect()
}

fn tools(data: &Path) -> Vec<Value> {
    [lines(data, DOJO, "tools.jsonl"), lines(data, LEADERBOARD, "tools.jsonl")].concat()
}

fn groups(data: &Path, at_most: usize) -> Vec<Vec<Value>> {
    let all = spread(tools(data), at_most * 3);
    all.chunks(3).map(<[Value]>::to_vec).collect()
}

fn mcp_messages(data: &Path, at_most: usize) -> Vec<String> {
    let message = |result: Value| json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
    let listed = groups(data, at_most).into_iter().map(|tools| {
        let tool = |t: &Value| {
            json!({"name": t["name"], "description": t["description"],
            "inputSchema": t["input_schema"], "annotations": {"readOnlyHint": true}})
        };
        message(json!({"tools": tools.iter().map(tool).collect::<Vec<_>>()}))
    });
    let answered = values(data, at_most).into_iter().filter_map(|text| {
        let value: Value = serde_json::from_str(&text).ok()?;
        Some(message(json!({"content": [{"type": "text", "text": text}], "structuredContent": value})))
    });
    listed.chain(answered).collect()
}

fn lock(tools: &[Value]) -> String {
    let definition = |tool: &Value| McpDefinition {
        name: tool["name"].as_str().unwrap_or_default().to_owned(),
        title: None,
        description: tool["description"].as_str().map(str::to_owned),
        input_schema: tool["input_schema"].clone(),
        output_schema: None,
        annotations: McpAnnotations { read_only_hint: Some(true), ..McpAnnotations::default() },
    };
    let pinned = McpPinned { version: Some("1.0".into()), tools: tools.iter().map(definition).collect() };
    McpPins { servers: [("files".to_owned(), pinned)].into() }.to_yaml()
}

fn http_answers(data: &Path, at_most: usize) -> Vec<String> {
    let statuses = [200, 201, 409, 429, 400, 503];
    let bodies = values(data, at_most).into_iter().zip(statuses.into_iter().cycle()).enumerate();
    let answer = |(at, (body, status)): (usize, (String, u16))| {
        format!("{}{status}\ncontent-type: application/json\nretry-after: 7\n\n{body}", at % 5)
    };
    bodies.map(answer).collect()
}

/// Returns JSON, which is valid YAML.
fn configuration(tools: &[Value]) -> String {
    let declared = tools.iter().map(|tool| {
        let def = json!({"description": tool["description"], "effect": "read", "input_schema": tool["input_schema"],
            "http": {"method": "POST", "base_url": "https://api.example.com", "path": "/x"}});
        (tool["name"].as_str().unwrap_or_default().to_owned(), def)
    });
    let all = json!({"tools": declared.collect::<Map<_, _>>()});
    format!("2{}\n", serde_json::to_string_pretty(&all).unwrap_or_default())
}

fn document(tools: &[Value]) -> String {
    let paths = tools.iter().map(|tool| {
        let operation = json!({"operationId": tool["name"], "summary": tool["description"],
            "requestBody": {"content": {"application/json": {"schema": tool["input_schema"]}}}});
        (format!("/{}", tool["name"].as_str().unwrap_or_default()), json!({"post": operation}))
    });
    let servers = json!([{"url": "https://api.example.com/v1"}]);
    json!({"openapi": "3.1.0", "servers": servers, "paths": paths.collect::<Map<_, _>>()}).to_string()
}
