//! Runs MCP's own conformance suite on the MCP server of a gateway, in two revisions.

use crate::support::documents::REPOSITORY;
use crate::support::packages::Packages;

/// Runs the suite. Fails if the suite reports an unknown problem, or no longer reports a known problem.
fn is_as_known(options: &[&str], known: &str) {
    let Some(packages) = Packages::unless_skipped() else { return };
    let mut node = packages.node();
    let known = format!("{REPOSITORY}/tests/conformance/{known}");
    node.arg("tests/conformance/mcp.mjs").arg(env!("CARGO_BIN_EXE_tickfleet")).arg(&packages.folder).args(options);
    let output = node.args(["--expected-failures", &known]).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("passed"), "{said}");
}

#[test]
fn the_suite_of_2025_11_25_finds_only_known_failures() {
    is_as_known(&["--requirements", "2025-11-25"], "mcp-2025-11-25.yaml");
}

#[test]
fn the_suite_of_2026_07_28_finds_only_known_failures() {
    is_as_known(&["--requirements", "2026-07-28"], "mcp-2026-07-28.yaml");
}
