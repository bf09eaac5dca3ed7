use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;

/// These variables of the machine would change the results of tests.
const FOREIGN: [&str; 13] = [
    "REDIS_URL",
    "MAX_ACTIONS_PER_DAY",
    "TICKFLEET_CONFIG",
    "TICKFLEET_REDIS_URL",
    "TICKFLEET_REDIS_SHARDS",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "LLM_PROVIDER",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_MODEL",
    "ANTHROPIC_API_KEY",
    "CLAUDE_MODEL",
    "GEMINI_API_KEY",
];

const AWAY: i32 = 3;
const PATIENCE: Duration = Duration::from_secs(120);

pub fn command(args: &[&str]) -> Command {
    command_of(Path::new(env!("CARGO_BIN_EXE_tickfleet")), args)
}

pub fn command_of(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    for name in FOREIGN {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn tickfleet(args: &[&str]) -> CommandOutput {
    CommandOutput::of(&mut command(args), "")
}

/// The commands that `tickfleet --help` lists.
pub fn command_names() -> Vec<String> {
    let help = tickfleet(&["--help"]).stdout;
    let listed = help.split("\n\n").find_map(|part| part.strip_prefix("Commands:\n")).unwrap().lines();
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[derive(Debug)]
pub struct CommandOutput {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    pub fn of(command: &mut Command, stdin: &str) -> Self {
        let mut child = command.spawn().unwrap();
        // The write fails if the process has ended without reading its input.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    pub fn says(&self, text: &str) -> &Self {
        assert!(self.stdout.contains(text), "no {text:?} in stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    pub fn prints_error(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "no {text:?} in stderr:\n{}\nstdout:\n{}", self.stderr, self.stdout);
        self
    }

    pub fn json(&self) -> serde_json::Value {
        let read = serde_json::from_str(&self.stdout);
        read.unwrap_or_else(|error| panic!("no JSON ({error}):\n{}\nstderr:\n{}", self.stdout, self.stderr))
    }
}

/// Repeats the command. Each node and each Sentinel has one second to respond, so the command fails if the machine
/// stalls.
pub fn reached(run: impl Fn() -> CommandOutput) -> CommandOutput {
    let began = Instant::now();
    loop {
        let said = run();
        if said.code != AWAY || began.elapsed() > PATIENCE {
            return said;
        }
    }
}

pub fn until_printed(text: &str, run: impl Fn() -> CommandOutput) {
    until_all_printed(&[text], run);
}

pub fn until_all_printed(texts: &[&str], run: impl Fn() -> CommandOutput) {
    let began = Instant::now();
    loop {
        let said = run();
        let is_right = said.code == 0 && texts.iter().all(|text| said.stdout.contains(text));
        if is_right || began.elapsed() > PATIENCE {
            let said = said.exits(0);
            for text in texts {
                said.says(text);
            }
            return;
        }
    }
}

/// Dropping this value kills the process. The process' private Redis ends too.
pub struct DevFleet {
    child: Child,
    /// Includes the given Redis URL.
    exports: Vec<(String, String)>,
    pub welcome: Vec<String>,
}

impl DevFleet {
    pub fn start(args: &[&str]) -> Self {
        Self::start_in(Path::new("."), args, &[])
    }

    pub fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_in(Path::new("."), args, variables)
    }

    pub fn start_in(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_program(Path::new(env!("CARGO_BIN_EXE_tickfleet")), folder, args, variables)
    }

    pub fn start_program(program: &Path, folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let began = Instant::now();
        loop {
            match Self::try_to_start(program, folder, args, variables) {
                Ok(fleet) => return fleet,
                // `dev` could not reach Redis, so it is started again (see [`reached`]).
                Err(Some(AWAY)) if began.elapsed() < PATIENCE => {}
                Err(code) => panic!("tickfleet dev ended instead of running: {code:?}"),
            }
        }
    }

    /// The error is the exit code of a program that ends instead of running.
    fn try_to_start(
        program: &Path,
        folder: &Path,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self, Option<i32>> {
        let mut command = command_of(program, &[&["dev"], args].concat());
        command.current_dir(folder);
        command.env("TICKFLEET_HTTP_ADDRESS", "127.0.0.1:0").envs(variables.iter().copied()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let chosen = args.iter().skip_while(|arg| **arg != "--redis-url").nth(1);
        let mut exports: Vec<(String, String)> =
            chosen.iter().map(|url| ("REDIS_URL".into(), url.to_string())).collect();
        let mut welcome = Vec::new();
        for line in BufReader::new(child.stdout.as_mut().unwrap()).lines() {
            let line = line.unwrap();
            welcome.push(line.clone());
            if let Some((name, value)) = line.trim().strip_prefix("export ").and_then(|rest| rest.split_once('=')) {
                exports.push((name.to_owned(), value.trim_matches('\'').to_owned()));
            }
            if line.starts_with("Ctrl-C") {
                return Ok(Self { child, exports, welcome });
            }
        }
        Err(child.wait().unwrap().code())
    }

    pub fn refused(args: &[&str]) -> CommandOutput {
        CommandOutput::of(command(&[&["dev"], args].concat()).env("TICKFLEET_HTTP_ADDRESS", "127.0.0.1:0"), "")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.envs(self.exports.iter().cloned());
        command
    }

    pub fn shell(&self, line: &str) -> Command {
        let mut shell = Command::new("sh");
        for name in FOREIGN {
            shell.env_remove(name);
        }
        shell.args(["-c", line]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        shell.envs(self.exports.iter().cloned());
        shell
    }

    pub fn run(&self, args: &[&str]) -> CommandOutput {
        self.run_with(args, "")
    }

    pub fn run_with(&self, args: &[&str], stdin: &str) -> CommandOutput {
        CommandOutput::of(&mut self.command(args), stdin)
    }

    pub fn stop(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        let mut rest = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for DevFleet {
    fn drop(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TURN: [&str; 5] = ["submit", "--tenant", "demo", "--agent", "kelly"];

pub fn submit<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&TURN, more].concat()
}
