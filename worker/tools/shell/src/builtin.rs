//! The tools that coding agents expect: workspace files, commands and Python.

use std::sync::Arc;
use std::time::Duration;

use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet_model::Effect;
use tickfleet_sandbox::{Level, Spec, usage};
use tickfleet_tools::{CallContext, ToolError, ToolFailure, TypedTool};

use crate::files::Files;
use crate::result::CommandResult;
use crate::shell::{self, Shell};

pub const NAMES: [&str; 7] =
    ["read_file", "write_file", "edit_file", "list_files", "search_files", "run_command", "run_python"];
pub const RUNNING: [&str; 2] = ["run_command", "run_python"];

const FILE_BYTES_MAX: u64 = 1 << 20;
const LISTED_MAX: usize = 1_000;
const FOUND_MAX: usize = 200;
const LINE_CHARS_MAX: usize = 300;
const TIMEOUT: Duration = Duration::from_secs(30);

/// The tools for files. They need no sandbox.
#[must_use]
pub fn files(shell: &Arc<Shell>) -> Vec<TypedTool> {
    vec![read_file(shell), write_file(shell), edit_file(shell), list_files(shell), search_files(shell)]
}

#[must_use]
pub fn running(shell: &Arc<Shell>, level: Level) -> Vec<TypedTool> {
    vec![run_command(shell, level), run_python(shell, level)]
}

/// For a machine that supports no sandbox level. Each call fails with `not_configured`.
#[must_use]
pub fn refused(shell: &Arc<Shell>) -> Vec<TypedTool> {
    let refused = |tool: TypedTool| {
        let why = format!("The tool '{}' cannot run: it needs a sandbox. {}.", tool.spec().name, shell.support());
        tool.not_configured_here(why)
    };
    running(shell, Level::Basic).into_iter().map(refused).collect()
}

#[derive(Deserialize, JsonSchema)]
struct Read {
    /// Path of the file, relative to the workspace.
    path: String,
    /// The first line to return, from 1. Default: 1.
    #[serde(default)]
    from_line: Option<usize>,
    /// The number of lines to return. Default: all.
    #[serde(default)]
    lines: Option<usize>,
}

#[derive(Serialize, JsonSchema)]
struct Content {
    content: String,
    /// Number of lines in the whole file.
    total_lines: usize,
}

fn read_file(shell: &Arc<Shell>) -> TypedTool {
    on_files(shell, "read_file", "Reads a text file of the workspace.", Effect::Read, |files, args: Read| {
        let text = text_of(files, &args.path)?;
        let from = args.from_line.unwrap_or(1).max(1) - 1;
        let count = args.lines.unwrap_or(usize::MAX);
        let content = text.split_inclusive('\n').skip(from).take(count).collect();
        Ok(Content { content, total_lines: text.lines().count() })
    })
}

#[derive(Deserialize, JsonSchema)]
struct Write {
    /// Path of the file, relative to the workspace. Missing folders are created.
    path: String,
    /// The whole content of the file.
    content: String,
}

#[derive(Serialize, JsonSchema)]
struct Written {
    bytes: usize,
}

fn write_file(shell: &Arc<Shell>) -> TypedTool {
    let about = "Writes a text file of the workspace and replaces an existing file.";
    on_files(shell, "write_file", about, Effect::Idempotent, |files, args: Write| {
        write(files, &args.path, &args.content)?;
        Ok(Written { bytes: args.content.len() })
    })
}

#[derive(Deserialize, JsonSchema)]
struct Edit {
    /// Path of the file, relative to the workspace.
    path: String,
    /// The text to replace, exactly as in the file, including spaces and line breaks.
    old: String,
    /// The replacement text.
    new: String,
    /// True to replace every occurrence; otherwise there must be exactly one. Default: false.
    #[serde(default)]
    all: bool,
}

#[derive(Serialize, JsonSchema)]
struct Edited {
    replaced: usize,
}

fn edit_file(shell: &Arc<Shell>) -> TypedTool {
    let about = "Replaces a piece of text in a file of the workspace.";
    // If `new` contains `old`, a second run would change the file again.
    on_files(shell, "edit_file", about, Effect::Once, |files, args: Edit| {
        if args.old.is_empty() {
            return Err(ToolError::InvalidArguments("'old' is empty: write_file writes a whole file.".into()));
        }
        let text = text_of(files, &args.path)?;
        let count = text.matches(&args.old).count();
        if count == 0 {
            let why =
                "'old' does not occur in the file: read the file again, and pass the text exactly as the file has it.";
            return Err(ToolError::Permanent(why.into()));
        }
        if count > 1 && !args.all {
            return Err(ToolError::Permanent(format!(
                "'old' occurs {count} times: include more of the surrounding text, or set 'all' to true."
            )));
        }
        write(files, &args.path, &text.replace(&args.old, &args.new))?;
        Ok(Edited { replaced: count })
    })
}

#[derive(Deserialize, JsonSchema)]
struct List {
    /// The folder to list, relative to the workspace. Default: the workspace itself.
    #[serde(default)]
    path: String,
}

#[derive(Serialize, JsonSchema)]
struct Listed {
    entries: Vec<Line>,
    /// True if the list is incomplete.
    truncated: bool,
}

#[derive(Serialize, JsonSchema)]
struct Line {
    path: String,
    /// The size in bytes; absent for folders.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

fn list_files(shell: &Arc<Shell>) -> TypedTool {
    let about = "Lists the files and folders below a folder of the workspace.";
    on_files(shell, "list_files", about, Effect::Read, |files, args: List| {
        let (all, truncated) = files.walk(&args.path, LISTED_MAX)?;
        let line = |entry: crate::files::Entry| {
            let bytes = (!entry.is_folder).then_some(entry.size);
            Line { path: entry.path, bytes }
        };
        Ok(Listed { entries: all.into_iter().map(line).collect(), truncated })
    })
}

#[derive(Deserialize, JsonSchema)]
struct Search {
    /// The regular expression that a line must match, in Rust's syntax as in ripgrep.
    pattern: String,
    /// The folder to search, relative to the workspace. Default: the workspace itself.
    #[serde(default)]
    path: String,
}

#[derive(Serialize, JsonSchema)]
struct Found {
    matches: Vec<Match>,
    /// True if the results are incomplete.
    truncated: bool,
}

#[derive(Serialize, JsonSchema)]
struct Match {
    path: String,
    /// The line number, from 1.
    line: usize,
    text: String,
}

fn search_files(shell: &Arc<Shell>) -> TypedTool {
    let about = "Searches the text files below a folder of the workspace for lines that match.";
    on_files(shell, "search_files", about, Effect::Read, |files, args: Search| {
        let pattern = Regex::new(&args.pattern)
            .map_err(|error| ToolError::InvalidArguments(format!("'pattern' is not a regular expression: {error}")))?;
        let (all, mut truncated) = files.walk(&args.path, LISTED_MAX * 10)?;
        let mut matches = Vec::new();
        for entry in all.into_iter().filter(|entry| !entry.is_folder) {
            // Skip files that are not text or are too long, and links out of the workspace.
            let Ok(text) = text_of(files, &entry.path) else { continue };
            for (number, line) in text.lines().enumerate().filter(|(_, line)| pattern.is_match(line)) {
                if matches.len() == FOUND_MAX {
                    truncated = true;
                    return Ok(Found { matches, truncated });
                }
                let text = line.chars().take(LINE_CHARS_MAX).collect();
                matches.push(Match { path: entry.path.clone(), line: number + 1, text });
            }
        }
        Ok(Found { matches, truncated })
    })
}

#[derive(Deserialize, JsonSchema)]
struct Command {
    /// The command line, run by /bin/sh in the sandbox. It starts in the workspace.
    command: String,
    /// The content of the command's standard input.
    #[serde(default)]
    stdin: Option<String>,
}

fn run_command(shell: &Arc<Shell>, level: Level) -> TypedTool {
    let about = "Runs a command line in a sandbox without network, in the workspace, and returns its output.";
    running_tool(shell, level, "run_command", about, |args: Command| {
        (vec!["/bin/sh".into(), "-c".into(), args.command], args.stdin.unwrap_or_default())
    })
}

#[derive(Deserialize, JsonSchema)]
struct Python {
    /// The Python program.
    code: String,
}

fn run_python(shell: &Arc<Shell>, level: Level) -> TypedTool {
    let about = "Runs a Python program in a sandbox without network, in the workspace, and returns its output.";
    running_tool(shell, level, "run_python", about, |args: Python| (vec!["python3".into(), "-".into()], args.code))
}

fn on_files<Args, Out, Work>(shell: &Arc<Shell>, name: &str, about: &str, effect: Effect, work: Work) -> TypedTool
where
    Args: for<'de> Deserialize<'de> + JsonSchema + Send + 'static,
    Out: Serialize + JsonSchema + Send + 'static,
    Work: Fn(&Files, Args) -> Result<Out, ToolError> + Send + Sync + 'static,
{
    let shell = Arc::clone(shell);
    let work = Arc::new(work);
    TypedTool::new(name, about, effect, move |context: CallContext, args: Args| {
        let shell = Arc::clone(&shell);
        let work = Arc::clone(&work);
        async move {
            let working = tokio::task::spawn_blocking(move || {
                let files = Files::open(shell.workspace(&context).map_err(tool_error)?)?;
                work(&files, args)
            });
            working.await.map_err(ToolError::internal)?
        }
    })
    .category("workspace")
    .answers_by_agent()
}

fn running_tool<Args, Make>(shell: &Arc<Shell>, level: Level, name: &str, about: &str, make: Make) -> TypedTool
where
    Args: for<'de> Deserialize<'de> + JsonSchema + Send + 'static,
    Make: Fn(Args) -> (Vec<String>, String) + Send + Sync + 'static,
{
    let shell = Arc::clone(shell);
    let make = Arc::new(make);
    TypedTool::new(name, about, Effect::Once, move |context: CallContext, args: Args| {
        let shell = Arc::clone(&shell);
        let make = Arc::clone(&make);
        async move {
            let (argv, stdin) = make(args);
            if argv.iter().any(|argument| argument.contains('\0')) {
                return Err(ToolError::InvalidArguments("The command has a NUL character.".into()));
            }
            let workspace = shell.workspace(&context).map_err(tool_error)?.path;
            let spec = Spec { stdin: stdin.into_bytes(), limits: shell::limits(), ..Spec::new(argv, workspace) };
            let outcome = shell.run(level, spec, None, &context).await.map_err(tool_error)?;
            Ok::<_, ToolError>(CommandResult::from(outcome))
        }
    })
    .category("workspace")
    .timeout(TIMEOUT)
}

fn text_of(files: &Files, path: &str) -> Result<String, ToolError> {
    let content = files.read(path, FILE_BYTES_MAX)?;
    String::from_utf8(content).map_err(|_| ToolError::Permanent(format!("'{path}' is not UTF-8 text.")))
}

fn write(files: &Files, path: &str, content: &str) -> Result<(), ToolError> {
    let limits = shell::limits();
    let held = usage::folder_size(files.folder(), limits.workspace_files).map_err(|uncountable| {
        ToolError::Permanent(format!(
            "The workspace counts as full: {uncountable}. Remove the folder or make it readable."
        ))
    })?;
    let bytes = u64::try_from(content.len()).unwrap_or(u64::MAX);
    if bytes > FILE_BYTES_MAX {
        return Err(ToolError::Permanent(format!("A file of {bytes} bytes is too long: at most {FILE_BYTES_MAX}.")));
    }
    // In a full workspace, a file can still be replaced with a shorter one.
    let shrinks = || files.read(path, FILE_BYTES_MAX).is_ok_and(|before| content.len() < before.len());
    let is_full = held.bytes.saturating_add(bytes) > limits.workspace_bytes || held.files >= limits.workspace_files;
    if is_full && !shrinks() {
        return Err(ToolError::Permanent(
            "The workspace is full: make a file shorter, or delete files with run_command.".into(),
        ));
    }
    files.write(path, content.as_bytes())
}

fn tool_error(failure: ToolFailure) -> ToolError {
    match failure {
        ToolFailure::InvalidArguments { message } => ToolError::InvalidArguments(message),
        ToolFailure::Ended { message, .. } | ToolFailure::NotConfigured { message } => ToolError::Permanent(message),
        ToolFailure::Transient { message, not_executed: true, retry_after } => {
            ToolError::NotExecuted { message, retry_after }
        }
        ToolFailure::Transient { message, .. } => ToolError::Transient(message),
        ToolFailure::Waits { awaits, at_most } => ToolError::Waits { awaits: awaits.turn(), at_most },
        ToolFailure::Internal { message } => ToolError::Internal(message),
    }
}
