//! Runs a role, such as a scheduler or worker, as a process with a log.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::binary::{command, command_of};

pub struct Process {
    child: Child,
    log: tempfile::NamedTempFile,
    health: String,
}

const GATEWAY: &str = "gateway ready";
const ANSWER: Duration = Duration::from_secs(60);

impl Process {
    pub fn start(role: &str, config: &Path, url: &str) -> Self {
        Self::start_with(role, config, url, &[])
    }

    pub fn start_with(role: &str, config: &Path, url: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_build(chosen_build().as_deref(), role, config, url, variables)
    }

    /// `None` selects the tests' own build.
    pub fn start_build(
        program: Option<&Path>,
        role: &str,
        config: &Path,
        url: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        let args = [role, "--config", config.to_str().unwrap(), "--redis-url", url];
        Self::spawn(program.map_or_else(|| command(&args), |build| command_of(build, &args)), variables)
    }

    /// The command must log `started` and run until it is stopped.
    pub fn start_command(args: &[&str], config: &Path, url: &str, out: Option<File>) -> Self {
        let args = [args, &["--config", config.to_str().unwrap(), "--redis-url", url]].concat();
        Self::spawn_to(command(&args), &[], out.map_or_else(Stdio::null, Stdio::from), "started")
    }

    pub fn start_gateway(keys: &Path, config: &Path, url: &str) -> (Self, u16) {
        Self::start_gateway_with(keys, config, url, &[], &[])
    }

    pub fn start_gateway_with(
        keys: &Path,
        config: &Path,
        url: &str,
        more: &[&str],
        variables: &[(&str, &str)],
    ) -> (Self, u16) {
        let args =
            ["gateway", "--keys", keys.to_str().unwrap(), "--address", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
        let args = [&args[..], &["--config", config.to_str().unwrap(), "--redis-url", url], more].concat();
        let process = Self::spawn_to(command(&args), variables, Stdio::null(), GATEWAY);
        let address = process.says(GATEWAY)["address"].as_str().unwrap().to_owned();
        (process, address.rsplit(':').next().unwrap().parse().unwrap())
    }

    fn spawn(command: Command, variables: &[(&str, &str)]) -> Self {
        Self::spawn_to(command, variables, Stdio::null(), "started")
    }

    fn spawn_to(mut command: Command, variables: &[(&str, &str)], out: Stdio, says: &str) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        command.env("TICKFLEET_HTTP_ADDRESS", "127.0.0.1:0").env("TICKFLEET_LOG_FORMAT", "json");
        command.env("TICKFLEET_WORKER_LEASE", "2s").env("TICKFLEET_WORKER_DRAIN", "5s");
        command.envs(variables.iter().copied());
        command.stdout(out).stderr(File::create(log.path()).unwrap());
        let mut process = Self { child: command.spawn().unwrap(), log, health: String::new() };
        process.health = process.says(says)["health"].as_str().unwrap().to_owned();
        process
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.log.path()).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub fn until(&self, message: &str, is: impl Fn(&Value) -> bool) -> Value {
        let wanted = |line: &Value| line["message"] == message && is(line);
        let lines = until(message, || self.lines(), |lines| lines.iter().any(wanted));
        lines.into_iter().find(wanted).unwrap()
    }

    pub fn says(&self, message: &str) -> Value {
        self.until(message, |_| true)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    pub fn count(&self, message: &str) -> usize {
        self.lines().iter().filter(|line| line["message"] == message).count()
    }

    pub fn reloaded(&self, times: usize) -> Value {
        let message = "configuration reloaded";
        until("the process has reloaded", || self.count(message), |count| *count >= times);
        self.lines().into_iter().rfind(|line| line["message"] == message).unwrap()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
        if signal == Signal::SIGSTOP {
            tickfleet_testkit::until_stopped(self.child.id());
        }
    }

    pub fn port(&self) -> u16 {
        self.health.rsplit(':').next().unwrap().parse().unwrap()
    }

    pub fn metrics(&self) -> String {
        self.answer("/metrics")
    }

    pub fn answer(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.health).unwrap();
        stream.set_read_timeout(Some(ANSWER)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    pub fn stop(mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap().code()
    }
}

#[allow(clippy::disallowed_methods, reason = "whoever runs it by hand may have a release build")]
pub fn chosen_build() -> Option<PathBuf> {
    std::env::var_os("TICKFLEET_TEST_BINARY").filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns what `look` finds as soon as `is_so`. Panics after two minutes.
pub fn until<T: Debug>(what: &str, mut look: impl FnMut() -> T, is_so: impl Fn(&T) -> bool) -> T {
    // 2,400 pauses of 50 ms take two minutes.
    for _ in 0..2_400 {
        let found = look();
        if is_so(&found) {
            return found;
        }
        pause();
    }
    panic!("not within two minutes: {what}. Last: {:#?}", look());
}

#[allow(clippy::disallowed_methods, reason = "the processes under test are not on this runtime")]
pub fn pause() {
    // Processes do not report state changes to tests, so tests poll with this pause. Most polls are bounded.
    std::thread::sleep(Duration::from_millis(50));
}
