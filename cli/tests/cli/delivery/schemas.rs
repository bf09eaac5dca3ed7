//! The JSON Schemas of the configuration. `tests/packaging/schemas.py` compares them with the binary.

use super::chart::runs;

#[test]
fn the_schemas_have_the_fields_that_the_binary_reads_and_take_what_is_good() {
    runs("../packaging/schemas.py", &[env!("CARGO_BIN_EXE_tickfleet")]);
}
