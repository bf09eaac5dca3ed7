//! Asking a server what it offers, to pin it or to compare it with what is pinned.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::McpDefinition;
use tickfleet_config::mcp::McpServerDef;
use tickfleet_model::limits;

use super::child::Tail;
use super::{definition, link};
use tickfleet_tools::Environment;
use tickfleet_tools::{ArgumentCheck, OutputCheck};

/// Limit of the whole look, unless somebody chooses another one.
pub const LOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// The offer of a server: its tools, and its version.
#[derive(Debug, Clone)]
pub struct Offer {
    /// The version that it gives of itself.
    pub version: Option<String>,
    /// The tools that can be imported, in its order.
    pub tools: Vec<McpDefinition>,
    /// The tools that cannot, by the server's own names, and why not.
    pub refused: Vec<(String, String)>,
}

/// Connects to a server, asks for its tools, and closes the connection, all within `limit`.
///
/// # Errors
/// Why not, in words for an operator, without secrets.
pub async fn look(name: &str, def: &McpServerDef, environment: &Environment, limit: Duration) -> Result<Offer, String> {
    let tail = Arc::new(Tail::default());
    let looked = tokio::time::timeout(limit, async {
        let link = link::connect_heard(name, &def.connection, environment, &tail).await?;
        let listed = link.tools().await;
        let version = link.version();
        link.stop().await;
        Ok::<_, String>((listed?, version))
    });
    let silent = || format!("it did not tell its tools within {} s{}", limit.as_secs(), tail.words());
    let (listed, version) = looked.await.map_err(|_| silent())??;
    let mut offer = Offer { version, tools: Vec::new(), refused: Vec::new() };
    for tool in listed {
        match unusable(def, &tool, &offer.tools) {
            Some(why) => offer.refused.push((tool.name, why)),
            None => offer.tools.push(tool),
        }
    }
    Ok(offer)
}

/// Why a tool cannot be imported, if it cannot.
fn unusable(def: &McpServerDef, tool: &McpDefinition, before: &[McpDefinition]) -> Option<String> {
    let name = def.tool_name(&tool.name);
    let odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    if name.len() > limits::NAME_BYTES_MAX || name.contains(odd) {
        return Some(format!(
            "its name {name:?} is not 1 to {} characters of A-Z a-z 0-9 _ . -",
            limits::NAME_BYTES_MAX
        ));
    }
    if before.iter().any(|other| other.name == tool.name) {
        return Some("the server lists this name twice".to_owned());
    }
    if definition::too_large(tool) {
        return Some(format!("its definition has more than {} bytes", limits::MCP_DEFINITION_BYTES_MAX));
    }
    if let Err(error) = ArgumentCheck::compile_callable(&tool.input_schema) {
        return Some(format!("the input schema {error}"));
    }
    let output = tool.output_schema.as_ref().map(OutputCheck::compile);
    output.and_then(Result::err).map(|error| format!("the output schema {error}"))
}
