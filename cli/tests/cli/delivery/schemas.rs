//! The JSON Schemas of the configuration. `tests/packaging/schemas.py` compares them with the binary.

use super::chart::runs;

#[test]
fn schemas_have_the_fields_of_the_binary_and_accept_valid_files() {
    runs("../packaging/schemas.py", &[env!("CARGO_BIN_EXE_tickfleet")]);
}
