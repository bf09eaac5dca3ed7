//! Runs the console in a real browser: performs an operator's tasks, and checks every view with axe.

use std::env;

use crate::support::packages::Packages;

/// If this variable is `1`, the tests that need a browser are skipped.
const SKIP_VARIABLE: &str = "TICKFLEET_SKIP_BROWSER";

#[allow(clippy::disallowed_methods, reason = "a knob of the tests, documented beside them")]
pub(super) fn is_skipped() -> bool {
    let is_skipped = env::var(SKIP_VARIABLE).is_ok_and(|value| value == "1");
    if is_skipped {
        eprintln!("{SKIP_VARIABLE}=1: the console is not tried in a browser");
    }
    is_skipped
}

#[test]
fn the_console_supports_an_operators_tasks_and_passes_axe() {
    if is_skipped() {
        return;
    }
    let Some(packages) = Packages::unless_skipped() else { return };
    let pure = packages.node().arg("tests/console/text.mjs").output().unwrap();
    let said = String::from_utf8_lossy(&pure.stderr);
    assert!(pure.status.success() && pure.stdout.ends_with(b"no findings\n"), "{said}");
    let output = packages
        .node()
        .arg("tests/console/play.mjs")
        .arg(env!("CARGO_BIN_EXE_tickfleet"))
        .arg(&packages.folder)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("no findings"), "{said}");
}
