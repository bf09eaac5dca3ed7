//! The package for Node.js, built from the checkout in cargo's target folder.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::documents::REPOSITORY;

/// The environment variable that, set to `1`, lets tests of the TypeScript client pass without running.
const SKIP_VARIABLE: &str = "TICKFLEET_SKIP_NODE";
/// What the package is built of.
const PARTS: [&str; 5] = ["package.json", "package-lock.json", "tsconfig.json", "README.md", "src"];
/// The oldest Node.js that the package runs on.
const MAJOR_MIN: u32 = 20;

/// A Node.js and the package.
pub struct Node {
    /// The folder of the built package.
    pub package: PathBuf,
    /// Where `node` was fetched to; none where it is the machine's own, with npm.
    pub fetched: Option<PathBuf>,
}

impl Node {
    /// Builds the package where needed; none where [`SKIP_VARIABLE`] is `1`.
    #[allow(clippy::disallowed_methods, reason = "a knob of the tests, documented beside them")]
    pub fn unless_skipped() -> Option<Self> {
        if env::var(SKIP_VARIABLE).is_ok_and(|value| value == "1") {
            eprintln!("{SKIP_VARIABLE}=1: the client in TypeScript is not tried");
            return None;
        }
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("typescript");
        fs::create_dir_all(&home).unwrap();
        // The lock ends with the file: also when this process dies.
        let lock = File::create(home.join("lock")).unwrap();
        lock.lock().unwrap();
        let fetched = (!is_installed()).then(|| fetch(&home));
        let node = Self { package: home.join("package"), fetched };
        let from = Path::new(REPOSITORY).join("typescript");
        let wanted = PARTS.map(|part| contents(&from.join(part))).concat();
        if !fs::read_to_string(home.join("made-of")).is_ok_and(|have| have == wanted) {
            node.build(&from);
            fs::write(home.join("made-of"), wanted).unwrap();
        }
        Some(node)
    }

    /// `node`.
    pub fn command(&self) -> Command {
        self.program("node", &["bin/node"])
    }

    #[allow(clippy::disallowed_methods, reason = "what is fetched goes before what the machine has")]
    fn program(&self, own: &str, fetched: &[&str]) -> Command {
        let Some(home) = &self.fetched else { return Command::new(own) };
        let mut command = Command::new(home.join(fetched[0]));
        command.args(fetched[1..].iter().map(|part| home.join(part)));
        let path = env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(home.join("bin")).chain(env::split_paths(&path));
        command.env("PATH", env::join_paths(paths).unwrap());
        command
    }

    /// What is pinned, and nothing else; the package's own `prepare` builds it.
    fn build(&self, from: &Path) {
        fs::create_dir_all(&self.package).unwrap();
        for part in PARTS {
            let copied = Command::new("cp").arg("-R").arg(from.join(part)).arg(&self.package).status().unwrap();
            assert!(copied.success(), "{part}");
        }
        let mut npm = self.program("npm", &["bin/node", "lib/node_modules/npm/bin/npm-cli.js"]);
        let output = npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(&self.package).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let hint = format!("The client in TypeScript needs the registry of npm; {SKIP_VARIABLE}=1 does without.");
        assert!(output.status.success(), "npm ci:\n{}\n{hint}", String::from_utf8_lossy(&said));
    }
}

/// Whether the machine has a Node.js that will do, with npm.
fn is_installed() -> bool {
    let said = |program: &str| Command::new(program).arg("--version").output().ok().filter(|o| o.status.success());
    let version = said("node").map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let major = version.trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| major >= MAJOR_MIN) && said("npm").is_some()
}

/// Fetches one, pinned, from PyPI.
fn fetch(home: &Path) -> PathBuf {
    let script = Path::new(REPOSITORY).join("tests/data/node.py");
    let output = Command::new("python3").arg("-B").arg(script).arg(home).output().expect("python3");
    let hint = format!("There is no Node.js {MAJOR_MIN} or later; {SKIP_VARIABLE}=1 does without.");
    assert!(output.status.success(), "{}\n{hint}", String::from_utf8_lossy(&output.stderr));
    home.join("node")
}

/// All that stands in a file, or in the files of a folder, with their names.
fn contents(path: &Path) -> String {
    if !path.is_dir() {
        return format!("{}\n{}", path.display(), fs::read_to_string(path).unwrap());
    }
    let mut entries: Vec<PathBuf> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries.iter().map(|entry| contents(entry)).collect()
}
