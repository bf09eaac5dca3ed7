//! The schemas for editors must list the words that the loader accepts.

use serde_json::Value;
use tickfleet_model::Outcome;
use tickfleet_model::limit::LimitKey;

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
