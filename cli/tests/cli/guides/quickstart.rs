//! Plays the README and the quickstart as a new user does: with the wheel, without Rust and Redis, in an empty folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};

use tempfile::TempDir;

use crate::support::binary::{CommandOutput, DevFleet};
use crate::support::documents::{REPOSITORY, agrees, shown};
use crate::support::packages::Packages;

/// A virtual environment with the package from a wheel with the built program.
struct Installation {
    _folder: TempDir,
    programs: PathBuf,
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Installation {
    fn new() -> Self {
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

    /// The user's PATH: with the virtual environment, without anything of the checkout.
    fn path(&self) -> String {
        format!("{}:/usr/bin:/bin", self.programs.display())
    }

    fn shell(&self, folder: &Path, line: &str) -> String {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", line]).env_clear().env("PATH", self.path()).env("HOME", folder).current_dir(folder);
        shell.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        CommandOutput::of(shell.stderr(std::process::Stdio::piped()), "").exits(0).stdout
    }
}

/// Plays a page in an empty folder, on a fleet of its own. `approve` gets the link to the console.
fn play(page: &str, installed: &Installation, approve: impl FnOnce(String) -> Option<JoinHandle<()>>) {
    let home = tempfile::tempdir().unwrap();
    installed.shell(home.path(), "tickfleet init");
    let program = installed.programs.join("tickfleet");
    let args = ["--config", "fleet", "--console", "0"];
    let fleet = DevFleet::start_program(&program, home.path(), &args, &[("PATH", "/usr/bin:/bin")]);
    let link = fleet.welcome.iter().find_map(|line| line.strip_prefix("Console: ")).unwrap().to_owned();
    let approver = approve(link);
    for documented in shown(&fs::read_to_string(Path::new(REPOSITORY).join(page)).unwrap()) {
        let printed = installed.shell(home.path(), &documented.command);
        let line = documented.line;
        assert!(agrees(&documented.output, &printed), "{page}:{line} printed something else:\n{printed}");
    }
    if let Some(approver) = approver {
        approver.join().unwrap();
    }
    assert_eq!(fleet.stop(), Some(0));
    // A client afterwards does not take the ended fleet for a running one.
    assert!(!home.path().join(".tickfleet/dev.json").exists());
}

#[test]
fn a_new_user_with_python_alone_reaches_a_payment_an_approval_a_limit_and_the_audit_log() {
    let Some(packages) = Packages::unless_skipped() else { return };
    let installed = Installation::new();
    play("README.md", &installed, |_| None);
    play("docs/start/quickstart.md", &installed, |link| {
        Some(thread::spawn(move || {
            let mut node = packages.node();
            succeeds(node.arg("tests/console/approve.mjs").arg(&packages.folder).arg(link));
        }))
    });
}
