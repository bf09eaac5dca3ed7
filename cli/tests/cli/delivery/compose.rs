//! The fleet that Docker Compose starts. The scripts are in `tests/packaging`.

use super::chart::runs;

#[test]
fn every_file_in_compose_exists_and_its_fleet_answers_a_turn() {
    runs("../packaging/compose.py", &[]);
    runs("../packaging/run_compose.py", &[env!("CARGO_BIN_EXE_tickfleet")]);
}
