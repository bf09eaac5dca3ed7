//! The Python tool of the day: sales figures. If no interpreter has the package `tickfleet`, the tool is left out.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::json;
use tokio::process::Command;

use crate::commands::demo::day::Planned;

const NAME: &str = "sales_figures";
const MODULE: &str = include_str!("sales_tools.py");
const FILE: &str = "sales_tools.py";
const GRANT: &str = "\n  # A function in Python.\n  sales_figures: {roles: [finance]}\n";
/// A cold start of Python with the package's dependencies takes about a second.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
const REASON_CHARS: usize = 160;
/// Prints the path of the interpreter. On failure, the last line on stderr is the reason.
const CHECK: &str = "\
import sys
if sys.version_info < (3, 10):
    sys.exit('it is Python %d.%d; 3.10 is needed' % sys.version_info[:2])
try:
    import tickfleet.host
except ImportError as error:
    sys.exit('%s (pip install ./python in a checkout)' % error)
print(sys.executable)
";

pub(crate) struct PythonTool {
    /// The path of the interpreter, or the reason why the tool is left out, on one line.
    interpreter: Result<String, String>,
}

impl PythonTool {
    pub(crate) async fn probe(program: &str) -> Self {
        Self::probe_within(PROBE_TIMEOUT, program).await
    }

    async fn probe_within(limit: Duration, program: &str) -> Self {
        // As in a worker, `-E` ignores variables that change where Python finds packages.
        let mut asked = Command::new(program);
        asked.args(["-E", "-c", CHECK]).stdin(Stdio::null()).kill_on_drop(true);
        let interpreter = match tokio::time::timeout(limit, asked.output()).await {
            Err(_) => Err(format!("it gave no answer within {limit:?}")),
            Ok(Err(error)) => Err(format!("it cannot be started ({error})")),
            Ok(Ok(output)) => answer(&output),
        };
        Self { interpreter: interpreter.map_err(|why| format!("{program}: {why}")) }
    }

    pub(crate) fn left_out(&self) -> Option<&str> {
        self.interpreter.as_ref().err().map(String::as_str)
    }

    /// Returns the additions to `tools.yaml` and `permissions.yaml`, and writes the module to `dir`.
    pub(crate) fn configuration(&self, dir: &Path) -> std::io::Result<(String, &'static str)> {
        let Ok(interpreter) = &self.interpreter else { return Ok((String::new(), "")) };
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join(FILE), MODULE)?;
        // A JSON string is also valid YAML.
        let path = json!(dir.to_string_lossy());
        let interpreter = json!(interpreter);
        let entry = format!(
            "\npython:\n  sales:\n    module: sales_tools\n    path: [{path}]\n    interpreter: {interpreter}\n    \
             processes: 1\n"
        );
        Ok((entry, GRANT))
    }

    pub(crate) fn playable(&self, day: Vec<Planned>) -> Vec<Planned> {
        let calls_it = |planned: &Planned| planned.turn.calls.iter().any(|call| call.tool == NAME);
        day.into_iter().filter(|planned| self.interpreter.is_ok() || !calls_it(planned)).collect()
    }
}

fn answer(output: &Output) -> Result<String, String> {
    let last_line = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.lines().rfind(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
    };
    if !output.status.success() {
        let words = last_line(&output.stderr).unwrap_or_else(|| output.status.to_string());
        return Err(words.chars().take(REASON_CHARS).collect());
    }
    last_line(&output.stdout).ok_or_else(|| "it did not report its path".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::commands::demo::day;

    async fn probed(limit: Duration, script: &str) -> PythonTool {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("python");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        PythonTool::probe_within(limit, program.to_str().unwrap()).await
    }

    #[tokio::test]
    async fn without_python_two_turns_are_skipped_with_a_reason() {
        let whole = day::plan().unwrap().len();
        let lesser = PythonTool::probe("/nowhere/python3").await;
        assert!(lesser.left_out().unwrap().starts_with("/nowhere/python3: it cannot be started (No such file"));
        assert_eq!(lesser.playable(day::plan().unwrap()).len(), whole - 2);
        assert_eq!(lesser.configuration(Path::new("/nowhere")).unwrap(), (String::new(), ""));
    }

    #[tokio::test]
    async fn a_hanging_interpreter_times_out() {
        let lesser = probed(Duration::from_millis(50), "exec sleep 600").await;
        assert!(lesser.left_out().unwrap().ends_with("python: it gave no answer within 50ms"));
    }

    #[tokio::test]
    async fn an_interpreters_last_output_line_is_its_error_or_its_path() {
        let probed = |script| probed(PROBE_TIMEOUT, script);
        let lesser = probed("echo Traceback >&2; echo 'it is Python 3.8; 3.10 is needed' >&2; exit 1").await;
        assert!(lesser.left_out().unwrap().ends_with("python: it is Python 3.8; 3.10 is needed"));
        assert!(probed("exit 7").await.left_out().unwrap().ends_with("exit status: 7"));
        assert!(probed("exit 0").await.left_out().unwrap().ends_with("it did not report its path"));
        let whole = probed("echo /there/python3").await;
        assert_eq!((whole.left_out(), whole.playable(day::plan().unwrap()).len()), (None, day::plan().unwrap().len()));
        let folder = tempfile::tempdir().unwrap();
        let (entry, grant) = whole.configuration(&folder.path().join("code")).unwrap();
        assert!(entry.contains("interpreter: \"/there/python3\"") && grant.contains(NAME));
        assert_eq!(std::fs::read_to_string(folder.path().join("code").join(FILE)).unwrap(), MODULE);
    }
}
