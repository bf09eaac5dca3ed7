//! Reads a page of a server's list of tools with size limits. A malformed tool does not affect the other tools.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_config::{McpAnnotations, McpDefinition};
use tickfleet_model::limits;
use tickfleet_outbound::json_values;
use tickfleet_tools::{Secrets, wording};

use super::printable::{REASON_BYTES_MAX, printable};

const WORDS_BYTES_MAX: usize = 100;
const NAME_BYTES_MAX: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) tools: Vec<McpDefinition>,
    pub(super) malformed: Vec<Malformed>,
    count: usize,
    bytes: usize,
    values: usize,
    empty_pages: usize,
    cursors: HashSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Malformed {
    /// The tool's name, or its number in the list.
    pub(super) name: String,
    pub(super) why: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(borrow, default)]
    tools: Option<&'a RawValue>,
    #[serde(borrow, default)]
    next_cursor: Option<&'a RawValue>,
}

/// Icons and metadata are not read, because only programs that show tools to people use them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tool<'a> {
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    title: Option<&'a RawValue>,
    #[serde(borrow, default)]
    description: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input_schema: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output_schema: Option<&'a RawValue>,
    #[serde(borrow, default)]
    annotations: Option<&'a RawValue>,
}

impl Listing {
    /// Returns the cursor of the next page. An error means that the list as a whole cannot be used.
    pub(super) fn take(&mut self, page: &str) -> Result<Option<String>, String> {
        self.bytes += page.len();
        if self.bytes > limits::MCP_LIST_BYTES_MAX {
            return Err(format!("its list of tools has more than {} bytes", limits::MCP_LIST_BYTES_MAX));
        }
        // serde would also accept an array for a struct, so the first character is checked.
        let read = page.trim_start().starts_with('{').then(|| serde_json::from_str::<Page<'_>>(page).ok()).flatten();
        let Some(Page { tools, next_cursor }) = read else {
            return Err("its list of tools is not an object".to_owned());
        };
        let tools = tools.ok_or("its answer to `tools/list` has no member `tools`")?;
        let Ok(Items(tools)) = serde_json::from_str(tools.get()) else {
            return Err("the member `tools` of its list of tools is not an array".to_owned());
        };
        if self.count + tools.len() > limits::MCP_TOOLS_MAX {
            return Err(format!("it lists more than {} tools", limits::MCP_TOOLS_MAX));
        }
        let is_empty = tools.is_empty();
        for tool in tools {
            self.count += 1;
            match self.tool(tool.get())? {
                Ok(tool) => self.tools.push(tool),
                Err(malformed) => self.malformed.push(malformed),
            }
        }
        let Some(cursor) = next_cursor else { return Ok(None) };
        let Ok(cursor) = serde_json::from_str::<String>(cursor.get()) else {
            return Err(format!("the cursor to the next page of its tools is not a string: {}", quoted(cursor.get())));
        };
        self.empty_pages += usize::from(is_empty);
        if self.empty_pages > limits::MCP_EMPTY_PAGES_MAX {
            return Err(format!("more than {} pages of its list of tools are empty", limits::MCP_EMPTY_PAGES_MAX));
        }
        if !self.cursors.insert(cursor.clone()) {
            let cursor = quoted(&cursor);
            return Err(format!("its list of tools does not end: the cursor {cursor} repeats"));
        }
        Ok(Some(cursor))
    }

    /// Definitions are pinned in a file and read by models, so they must not contain the connection's secrets.
    pub(super) fn scrub(&mut self, secrets: &Secrets) {
        for tool in &mut self.tools {
            for words in [&mut tool.title, &mut tool.description, &mut tool.annotations.title].into_iter().flatten() {
                *words = secrets.scrub(words);
            }
            scrub_words(&mut tool.input_schema, secrets);
            tool.output_schema.iter_mut().for_each(|schema| scrub_words(schema, secrets));
        }
        for Malformed { name, why } in &mut self.malformed {
            *name = printable(name, secrets, NAME_BYTES_MAX);
            *why = printable(why, secrets, REASON_BYTES_MAX);
        }
    }

    /// The outer error means that the list is too large, the inner error that the tool is malformed.
    fn tool(&mut self, tool: &str) -> Result<Result<McpDefinition, Malformed>, String> {
        let number = format!("#{}", self.count);
        let malformed = |name: &str, why: String| Ok(Err(Malformed { name: name.to_owned(), why }));
        let is_object = tool.starts_with('{');
        let Some(tool) = serde_json::from_str::<Tool<'_>>(tool).ok().filter(|_| is_object) else {
            return malformed(&number, "it is not an object, or has a member twice".to_owned());
        };
        let name = match text("name", tool.name) {
            Ok(Some(name)) if !name.is_empty() => name,
            Ok(_) => return malformed(&number, "it has no name".to_owned()),
            Err(why) => return malformed(&number, why),
        };
        let schemas = [tool.input_schema, tool.output_schema];
        let words = [tool.title, tool.description, tool.annotations];
        let bytes: usize = schemas.iter().chain(&words).flatten().map(|part| part.get().len()).sum();
        if bytes > limits::MCP_DEFINITION_BYTES_MAX {
            return malformed(&name, too_large());
        }
        self.values += schemas.iter().flatten().map(|part| json_values(part.get().as_bytes())).sum::<usize>();
        if self.values > limits::MCP_LIST_VALUES_MAX {
            return Err(format!("the schemas of its tools have more than {} values", limits::MCP_LIST_VALUES_MAX));
        }
        match read(&name, &tool) {
            Ok(definition) => Ok(Ok(definition)),
            Err(why) => malformed(&name, why),
        }
    }
}

pub(super) fn too_large() -> String {
    format!("its definition has more than {} bytes", limits::MCP_DEFINITION_BYTES_MAX)
}

fn read(name: &str, tool: &Tool<'_>) -> Result<McpDefinition, String> {
    Ok(McpDefinition {
        name: name.to_owned(),
        title: text("title", tool.title)?,
        description: text("description", tool.description)?,
        input_schema: schema("inputSchema", tool.input_schema)?.ok_or("it has no inputSchema")?,
        output_schema: schema("outputSchema", tool.output_schema)?,
        annotations: annotations(tool.annotations)?,
    })
}

fn text(member: &str, value: Option<&RawValue>) -> Result<Option<String>, String> {
    let read = value.map(|value| serde_json::from_str(value.get())).transpose();
    read.map_err(|_| format!("its {member} is not a string"))
}

fn schema(member: &str, value: Option<&RawValue>) -> Result<Option<Value>, String> {
    let read = value.map(|value| serde_json::from_str::<Value>(value.get())).transpose();
    match read {
        Ok(schema) if schema.as_ref().is_none_or(Value::is_object) => Ok(schema),
        Ok(_) => Err(format!("its {member} is not an object")),
        Err(error) => Err(format!("its {member} cannot be read: {error}")),
    }
}

/// A hint that is not a boolean is ignored. If a tool has no hints, its effect is `once`.
fn annotations(value: Option<&RawValue>) -> Result<McpAnnotations, String> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Annotations {
        title: Option<Value>,
        read_only_hint: Option<Value>,
        destructive_hint: Option<Value>,
        idempotent_hint: Option<Value>,
        open_world_hint: Option<Value>,
    }
    let Some(value) = value else { return Ok(McpAnnotations::default()) };
    let read: Annotations = serde_json::from_str(value.get()).map_err(|_| "its annotations are not an object")?;
    let hint = |hint: Option<Value>| hint.and_then(|hint| hint.as_bool());
    Ok(McpAnnotations {
        title: read.title.and_then(|title| title.as_str().map(str::to_owned)),
        read_only_hint: hint(read.read_only_hint),
        destructive_hint: hint(read.destructive_hint),
        idempotent_hint: hint(read.idempotent_hint),
        open_world_hint: hint(read.open_world_hint),
    })
}

/// Removes secrets from descriptions and other texts. Constraints on values stay unchanged.
fn scrub_words(schema: &mut Value, secrets: &Secrets) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                match value {
                    Value::String(words) if matches!(key.as_str(), "title" | "description" | "$comment") => {
                        *words = secrets.scrub(words);
                    }
                    value => scrub_words(value, secrets),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| scrub_words(item, secrets)),
        _ => {}
    }
}

fn quoted(text: &str) -> String {
    format!("{:?}", wording::cut(text, WORDS_BYTES_MAX))
}

/// Each item is JSON text. Keeps one item more than the limit, so that an excess is detected.
struct Items<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Items<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bounded;
        impl<'de> Visitor<'de> for Bounded {
            type Value = Vec<&'de RawValue>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while items.len() <= limits::MCP_TOOLS_MAX
                    && let Some(item) = from.next_element()?
                {
                    items.push(item);
                }
                while from.next_element::<IgnoredAny>()?.is_some() {}
                Ok(items)
            }
        }
        from.deserialize_seq(Bounded).map(Items)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    fn page(tools: Value, cursor: Option<&str>) -> String {
        json!({"tools": tools, "nextCursor": cursor}).to_string()
    }

    #[test]
    fn a_malformed_tool_is_reported_and_others_are_listed() {
        let fine = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": "yes"}});
        let large = json!({"name": "large", "description": "x".repeat(70_000), "inputSchema": {}});
        let tools = json!([
            fine("a"), 7, {"inputSchema": {}}, {"name": 4}, {"name": "b"}, {"name": "c", "inputSchema": []},
            {"name": "d", "inputSchema": {}, "description": {}}, {"name": "e", "inputSchema": {}, "annotations": 1},
            large, fine("z")
        ]);
        let mut listing = Listing::default();
        assert_eq!(listing.take(&page(tools, None)), Ok(None));
        let names: Vec<&str> = listing.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["a", "z"]);
        assert_eq!(listing.tools[0].annotations.read_only_hint, None, "what is no hint does not make a tool read-only");
        let named: Vec<String> = listing.malformed.iter().map(|tool| format!("{}: {}", tool.name, tool.why)).collect();
        assert_eq!(
            named,
            [
                "#2: it is not an object, or has a member twice",
                "#3: it has no name",
                "#4: its name is not a string",
                "b: it has no inputSchema",
                "c: its inputSchema is not an object",
                "d: its description is not a string",
                "e: its annotations are not an object",
                "large: its definition has more than 65536 bytes",
            ]
        );
    }

    #[test]
    fn an_endless_or_malformed_list_is_rejected_with_the_reason() {
        let tool = |n: usize| json!([{"name": format!("t{n}"), "inputSchema": {}}]);
        let mut same = Listing::default();
        assert_eq!(same.take(&page(tool(1), Some("x"))), Ok(Some("x".to_owned())));
        assert!(same.take(&page(tool(2), Some("x"))).unwrap_err().contains("the cursor \"x\" repeats"));
        let mut empty = Listing::default();
        let error = (0..20).find_map(|n| empty.take(&page(json!([]), Some(&n.to_string()))).err()).unwrap();
        assert_eq!(error, "more than 8 pages of its list of tools are empty");
        let mut many = Listing::default();
        let error = (0..1_000).find_map(|n| many.take(&page(tool(n), Some(&n.to_string()))).err()).unwrap();
        assert_eq!(error, "it lists more than 512 tools");
        for (answer, why) in [
            ("[]", "is not an object"),
            ("{}", "has no member `tools`"),
            (r#"{"tools":{}}"#, "is not an array"),
            (r#"{"tools":[],"nextCursor":7}"#, "is not a string: \"7\""),
        ] {
            let error = Listing::default().take(answer).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_bytes_and_values_of_a_tool_list_are_limited() {
        let heavy = json!([{"name": "a", "inputSchema": {}, "icons": ["x".repeat(1_000_000)]}]);
        let mut listing = Listing::default();
        let error = (0..9).find_map(|n| listing.take(&page(heavy.clone(), Some(&n.to_string()))).err()).unwrap();
        assert_eq!(error, "its list of tools has more than 4194304 bytes");
        let dense = json!([{"name": "a", "inputSchema": {"enum": vec![0; 30_000]}}]);
        let mut listing = Listing::default();
        let error = (0..40).find_map(|n| listing.take(&page(dense.clone(), Some(&n.to_string()))).err()).unwrap();
        assert_eq!(error, "the schemas of its tools have more than 200000 values");
    }
}
