//! MCP servers: imported tools and errors.

use serde_json::json;

use super::{TestConfig, given};
use crate::mcp::McpTransport;
use crate::{McpAnnotations, McpDefinition, McpPinned, McpPins};
use tickfleet_model::Effect;

fn tool(name: &str, hints: (Option<bool>, Option<bool>)) -> McpDefinition {
    McpDefinition {
        name: name.into(),
        title: None,
        description: Some(format!("Does {name}.")),
        input_schema: json!({"type": "object", "required": ["to"]}),
        output_schema: None,
        annotations: McpAnnotations { read_only_hint: hints.0, idempotent_hint: hints.1, ..Default::default() },
    }
}

pub(super) fn server(lines: &str) -> TestConfig {
    let tools = vec![tool("look", (Some(true), None)), tool("put", (None, Some(true))), tool("send", (None, None))];
    let pins = McpPins { servers: [("files".to_owned(), McpPinned { version: None, tools })].into() };
    given()
        .file("mcp.yaml", format!("servers:\n  files:\n    {lines}\n"))
        .file("mcp.lock.yaml", pins.to_yaml())
        .file("permissions.yaml", "permissions: {echo: {everyone: true}}\n")
}

#[test]
fn pinned_tools_get_a_prefix_and_effects_from_their_hints() {
    let loaded =
        server("command: npx").file_again("permissions.yaml", "permissions: {files__look: {everyone: true}}\n").load();
    let files = &loaded.unwrap().mcp.servers["files"];
    let effects: Vec<_> = files.tools.iter().map(|t| (files.tool_name(&t.name), files.effect(t))).collect();
    let named = |name: &str, effect| (format!("files__{name}"), effect);
    assert_eq!(effects, [named("look", Effect::Read), named("put", Effect::Idempotent), named("send", Effect::Once)]);
}

#[test]
fn operator_settings_override_server_hints() {
    let lines = "command: x\n    prefix: f_\n    tools: [look, put]\n    exclude: [put]\n    trust_annotations: false";
    let files = server(lines).load().unwrap().mcp.servers["files"].clone();
    assert_eq!(files.tools.iter().map(|t| files.tool_name(&t.name)).collect::<Vec<_>>(), ["f_look"]);
    assert_eq!(files.effect(&files.tools[0]), Effect::Once, "hints are not trusted");
    let files = server("command: x\n    effects: {send: idempotent}").load().unwrap().mcp.servers["files"].clone();
    assert_eq!(files.effect(&files.tools[2]), Effect::Idempotent);
}

#[test]
fn a_once_tool_of_a_server_may_have_an_effect_key() {
    let with = |lines: &str| server(&format!("command: x\n    {lines}"));
    let files = with("effect_keys: {send: [/to]}\n    effect_window: 1h").load().unwrap().mcp.servers["files"].clone();
    let key = &files.effect_keys["send"];
    assert_eq!((key.arguments.clone(), key.window_ms), (vec!["/to".to_owned()], 3_600_000));
    for (lines, why) in [
        ("effect_keys: {sned: [/to]}", "the unknown tool `sned`"),
        ("effect_keys: {look: [/to]}", "no effect_key, or `effect: once`"),
        ("effect_keys: {send: [/amount]}", "that input_schema.required lists"),
        ("effect_window: 1h", "effect_keys beside it"),
    ] {
        let errors = with(lines).errors();
        assert!(errors.len() == 1 && errors[0].contains(why), "{lines}: {errors:?}");
    }
}

#[test]
fn the_url_expands_environment_variables_but_headers_do_not() {
    let lines = "url: ${MCP_URL:-http://a.example/mcp}\n    headers: {Authorization: \"Bearer ${T}\"}\n    \
                 secrets: {T: {env: TOKEN}}\n    allow_private: [\"${LIST:-}\"]";
    let loaded = server(lines).variable("LIST", "10.0.0.1, b.example").load().unwrap();
    let McpTransport::Http { url, headers, allow_private } = &loaded.mcp.servers["files"].connection.transport else {
        panic!("no HTTP");
    };
    assert_eq!((url.as_str(), headers["Authorization"].as_str()), ("http://a.example/mcp", "Bearer ${T}"));
    assert_eq!(allow_private.len(), 2);
}

#[test]
fn an_imported_tool_name_must_be_unique_and_valid() {
    server("command: x\n    prefix: \"\"\n    tools: [send]")
        .file("tools.yaml", "tools: {send: {description: Sends., input_schema: {type: object}}}\n")
        .assert_refused(
            "mcp.yaml:3:5: servers.files: found the tool `send` as `send`, which is another tool already; expected a \
             name that no other tool has; choose another prefix, or exclude it",
        );
    let errors = server("command: x\n    prefix: \"a b\"").errors();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors[0].contains("names of at most 64 characters of A-Z a-z 0-9 _ . -"), "{errors:?}");
}
