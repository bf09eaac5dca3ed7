//! The tool that the bench calls: one that gives its text back, in one of several kinds.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// The kind of the tool that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum ToolKind {
    /// A Rust function of the worker.
    #[default]
    Typed,
    /// A Python function in four interpreters.
    Python,
}

/// The same as the typed tool `echo`.
const ECHO: &str = "\
from tickfleet import tool


@tool(effect=\"read\")
async def echo_python(text: str) -> dict[str, str]:
    \"\"\"Gives the text back.

    :param text: The text.
    \"\"\"
    return {\"text\": text}
";

impl ToolKind {
    /// Its word in reports.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Typed => "typed",
            Self::Python => "python",
        }
    }

    /// The tool's name.
    pub(super) const fn tool(self) -> &'static str {
        match self {
            Self::Typed => "echo",
            Self::Python => "echo_python",
        }
    }

    /// Writes what the configuration in `dir` needs to have the tool; `slots` calls may run at once.
    pub(super) fn write(self, dir: &Path, interpreter: &str, slots: usize) -> io::Result<()> {
        let mut tools = String::from("tools: {}\n");
        if self == Self::Python {
            let code = dir.join("code");
            std::fs::create_dir_all(&code)?;
            std::fs::write(code.join("bench_tools.py"), ECHO)?;
            let (path, concurrency) = (code.display(), slots.div_ceil(PROCESSES).clamp(1, 256));
            // Writing to a String cannot fail.
            let _ = write!(
                tools,
                "python:\n  bench:\n    module: bench_tools\n    path: ['{path}']\n    interpreter: '{interpreter}'\n    \
                 processes: {PROCESSES}\n    concurrency: {concurrency}\n    recycle_after_calls: 1000000000\n"
            );
        }
        std::fs::write(dir.join("tools.yaml"), tools)?;
        std::fs::write(dir.join("permissions.yaml"), format!("permissions:\n  {}:\n    everyone: true\n", self.tool()))
    }
}

/// Interpreters.
const PROCESSES: usize = 4;
