//! `mcp.lock.yaml`: pinned definitions of MCP tools, each with a digest.
//!
//! The definitions are complete, so that tools are known even if their server is down. Permission lists, schedulers and
//! models never use the definitions that a server returns later.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};
use tickfleet_model::hex;

use crate::document::canonical::write_canonical;
use crate::document::errors::Errors;
use crate::document::reader::{Cursor, Section};
use crate::document::tree::{Node, Value};
use tickfleet_model::Effect;
use tickfleet_model::hidden::is_hidden;

pub const MCP_LOCK_FILE: &str = "mcp.lock.yaml";

#[derive(Debug, Clone, Default, PartialEq)]
pub struct McpPins {
    pub servers: BTreeMap<String, McpPinned>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct McpPinned {
    pub version: Option<String>,
    pub tools: Vec<McpDefinition>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct McpDefinition {
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    pub input_schema: Json,
    pub output_schema: Option<Json>,
    pub annotations: McpAnnotations,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpChange {
    pub part: &'static str,
    pub before: String,
    pub now: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct McpAnnotations {
    pub title: Option<String>,
    pub read_only_hint: Option<bool>,
    pub destructive_hint: Option<bool>,
    pub idempotent_hint: Option<bool>,
    pub open_world_hint: Option<bool>,
}

impl McpAnnotations {
    #[must_use]
    pub fn effect(&self) -> Effect {
        match (self.read_only_hint, self.idempotent_hint) {
            (Some(true), _) => Effect::Read,
            (_, Some(true)) => Effect::Idempotent,
            _ => Effect::Once,
        }
    }

    fn to_json(&self) -> Json {
        let mut members = Map::new();
        let hints = [
            ("readOnlyHint", self.read_only_hint),
            ("destructiveHint", self.destructive_hint),
            ("idempotentHint", self.idempotent_hint),
            ("openWorldHint", self.open_world_hint),
        ];
        members.extend(self.title.as_deref().map(|title| ("title".to_owned(), title.into())));
        members.extend(hints.into_iter().filter_map(|(name, hint)| Some((name.to_owned(), hint?.into()))));
        Json::Object(members)
    }
}

impl McpDefinition {
    fn parts(&self) -> [(&'static str, Json); 6] {
        [
            ("name", self.name.as_str().into()),
            ("title", json!(self.title)),
            ("description", json!(self.description)),
            ("input schema", self.input_schema.clone()),
            ("output schema", json!(self.output_schema)),
            ("annotations", self.annotations.to_json()),
        ]
    }

    /// `sha256:` and 64 hex digits. The order of a schema's members does not matter.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut text = String::new();
        self.parts().iter().for_each(|(part, value)| {
            text.push_str(part);
            text.push('=');
            write_canonical(value, &mut text);
            text.push('\n');
        });
        format!("sha256:{}", hex(&Sha256::digest(text.as_bytes())))
    }

    #[must_use]
    pub fn changes(&self, other: &Self) -> Vec<McpChange> {
        let text = |value: Json| match value {
            Json::String(text) => text,
            Json::Null => String::new(),
            value => serde_json::to_string_pretty(&value).unwrap_or_default(),
        };
        let pairs = self.parts().into_iter().zip(other.parts()).filter(|((_, one), (_, two))| one != two);
        pairs.map(|((part, one), (_, two))| McpChange { part, before: text(one), now: text(two) }).collect()
    }

    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let pairs = self.parts().into_iter().zip(other.parts());
        pairs.filter(|((_, one), (_, two))| one != two).map(|((part, _), _)| part).collect()
    }
}

impl McpPins {
    /// JSON is valid YAML. Each member of a schema has its own line, so that diffs are readable.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut out = String::from(
            "# The pinned definitions of MCP tools, written by `tickfleet mcp pin`. Models read the descriptions: look at\n\
             # what changed before you keep a new version. A tool whose server says something else is quarantined.\nservers:",
        );
        if self.servers.is_empty() {
            out.push_str(" {}\n");
            return out;
        }
        out.push('\n');
        for (server, pinned) in &self.servers {
            line(&mut out, 1, server, None);
            if let Some(version) = &pinned.version {
                line(&mut out, 2, "version", Some(&version.as_str().into()));
            }
            line(&mut out, 2, "tools", pinned.tools.is_empty().then(|| json!({})).as_ref());
            for tool in &pinned.tools {
                tool.write(&mut out);
            }
        }
        out
    }
}

impl McpDefinition {
    fn write(&self, out: &mut String) {
        line(out, 3, &self.name, None);
        line(out, 4, "digest", Some(&self.digest().into()));
        let texts = [("title", &self.title), ("description", &self.description)];
        for (field, text) in texts.into_iter().filter_map(|(field, text)| Some((field, text.as_deref()?))) {
            line(out, 4, field, Some(&text.into()));
        }
        line(out, 4, "input_schema", Some(&self.input_schema));
        if let Some(schema) = &self.output_schema {
            line(out, 4, "output_schema", Some(schema));
        }
        if self.annotations != McpAnnotations::default() {
            line(out, 4, "annotations", Some(&self.annotations.to_json()));
        }
    }
}

fn line(out: &mut String, depth: usize, key: &str, value: Option<&Json>) {
    let indent = "  ".repeat(depth);
    let key = Json::from(key);
    match value {
        None => out.push_str(&format!("{indent}{}:\n", yaml_safe(&key.to_string()))),
        Some(value) => {
            let text = serde_json::to_string_pretty(value).unwrap_or_default();
            // Lines of a flow value must be indented deeper than its key.
            let text = yaml_safe(&text).replace('\n', &format!("\n{indent}  "));
            out.push_str(&format!("{indent}{}: {text}\n", yaml_safe(&key.to_string())));
        }
    }
}

/// Escapes the characters that YAML forbids or that readers cannot see. These characters occur only inside JSON
/// strings, so the escapes are valid.
fn yaml_safe(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        match u32::from(c) {
            // Line breaks are layout: JSON escapes them in strings.
            code if matches!(code, 0xfffe | 0xffff) || is_hidden(c) => {
                let _ = match code {
                    ..=0xffff => write!(safe, "\\u{code:04x}"),
                    _ => write!(safe, "\\U{code:08x}"),
                };
            }
            _ => safe.push(c),
        }
    }
    safe
}

/// Refuses a definition that was changed by hand: its digest does not match.
pub(crate) fn read(tree: &Node, errors: &Errors) -> McpPins {
    let mut pins = McpPins::default();
    let mut root = Section::open(tree, "", errors);
    for (server, _, cursor) in root.optional("servers").map(|c| c.members()).unwrap_or_default() {
        let mut s = cursor.section();
        let version = s.optional("version").and_then(|c| c.text().map(str::to_owned));
        let members = s.required("tools").map(|c| c.members()).unwrap_or_default();
        let tools = members.into_iter().filter_map(|(name, _, tool)| definition(name, server, &tool)).collect();
        s.close();
        pins.servers.insert(server.to_owned(), McpPinned { version, tools });
    }
    root.close();
    pins
}

fn definition(name: &str, server: &str, cursor: &Cursor<'_>) -> Option<McpDefinition> {
    let mut s = cursor.section();
    let digest = s.required("digest");
    let text = |c: Cursor<'_>| c.text().map(str::to_owned);
    let definition = McpDefinition {
        name: name.to_owned(),
        title: s.optional("title").and_then(text),
        description: s.optional("description").and_then(text),
        input_schema: s.required("input_schema").and_then(|c| mapping(&c))?,
        output_schema: s.optional("output_schema").and_then(|c| mapping(&c)),
        annotations: s.optional("annotations").map(|c| annotations(&c)).unwrap_or_default(),
    };
    s.close();
    let digest = digest?;
    if digest.text() != Some(definition.digest().as_str()) {
        digest.refuse(format!("the digest of this content, which was changed; run `tickfleet mcp pin {server}`"));
    }
    Some(definition)
}

fn mapping(cursor: &Cursor<'_>) -> Option<Json> {
    let is_mapping = matches!(cursor.node.value, Value::Mapping(_));
    if !is_mapping {
        cursor.refuse("a JSON Schema: a mapping");
    }
    is_mapping.then(|| cursor.node.to_json())
}

fn annotations(cursor: &Cursor<'_>) -> McpAnnotations {
    let mut s = cursor.section();
    let read = McpAnnotations {
        title: s.optional("title").and_then(|c| c.text().map(str::to_owned)),
        read_only_hint: s.optional("readOnlyHint").and_then(|c| c.boolean()),
        destructive_hint: s.optional("destructiveHint").and_then(|c| c.boolean()),
        idempotent_hint: s.optional("idempotentHint").and_then(|c| c.boolean()),
        open_world_hint: s.optional("openWorldHint").and_then(|c| c.boolean()),
    };
    s.close();
    read
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;
    use crate::document::yaml::{Origin, parse};

    fn tool() -> McpDefinition {
        McpDefinition {
            name: "read_file".into(),
            title: Some("Read: \"File\"".into()),
            description: Some(
                "Reads.\n\nLine two: # no comment, {{no template}} \u{7f}\u{85}\u{2028}\u{feff} 日本".into(),
            ),
            input_schema: json!({"type": "object", "properties": {"n": {"type": "number", "minimum": -1.5e-7},
                "no": {"const": "no"}, "null": {"enum": [null, true, 18446744073709551615_u64, 1e300]}}}),
            output_schema: Some(json!({"type": "object"})),
            annotations: McpAnnotations { read_only_hint: Some(true), title: Some("x".into()), ..Default::default() },
        }
    }

    fn pins(tools: Vec<McpDefinition>) -> McpPins {
        McpPins { servers: [("files".to_owned(), McpPinned { version: Some("1.0".into()), tools })].into() }
    }

    fn reread(text: &str) -> (McpPins, usize) {
        let errors = Errors::default();
        let tree = parse(text, Origin::File("mcp.lock.yaml"), &errors);
        let pins = tree.map(|tree| read(&tree, &errors)).unwrap_or_default();
        (pins, errors.len())
    }

    #[test]
    fn written_pins_are_read_back_unchanged() {
        let bare =
            McpDefinition { title: None, description: None, output_schema: None, name: "é: {".into(), ..tool() };
        let written = pins(vec![tool(), McpDefinition { annotations: McpAnnotations::default(), ..bare }]);
        assert_eq!(reread(&written.to_yaml()), (written, 0));
        assert_eq!(reread(&McpPins::default().to_yaml()), (McpPins::default(), 0));
        assert_eq!(reread(&pins(vec![]).to_yaml()), (pins(vec![]), 0));
    }

    #[test]
    fn a_manually_changed_definition_is_rejected() {
        let text = pins(vec![tool()]).to_yaml();
        assert_eq!(reread(&text.replace("Reads.", "Reads it all.")).1, 1);
        assert_eq!(reread(&text.replace("\"readOnlyHint\": true", "\"readOnlyHint\": false")).1, 1);
    }

    #[test]
    fn a_digest_covers_every_field_but_not_key_order() {
        let base = tool();
        let changed = [
            McpDefinition { name: "other".into(), ..tool() },
            McpDefinition { title: None, ..tool() },
            McpDefinition { description: None, ..tool() },
            McpDefinition { input_schema: json!({"type": "object"}), ..tool() },
            McpDefinition { output_schema: None, ..tool() },
            McpDefinition { annotations: McpAnnotations::default(), ..tool() },
        ];
        for other in &changed {
            assert_ne!(base.digest(), other.digest());
            assert_eq!(base.differences(other).len(), 1, "{:?}", base.differences(other));
        }
        let (one, two): (Json, Json) =
            (serde_json::from_str(r#"{"a":1,"b":2}"#).unwrap(), serde_json::from_str(r#"{"b":2,"a":1}"#).unwrap());
        let with = |schema| McpDefinition { input_schema: schema, ..tool() };
        assert_eq!(with(one).digest(), with(two).digest());
    }

    #[test]
    fn hints_map_to_effects_and_the_default_is_once() {
        let effect = |read, idempotent| {
            McpAnnotations { read_only_hint: read, idempotent_hint: idempotent, ..Default::default() }.effect()
        };
        assert_eq!(effect(Some(true), None), Effect::Read);
        assert_eq!(effect(Some(false), Some(true)), Effect::Idempotent);
        assert_eq!(effect(None, Some(true)), Effect::Idempotent);
        assert_eq!(effect(Some(false), Some(false)), Effect::Once);
        assert_eq!(effect(None, None), Effect::Once);
    }

    #[test]
    fn hidden_characters_are_escaped_in_the_file() {
        let hidden = "Reads.\u{202e}drawkcab\u{200b}\u{e0041}";
        let written = pins(vec![McpDefinition { description: Some(hidden.into()), ..tool() }]);
        let text = written.to_yaml();
        assert!(
            text.contains(r"Reads.\u202edrawkcab\u200b\U000e0041") && !text.contains(|c| c != '\n' && is_hidden(c))
        );
        assert_eq!(reread(&text), (written, 0));
    }

    proptest! {
        #[test]
        fn any_text_survives_the_file(description in any::<String>(), number in any::<f64>(), integer in any::<i64>()) {
            let schema = json!({"type": "object", "d": description, "n": number, "i": integer});
            let written = pins(vec![McpDefinition { description: Some(description), input_schema: schema, ..tool() }]);
            prop_assert_eq!(reread(&written.to_yaml()), (written, 0));
        }
    }
}
