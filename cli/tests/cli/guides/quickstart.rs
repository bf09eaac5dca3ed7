//! Follows the README and the quickstart like a new user, with only the packages, in an empty folder.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use tempfile::TempDir;

use crate::support::binary::{CommandOutput, DevFleet};
use crate::support::documents::{REPOSITORY, agrees, shown};
use crate::support::node::Node;
use crate::support::packages::Packages;

const QUICKSTART: &str = "docs/start/quickstart.md";

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said));
}

struct Wheel {
    _folder: TempDir,
    programs: PathBuf,
}

impl Wheel {
    fn install() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["build", "venv"] {
            succeeds(Command::new("python3").args(["-m", "venv"]).arg(at(name)));
        }
        let pip = at("build").join("bin/pip");
        let pinned = Path::new(REPOSITORY).join("image/requirements-build.txt");
        succeeds(Command::new(&pip).args(["install", "--quiet", "--require-hashes", "--requirement"]).arg(pinned));
        let wheel = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"];
        let mut built = Command::new(&pip);
        built.args(wheel).arg(at("dist")).arg(Path::new(REPOSITORY).join("python"));
        succeeds(built.env("TICKFLEET_BINARY", env!("CARGO_BIN_EXE_tickfleet")));
        let mut installed = Command::new(at("venv").join("bin/pip"));
        succeeds(installed.args(["install", "--quiet", "--find-links"]).arg(at("dist")).arg("tickfleet"));
        let programs = at("venv").join("bin");
        Self { _folder: folder, programs }
    }

    fn user(&self) -> User {
        User {
            folder: tempfile::tempdir().unwrap(),
            // The checkout must not be on the PATH.
            path: format!("{}:/usr/bin:/bin", self.programs.display()),
            program: self.programs.join("tickfleet"),
            words: Vec::new(),
        }
    }
}

struct User {
    folder: TempDir,
    path: String,
    program: PathBuf,
    /// (words on the page, words that the user types instead)
    words: Vec<(String, String)>,
}

impl User {
    fn of_node(node: &Node) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let programs = node.programs(&folder.path().join(".shims"));
        let path = format!("{}:/usr/bin:/bin", programs.display());
        let mut packed = Command::new("python3");
        packed.arg("-B").arg(Path::new(REPOSITORY).join("image/npm.py")).arg("--client").arg(&node.package);
        packed.arg(scratch.path()).arg(format!("{}={}", platform(), env!("CARGO_BIN_EXE_tickfleet")));
        succeeds(packed.env("PATH", &path));
        let mut npm = Command::new(programs.join("npm"));
        npm.args(["install", "--no-audit", "--no-fund"]).current_dir(folder.path()).env("PATH", &path);
        succeeds(npm.args(fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().path())));
        let program = folder.path().join("node_modules/.bin/tickfleet");
        Self { folder, path, program, words: words_for_node() }
    }

    fn shell(&self, line: &str) -> String {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", line]).env_clear().env("PATH", &self.path).env("HOME", self.folder.path());
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        CommandOutput::of(shell.current_dir(self.folder.path()), "").exits(0).stdout
    }

    fn types(&self, line: &str) -> String {
        let found = self.words.iter().find_map(|(from, to)| Some(format!("{to}{}", line.strip_prefix(from.as_str())?)));
        found.unwrap_or_else(|| line.to_owned())
    }
}

fn platform() -> String {
    let system = if OS == "macos" { "darwin" } else { OS };
    let processor = match ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{system}-{processor}")
}

/// (Python, Node.js) for each command.
fn words_for_node() -> Vec<(String, String)> {
    let page = fs::read_to_string(Path::new(REPOSITORY).join(QUICKSTART)).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix("` |")?.split_once("` | `"));
    let words: Vec<(String, String)> = rows.map(|(from, to)| (from.to_owned(), to.to_owned())).collect();
    assert!(words.iter().any(|(from, to)| (from.as_str(), to.as_str()) == ("tickfleet", "npx tickfleet")), "{words:?}");
    words
}

/// Calls `approve` with the link to the console.
fn play(page: &str, user: &User, approve: impl FnOnce(String) -> Option<JoinHandle<()>>) {
    let written = user.shell(&user.types("tickfleet init"));
    let next = format!("\n  {}\n", user.types("tickfleet dev --config fleet"));
    assert!(written.contains(&next) && !written.contains("install"), "{written}");
    let args = ["--config", "fleet", "--console", "0"];
    let fleet = DevFleet::start_program(&user.program, user.folder.path(), &args, &[("PATH", &user.path)]);
    let link = fleet.welcome.iter().find_map(|line| line.strip_prefix("Console: ")).unwrap().to_owned();
    let approver = approve(link);
    for documented in shown(&fs::read_to_string(Path::new(REPOSITORY).join(page)).unwrap()) {
        let printed = user.shell(&user.types(&documented.command));
        let line = documented.line;
        assert!(agrees(&documented.output, &printed), "{page}:{line} printed something else:\n{printed}");
    }
    if let Some(approver) = approver {
        approver.join().unwrap();
    }
    assert_eq!(fleet.stop(), Some(0));
    assert!(!user.folder.path().join(".tickfleet/dev.json").exists());
}

fn in_the_browser(packages: Packages) -> impl FnOnce(String) -> Option<JoinHandle<()>> {
    move |link| {
        Some(thread::spawn(move || {
            let mut node = packages.node();
            succeeds(node.arg("tests/console/approve.mjs").arg(&packages.folder).arg(link));
        }))
    }
}

#[test]
fn the_readme_and_the_quickstart_work_with_python_alone() {
    let Some(packages) = Packages::unless_skipped() else { return };
    let installed = Wheel::install();
    play("README.md", &installed.user(), |_| None);
    play(QUICKSTART, &installed.user(), in_the_browser(packages));
}

#[test]
fn the_quickstart_works_with_node_alone() {
    let (Some(packages), Some(node)) = (Packages::unless_skipped(), Node::unless_skipped()) else { return };
    play(QUICKSTART, &User::of_node(&node), in_the_browser(packages));
}
