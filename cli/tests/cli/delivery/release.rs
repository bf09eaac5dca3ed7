//! Releases. The scripts in `tests/packaging` check them.

use super::chart::runs;

#[test]
fn a_release_has_one_version_and_its_workflow_pins_every_action() {
    runs("../packaging/workflows.py", &[]);
}
