//! Schemas from tool authors, and arguments from models.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_config::SchemaUse;
use tickfleet_model::{Dialect, Effect, ToolSpec, limits};
use tickfleet_protocol::{Prompts, define, define_strict, strict, without_nulls};
use tickfleet_tools::{ArgumentCheck, ValueCheck, check_schema};

use crate::bounds::{head_and_rest, text};

pub(super) fn schema(bytes: &[u8]) {
    let (schema, value) = head_and_rest(bytes);
    let Ok(schema) = serde_json::from_slice::<Value>(schema) else { return };
    let value = text(value);
    if let Err(problem) = check_schema(&schema, SchemaUse::Arguments) {
        assert!(problem.at.is_empty() || schema.pointer(&problem.at).is_some(), "{problem:?} is no place");
    }
    if let Ok(check) = ValueCheck::compile(&schema) {
        assert_judges(&check, &schema, &value);
    }
    if let Ok(check) = ArgumentCheck::compile(&schema) {
        assert_arguments(&check, &schema, &value);
        assert_definitions(&schema);
    }
}

fn assert_judges(check: &ValueCheck, schema: &Value, value: &str) {
    let judged = check.check(value);
    assert_eq!(judged.as_ref().map(|raw| raw.get()).ok(), check.check(value).as_ref().map(|raw| raw.get()).ok());
    match judged {
        Ok(raw) if !schema.to_string().contains("\"integer\"") => {
            assert_eq!(raw.get(), value.trim(), "a value is handed on as it was written");
        }
        // The check writes whole numbers as integers, so a second check must change nothing.
        Ok(raw) => assert_eq!(check.check(raw.get()).ok().as_ref().map(|again| again.get()), Some(raw.get())),
        Err(error) => {
            assert!(!error.problems.is_empty());
            let message = error.message("a_tool");
            assert!(message.len() <= limits::ERROR_BYTES_MAX, "{} bytes: {message}", message.len());
        }
    }
    if schema == &Value::Bool(true) {
        assert_eq!(check.check(value).is_ok(), readable(value), "{value}");
    }
}

fn readable(value: &str) -> bool {
    let bounds =
        tickfleet_protocol::json::Bounds { bytes_max: limits::ARGUMENTS_BYTES_MAX, depth_max: limits::JSON_DEPTH_MAX };
    tickfleet_protocol::json::check(value.as_bytes(), bounds).is_ok()
}

fn assert_arguments(check: &ArgumentCheck, schema: &Value, value: &str) {
    match check.check(value) {
        Ok(raw) => {
            let given = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(raw.get());
            assert!(given.is_ok(), "arguments are an object: {value}");
        }
        Err(error) => assert!(error.message("a_tool").len() <= limits::ERROR_BYTES_MAX),
    }
    let given = without_nulls(schema, value);
    assert!(given.len() <= value.len(), "nulls only go");
    if serde_json::from_str::<Value>(value).is_ok() {
        serde_json::from_str::<Value>(&given).unwrap_or_else(|error| panic!("{error}: {given}"));
    }
}

fn assert_definitions(schema: &Value) {
    let tool = tool(schema.clone());
    for dialect in Dialect::ALL {
        let defined = define(dialect, &[&tool]);
        assert!(defined.as_array().is_none_or(|list| list.len() == 1), "{defined}");
        let held = define_strict(dialect, &[&tool]);
        assert!(held.not_strict.len() <= 1);
    }
    assert!(!Prompts::default().describe(&[&tool]).is_empty());
    if let Ok(held) = strict::strict_schema(schema) {
        ArgumentCheck::compile(&held).unwrap_or_else(|error| panic!("a strict schema {error}: {held}"));
    }
}

fn tool(input_schema: Value) -> ToolSpec {
    ToolSpec {
        id: "tool_x".into(),
        name: "a.tool".into(),
        display_name: "x".into(),
        description: "Does it.".into(),
        input_schema,
        output_schema: None,
        category: "general".into(),
        version: "1.0.0".into(),
        effect: Effect::Read,
        timeout: Duration::from_secs(30),
        required_capabilities: Vec::new(),
        required_features: Vec::new(),
        requires_approval: false,
        approval: None,
        effect_key: None,
        cache: None,
        reconcile: None,
        durable: None,
        configured: true,
    }
}
