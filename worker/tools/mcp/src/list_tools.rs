//! Requests a server's tools, in order to pin the tools or to compare them with their pins.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::McpDefinition;
use tickfleet_config::mcp::McpServerDef;
use tickfleet_model::limits;

use super::listing::{Listing, Malformed};
use super::{definition, link, listing};
use tickfleet_tools::Environment;
use tickfleet_tools::standard_error::StderrTail;
use tickfleet_tools::{ArgumentCheck, OutputCheck, wording};

pub const LIST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct ServerTools {
    pub version: Option<String>,
    /// Only tools that can be imported, in the server's order.
    pub tools: Vec<McpDefinition>,
    /// The names of rejected tools on the server, and the reasons.
    pub refused: Vec<(String, String)>,
}

/// All steps together take at most `limit`. An error is worded for an operator, without secrets.
pub async fn list_tools(
    name: &str,
    def: &McpServerDef,
    environment: &Environment,
    limit: Duration,
) -> Result<ServerTools, String> {
    let tail = Arc::new(StderrTail::default());
    let looked = tokio::time::timeout(limit, async {
        let link = link::connect_with_tail(name, &def.connection, environment, &tail).await?;
        let listed = link.tools().await;
        let version = link.version();
        link.stop().await;
        Ok::<_, String>((listed?, version))
    });
    let silent = || format!("it did not list its tools within {} s{}", limit.as_secs(), tail.failure_suffix());
    let (listed, version) = looked.await.map_err(|_| silent())??;
    Ok(server_tools(def, listed, version))
}

pub(super) fn server_tools(def: &McpServerDef, listed: Listing, version: Option<String>) -> ServerTools {
    let refused = listed.malformed.into_iter().map(|Malformed { name, why }| (name, why)).collect();
    let mut offer = ServerTools { version, tools: Vec::new(), refused };
    for tool in listed.tools {
        match unusable(def, &tool, &offer.tools) {
            Some(why) => offer.refused.push((wording::cut(&tool.name, limits::NAME_BYTES_MAX), why)),
            None => offer.tools.push(tool),
        }
    }
    offer
}

fn unusable(def: &McpServerDef, tool: &McpDefinition, before: &[McpDefinition]) -> Option<String> {
    let name = def.tool_name(&tool.name);
    let odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    if name.len() > limits::NAME_BYTES_MAX || name.contains(odd) {
        return Some(format!(
            "its name {:?} is not 1 to {} characters of A-Z a-z 0-9 _ . -",
            wording::cut(&name, limits::NAME_BYTES_MAX),
            limits::NAME_BYTES_MAX
        ));
    }
    if before.iter().any(|other| other.name == tool.name) {
        return Some("the server lists this name twice".to_owned());
    }
    if definition::too_large(tool) {
        return Some(listing::too_large());
    }
    if let Some(why) = definition::unpinnable(tool) {
        return Some(why);
    }
    if let Err(error) = ArgumentCheck::compile(&tool.input_schema) {
        return Some(format!("the input schema {error}"));
    }
    let output = tool.output_schema.as_ref().map(OutputCheck::compile);
    output.and_then(Result::err).map(|error| format!("the output schema {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::{Value, json};
    use tickfleet_config::{MCP_LOCK_FILE, McpPinned, McpPins, Sources, load_mcp};

    use super::*;

    fn nested(name: &str, depth: usize, key_bytes: usize) -> Value {
        let key = "\u{1}".repeat(key_bytes);
        let inside = (2..depth).fold(json!({key: 1}), |inner, _| json!([inner]));
        json!({"name": name, "inputSchema": {"type": "object", "default": inside}})
    }

    #[test]
    fn an_unpinnable_definition_is_rejected_and_others_are_pinned() {
        let folder = tempfile::tempdir().unwrap();
        let sources = Sources { dir: Some(folder.path().to_owned()), ..Sources::default() };
        let file = "servers: {s: {url: \"https://mcp.example.com\"}}";
        std::fs::write(folder.path().join("mcp.yaml"), file).unwrap();
        let (mut servers, _) = load_mcp(&sources).unwrap();
        let def = servers.servers.remove("s").unwrap();
        let depth = limits::MCP_SCHEMA_DEPTH_MAX;
        let key = limits::MCP_SCHEMA_KEY_BYTES_MAX;
        let tools =
            vec![nested("most", depth, key), nested("deeper", depth + 1, key), nested("longer", depth, key + 1)];
        let mut listed = Listing::default();
        listed.take(&json!({"tools": tools}).to_string()).unwrap();
        let offer = server_tools(&def, listed, None);
        assert_eq!((offer.tools.len(), offer.refused.len()), (1, 2), "{:?}", offer.refused);
        assert!(offer.refused[0].1.contains("48 levels"), "{:?}", offer.refused);
        assert!(offer.refused[1].1.contains("160 bytes"), "{:?}", offer.refused);
        let pinned = McpPinned { version: None, tools: offer.tools };
        let pins = McpPins { servers: [("s".to_owned(), pinned)].into() };
        std::fs::write(folder.path().join(MCP_LOCK_FILE), pins.to_yaml()).unwrap();
        assert_eq!(load_mcp(&sources).unwrap().1, pins, "what was pinned is read back");
    }
}
