//! The shell tool of the day counts words. If this machine cannot provide the tool's sandbox, the tool is left out.

use std::path::PathBuf;
use std::time::Duration;

use tickfleet_sandbox::{Launcher, Level, Network};
use tickfleet_tools_shell::Shell;

use crate::commands::demo::day::Planned;

const NAME: &str = "count_words";
const DECLARATION: &str = "
  count_words:
    description: Counts the words of a text.
    effect: read
    input_schema:
      type: object
      properties:
        text: {type: string, maxLength: 100000, description: The text.}
      required: [text]
      additionalProperties: false
    shell: {level: basic, command: [wc, -w], stdin: \"{{text}}\"}
";
const GRANT: &str = "\n  # A command in a sandbox.\n  count_words: {everyone: true}\n";
/// Longer than a run of the demo.
const KEPT_FOR: Duration = Duration::from_secs(3_600);

pub(crate) struct ShellTool {
    /// Commands may run as another user, without access to the demo's own folder.
    pub(crate) workspaces: PathBuf,
    /// The reason is on one line; `None` if the tool can be used.
    pub(crate) left_out: Option<String>,
}

impl ShellTool {
    pub(crate) fn probe(workspaces: PathBuf) -> Self {
        let shell = Shell::new(Launcher::this_program(), &workspaces, KEPT_FOR);
        let held = shell.support().check(Level::Basic, &Network::None);
        Self { workspaces, left_out: held.err().map(|why| why.replace('\n', " ")) }
    }

    pub(crate) const fn configuration(&self) -> (&'static str, &'static str) {
        if self.left_out.is_none() { (DECLARATION, GRANT) } else { ("", "") }
    }

    pub(crate) fn playable(&self, day: Vec<Planned>) -> Vec<Planned> {
        let calls_it = |planned: &Planned| planned.turn.calls.iter().any(|call| call.tool == NAME);
        day.into_iter().filter(|planned| self.left_out.is_none() || !calls_it(planned)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::commands::demo::day;

    fn tool(left_out: Option<&str>) -> ShellTool {
        ShellTool { workspaces: PathBuf::new(), left_out: left_out.map(str::to_owned) }
    }

    #[test]
    fn without_the_sandbox_one_turn_and_the_tool_are_omitted() {
        let whole = day::plan().unwrap().len();
        assert_eq!(tool(None).playable(day::plan().unwrap()).len(), whole);
        let lesser = tool(Some("no Landlock"));
        assert_eq!(lesser.playable(day::plan().unwrap()).len(), whole - 1);
        assert_eq!(lesser.configuration(), ("", ""));
    }
}
