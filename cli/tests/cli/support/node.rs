//! Builds the package for Node.js from the checkout, in cargo's target folder.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::documents::REPOSITORY;

/// If this variable is `1`, the tests that need Node.js are skipped.
const SKIP_VARIABLE: &str = "TICKFLEET_SKIP_NODE";
const PARTS: [&str; 7] = ["package.json", "package-lock.json", "tsconfig.json", "README.md", "bin", "src", "test"];
const NPM: [(&str, &str); 2] = [("npm", "npm-cli.js"), ("npx", "npx-cli.js")];
const MAJOR_MIN: u32 = 20;
/// The oldest major version of Node.js that imports TypeScript in all its releases.
const STRIPS_TYPES: u32 = 24;

pub struct Node {
    pub package: PathBuf,
    runtime: Runtime,
}

pub struct Runtime {
    /// `None` if the machine's own Node.js is used.
    fetched: Option<PathBuf>,
}

#[allow(clippy::disallowed_methods, reason = "a knob of the tests, documented beside them")]
pub fn is_skipped() -> bool {
    let skipped = env::var(SKIP_VARIABLE).is_ok_and(|value| value == "1");
    if skipped {
        eprintln!("{SKIP_VARIABLE}=1: what needs Node.js is not tried");
    }
    skipped
}

impl Runtime {
    pub fn find(home: &Path, major_min: u32) -> Self {
        Self { fetched: (!is_installed(major_min)).then(|| fetch(home, major_min)) }
    }

    pub fn node(&self) -> Command {
        self.program("node", &["bin/node"])
    }

    pub fn install(&self, folder: &Path) {
        let mut npm = self.program("npm", &["bin/node", "lib/node_modules/npm/bin/npm-cli.js"]);
        let output = npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(folder).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let hint = format!("This needs the registry of npm; {SKIP_VARIABLE}=1 does without.");
        assert!(output.status.success(), "npm ci:\n{}\n{hint}", String::from_utf8_lossy(&said));
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
}

impl Node {
    pub fn unless_skipped() -> Option<Self> {
        Self::of_version(MAJOR_MIN)
    }

    pub fn that_strips_types() -> Option<Self> {
        Self::of_version(STRIPS_TYPES)
    }

    fn of_version(major_min: u32) -> Option<Self> {
        if is_skipped() {
            return None;
        }
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("typescript");
        fs::create_dir_all(&home).unwrap();
        // The lock is released when the file is closed, even if this process dies.
        let lock = File::create(home.join("lock")).unwrap();
        lock.lock().unwrap();
        let node = Self { package: home.join("package"), runtime: Runtime::find(&home, MAJOR_MIN) };
        let from = Path::new(REPOSITORY).join("typescript");
        let wanted = PARTS.map(|part| contents(&from.join(part))).concat();
        if !fs::read_to_string(home.join("made-of")).is_ok_and(|have| have == wanted) {
            node.build(&from);
            fs::write(home.join("made-of"), wanted).unwrap();
        }
        Some(Self { runtime: Runtime::find(&home, major_min), ..node })
    }

    /// Modules in `folder` can then import `tickfleet` and `zod`.
    pub fn link(&self, folder: &Path) {
        let modules = folder.join("node_modules");
        // If a user followed the guide in this checkout, the folder already exists.
        let _ = fs::remove_dir_all(&modules);
        fs::create_dir_all(&modules).unwrap();
        std::os::unix::fs::symlink(&self.package, modules.join("tickfleet")).unwrap();
        std::os::unix::fs::symlink(self.package.join("node_modules/zod"), modules.join("zod")).unwrap();
    }

    pub fn program(&self) -> String {
        self.folder().map_or_else(|| "node".to_owned(), |folder| folder.join("node").display().to_string())
    }

    pub fn command(&self) -> Command {
        self.runtime.node()
    }

    /// A user's PATH needs `node`, `npm` and `npx`. A fetched Node.js may lack some of them.
    pub fn programs(&self, shims: &Path) -> PathBuf {
        let Some(home) = &self.runtime.fetched else {
            let found = Command::new("sh").args(["-c", "command -v npm"]).output().unwrap();
            return Path::new(String::from_utf8(found.stdout).unwrap().trim()).parent().unwrap().to_owned();
        };
        fs::create_dir_all(shims).unwrap();
        std::os::unix::fs::symlink(home.join("bin/node"), shims.join("node")).unwrap();
        for (name, file) in NPM {
            let script = home.join("lib/node_modules/npm/bin").join(file);
            fs::write(shims.join(name), format!("#!/bin/sh\nexec node '{}' \"$@\"\n", script.display())).unwrap();
            fs::set_permissions(shims.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        shims.to_owned()
    }

    pub fn folder(&self) -> Option<PathBuf> {
        self.runtime.fetched.as_ref().map(|home| home.join("bin"))
    }

    /// The package's `prepare` script builds the package.
    fn build(&self, from: &Path) {
        fs::create_dir_all(&self.package).unwrap();
        for part in PARTS {
            let copied = Command::new("cp").arg("-R").arg(from.join(part)).arg(&self.package).status().unwrap();
            assert!(copied.success(), "{part}");
        }
        self.runtime.install(&self.package);
    }
}

fn is_installed(major_min: u32) -> bool {
    let said = |program: &str| Command::new(program).arg("--version").output().ok().filter(|o| o.status.success());
    let version = said("node").map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let major = version.trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| major >= major_min) && said("npm").is_some()
}

fn fetch(home: &Path, major_min: u32) -> PathBuf {
    let script = Path::new(REPOSITORY).join("tests/data/node.py");
    let output = Command::new("python3").arg("-B").arg(script).arg(home).output().expect("python3");
    let hint = format!("There is no Node.js {major_min} or later; {SKIP_VARIABLE}=1 does without.");
    assert!(output.status.success(), "{}\n{hint}", String::from_utf8_lossy(&output.stderr));
    home.join("node")
}

pub fn contents(path: &Path) -> String {
    if !path.is_dir() {
        return format!("{}\n{}", path.display(), fs::read_to_string(path).unwrap());
    }
    let mut entries: Vec<PathBuf> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries.iter().map(|entry| contents(entry)).collect()
}
