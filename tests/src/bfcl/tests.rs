#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::OnceLock;

use regex::Regex;
use tickfleet_model::limits;

use super::*;

const INVALID_CALLS: &str = include_str!("invalid_calls.txt");

fn data() -> Option<&'static Bfcl> {
    static DATA: OnceLock<Option<Bfcl>> = OnceLock::new();
    DATA.get_or_init(|| load_unless_skipped().unwrap_or_else(|error| panic!("{error:#}"))).as_ref()
}

fn calls(turns: &[Turn]) -> usize {
    turns.iter().map(|turn| turn.calls.len()).sum()
}

fn problems(data: &Bfcl, turns: &[Turn]) -> Vec<(String, String, Problem)> {
    let mut found = Vec::new();
    for turn in turns {
        assert_eq!(turn.calls.len(), turn.valid.len());
        for ((name, arguments), valid) in turn.calls.iter().zip(&turn.valid) {
            let problem = if *valid { None } else { data.judge(name, arguments).unwrap() };
            assert_eq!(problem.is_none(), *valid, "{}: {name}", turn.entry);
            found.extend(problem.map(|p| (turn.entry.clone(), data.tool(name).unwrap().original.clone(), p)));
        }
    }
    found
}

fn by_keyword(problems: &[(String, String, Problem)]) -> [usize; 3] {
    let count = |keyword| problems.iter().filter(|(_, _, problem)| problem.keyword == keyword).count();
    [Keyword::Type, Keyword::Enum, Keyword::Required].map(count)
}

fn table(heading: &str) -> Vec<String> {
    let (_, after) = INVALID_CALLS.split_once(heading).unwrap_or_else(|| panic!("no table {heading:?}"));
    let rows = after.lines().skip(1).take_while(|line| !line.starts_with('#'));
    let columns = rows.filter(|line| line.starts_with("| `")).map(|line| line.splitn(6, " | ").take(4));
    columns.map(|columns| columns.collect::<Vec<_>>().join(" | ")).collect()
}

fn row((entry, function, problem): &(String, String, Problem)) -> String {
    format!("| `{entry}` | `{function}` | {} | `{}`", problem.keyword.as_str(), problem.at)
}

#[test]
fn the_data_has_the_documented_size() {
    let Some(data) = data() else { return };
    let offered: BTreeSet<&String> = data.offered().values().flatten().collect();
    assert_eq!(offered.len(), 3_258, "function schemas of single-turn entries");
    assert_eq!(data.tools().len(), 3_258 + 128, "with those of the multi-turn classes");
    assert_eq!((data.single_turns().len(), calls(&data.single_turns())), (2_351, 3_152));
    assert_eq!((data.source_text_turns().len(), calls(&data.source_text_turns())), (150, 150));
    let conversations = data.conversations();
    assert_eq!((conversations.len(), conversations.iter().map(Vec::len).sum::<usize>()), (800, 2_924));
    assert_eq!(conversations.iter().map(|turns| calls(turns)).sum::<usize>(), 4_625);
}

#[test]
fn tool_names_derive_from_leaderboard_names() {
    let Some(data) = data() else { return };
    let dialects = Regex::new("^[a-zA-Z0-9_-]{1,64}$").unwrap();
    let offered: BTreeSet<&String> = data.offered().values().flatten().collect();
    let originals: BTreeSet<&str> = offered.iter().map(|name| data.tool(name).unwrap().original.as_str()).collect();
    assert_eq!(originals.len(), 1_853);
    assert_eq!(originals.iter().filter(|name| !dialects.is_match(name)).count(), 871);
    for tool in data.tools() {
        assert!(tool.name.len() <= limits::NAME_BYTES_MAX, "{}", tool.name);
        let (stem, digest) = tool.name.split_once('-').unwrap_or((&tool.name, ""));
        assert!(digest.is_empty() == (tool.name == tool.original) && tool.original.starts_with(stem), "{}", tool.name);
    }
}

#[test]
fn every_schema_is_an_object_schema_that_compiles() {
    let Some(data) = data() else { return };
    for tool in data.tools() {
        assert_eq!(tool.schema["type"], "object", "{}", tool.name);
        assert!(jsonschema::meta::is_valid(&tool.schema), "{}", tool.name);
        compile(tool).unwrap();
    }
}

#[test]
fn calls_fit_their_schemas_except_the_listed_46() {
    let Some(data) = data() else { return };
    for (turns, kinds, heading) in [
        (data.single_turns(), [10, 9, 5], "### Invalid single-turn calls"),
        (data.source_text_turns(), [18, 0, 0], "### Invalid Java and JavaScript calls"),
        (data.conversations().concat(), [4, 0, 0], "### Invalid multi-turn calls"),
    ] {
        let problems = problems(data, &turns);
        assert_eq!(by_keyword(&problems), kinds, "{heading}");
        assert_eq!(problems.iter().map(row).collect::<Vec<_>>(), table(heading));
    }
}

#[test]
fn every_turn_has_calls_and_fits_the_limits() {
    let Some(data) = data() else { return };
    let conversations = data.conversations().concat();
    for turn in data.single_turns().iter().chain(&data.source_text_turns()).chain(&conversations) {
        assert!((1..=limits::CALLS_PER_TURN_MAX).contains(&turn.calls.len()), "{}", turn.entry);
        for (tool, arguments) in &turn.calls {
            assert!(data.tool(tool).is_some() && arguments.is_object(), "{}: {tool}", turn.entry);
            assert!(arguments.to_string().len() <= limits::ARGUMENTS_BYTES_MAX, "{}: {tool}", turn.entry);
        }
    }
}

#[test]
fn a_conversation_keeps_the_order_of_its_turns_and_calls() {
    let Some(data) = data() else { return };
    let conversations = data.conversations();
    let first = conversations.iter().find(|turns| turns[0].entry == "multi_turn_base_0").unwrap();
    let tools: Vec<Vec<&str>> = first
        .iter()
        .map(|turn| turn.calls.iter().map(|(tool, _)| data.tool(tool).unwrap().original.as_str()).collect())
        .collect();
    assert_eq!(tools, [vec!["cd", "mkdir", "mv"], vec!["cd", "grep"], vec!["sort"], vec!["cd", "mv", "cd", "diff"]]);
    assert_eq!(first[2].calls[0].1, serde_json::json!({"file_name": "final_report.pdf"}));
}
