//! Asking a server what it offers, to pin it or to compare it with what is pinned.

use std::time::Duration;

use shared::config::McpDefinition;
use shared::config::mcp::McpServerDef;
use shared::model::limits;

use super::{definition, link};
use crate::tools::http::Environment;
use crate::tools::{ArgumentCheck, OutputCheck};

/// Limit of the whole look: `npx` may have to fetch a package first.
const LOOK_TIMEOUT: Duration = Duration::from_secs(120);

/// What a server offers.
#[derive(Debug, Clone)]
pub struct Offer {
    /// The version that it gives of itself.
    pub version: Option<String>,
    /// The tools that can be imported, in its order.
    pub tools: Vec<McpDefinition>,
    /// The tools that cannot, by the server's own names, and why not.
    pub refused: Vec<(String, String)>,
}

/// Connects to a server, asks for its tools, and closes the connection.
///
/// # Errors
/// Why not, in words for an operator, without secrets.
pub async fn look(name: &str, def: &McpServerDef, environment: &Environment) -> Result<Offer, String> {
    let looked = tokio::time::timeout(LOOK_TIMEOUT, async {
        let link = link::connect(name, &def.connection, environment).await?;
        let listed = link.tools().await;
        let version = link.version();
        link.stop().await;
        Ok::<_, String>((listed?, version))
    });
    let (listed, version) = looked.await.map_err(|_| format!("not ready within {} s", LOOK_TIMEOUT.as_secs()))??;
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
