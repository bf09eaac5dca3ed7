//! The schemas for editors and the pages must list the words that the loader accepts.

use serde_json::Value;
use tickfleet_model::Outcome;
use tickfleet_model::limit::LimitKey;

use crate::agents::HANDLERS;
use crate::tools::AnswerMeaning;

fn schema(file: &str) -> Value {
    let path = format!("{}/../../config/schema/{file}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_editor_schema_lists_all_http_outcomes() {
    let tools = schema("tools");
    let outcome =
        "/properties/tools/additionalProperties/properties/http/properties/outcomes/items/properties/outcome/enum";
    let words: Vec<&str> =
        tools.pointer(outcome).unwrap().as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(words, AnswerMeaning::NAMED.map(|(word, _)| word));
}

#[test]
fn the_editor_schema_lists_all_fact_changing_outcomes() {
    let text = schema("permissions").to_string();
    let changing = Outcome::ALL.into_iter().filter(|outcome| outcome.changes_facts());
    let words: Vec<String> = changing.map(|outcome| format!("{:?}", outcome.as_str())).collect();
    let on = format!(r#""items":{{"enum":[{}]}}"#, words.join(","));
    assert_eq!(text.matches(&on).count(), 2, "no list {on}");
}

#[test]
fn the_editor_schema_lists_all_limit_keys() {
    let limits = schema("limits");
    let keys = limits.pointer("/properties/limits/additionalProperties/properties/per/items/pattern").unwrap();
    let words = LimitKey::NAMED.map(|(word, _)| word).join("|");
    assert_eq!(keys.as_str(), Some(&*format!("^({words}|argument:/.*)$")));
}

#[test]
fn the_tables_of_pages_list_all_http_outcomes_and_task_handlers() {
    let rows = |page: &str, head: &str| -> Vec<String> {
        let path = format!("{}/../../docs/build/{page}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let (_, table) = text.split_once(head).unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect()
    };
    assert_eq!(rows("tools-http.md", "| `outcome` | Meaning |"), AnswerMeaning::NAMED.map(|(word, _)| word));
    let mut handlers = rows("delegate.md", "| Handler | Runs the task |");
    handlers.sort();
    let mut known = HANDLERS.map(|(kind, _)| kind);
    known.sort_unstable();
    assert_eq!(handlers, known);
}
