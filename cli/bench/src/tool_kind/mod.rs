//! The tool that the benchmark calls, in several kinds. The tool returns its input text.

mod services;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

pub(super) use services::Services;

/// Kind of the tool that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum ToolKind {
    /// A Rust function of the worker.
    #[default]
    Typed,
    /// A Python function in four interpreters.
    Python,
    /// A request to a local web service.
    Http,
    /// A tool of a local MCP server, over HTTP.
    Mcp,
    /// A sandboxed command at level `basic`: one process per call.
    Shell,
}

const IN_PYTHON: &str = "\
from tickfleet import tool

@tool(effect=\"read\")
async def echo_python(text: str) -> dict[str, str]:
    \"\"\"Gives the text back.

    :param text: The text.
    \"\"\"
    return {\"text\": text}
";
const PROCESSES: usize = 4;

const DECLARED: &str = "    description: Gives the text back.
    effect: read
    input_schema:
      type: object
      properties: {text: {type: string}}
      required: [text]
      additionalProperties: false
";

impl ToolKind {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Typed => "typed",
            Self::Python => "python",
            Self::Http => "http",
            Self::Mcp => "mcp",
            Self::Shell => "shell",
        }
    }

    pub(super) const fn tool(self) -> &'static str {
        match self {
            Self::Typed => "echo",
            Self::Python => "echo_python",
            Self::Http => "echo_http",
            Self::Mcp => "bench__echo",
            Self::Shell => "echo_shell",
        }
    }

    /// An MCP tool needs `program` to pin its definition. The caller must keep the returned services as long as the
    /// tool is called.
    pub(super) async fn write(
        self,
        dir: &Path,
        program: &Path,
        interpreter: &str,
        slots: usize,
    ) -> Result<Option<Services>> {
        let services = match self {
            Self::Http | Self::Mcp => Some(Services::start().await?),
            Self::Typed | Self::Python | Self::Shell => None,
        };
        let address = services.as_ref().map(|of| of.address.as_str()).unwrap_or_default();
        let tools = match self {
            Self::Typed | Self::Mcp => "tools: {}\n".to_owned(),
            Self::Python => python(dir, interpreter, slots).context("writing the bench's module")?,
            Self::Http => declared(
                self,
                &format!(
                    "{{method: POST, base_url: 'http://{address}', path: /echo, body: {{text: '{{{{text}}}}'}}, \
                     allow_private: ['{address}']}}"
                ),
            ),
            Self::Shell => declared(self, "{level: basic, command: [cat], stdin: '{{text}}'}"),
        };
        let permissions = format!("permissions:\n  {}:\n    everyone: true\n", self.tool());
        std::fs::write(dir.join("tools.yaml"), tools)?;
        std::fs::write(dir.join("permissions.yaml"), permissions)?;
        if self == Self::Mcp {
            let server = format!("servers:\n  bench: {{url: 'http://{address}/mcp', allow_private: ['{address}']}}\n");
            std::fs::write(dir.join("mcp.yaml"), server)?;
            pin(program, dir).await?;
        }
        Ok(services)
    }
}

fn declared(kind: ToolKind, how: &str) -> String {
    format!("tools:\n  {}:\n{DECLARED}    {}: {how}\n", kind.tool(), kind.word())
}

fn python(dir: &Path, interpreter: &str, slots: usize) -> io::Result<String> {
    let code = dir.join("code");
    std::fs::create_dir_all(&code)?;
    std::fs::write(code.join("bench_tools.py"), IN_PYTHON)?;
    let path = code.display();
    let concurrency = slots.div_ceil(PROCESSES).clamp(1, 256);
    Ok(format!(
        "tools: {{}}\npython:\n  bench:\n    module: bench_tools\n    path: ['{path}']\n    interpreter: '{interpreter}'\n    \
         processes: {PROCESSES}\n    concurrency: {concurrency}\n    recycle_after_calls: 1000000000\n"
    ))
}

async fn pin(program: &Path, dir: &Path) -> Result<()> {
    let pinned = Command::new(program).args(["mcp", "pin", "--config"]).arg(dir).output().await?;
    ensure!(pinned.status.success(), "pinning the bench's tool: {}", String::from_utf8_lossy(&pinned.stderr));
    Ok(())
}

/// Outside `dir`: commands may run as another user, who may have no access to `dir`.
pub(super) fn workspaces(dir: &Path) -> PathBuf {
    dir.with_extension("workspaces")
}
