//! The programs in `examples` print one line for each promise that they check.

use std::path::Path;

use crate::support::binary::{CommandOutput, command_of};
use crate::support::documents::{REPOSITORY, blocks};

/// (printed by the example, shown in its README)
fn played(example: &str) -> (Vec<String>, Vec<String>) {
    let folder = Path::new(REPOSITORY).join("examples").join(example);
    let program = folder.join("run.py");
    let arguments = ["-B", program.to_str().unwrap(), env!("CARGO_BIN_EXE_tickfleet")];
    let output = CommandOutput::of(&mut command_of(Path::new("python3"), &arguments), "").exits(0);
    let page = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let shown = blocks(&page, "text").into_iter().flat_map(|(_, lines)| lines).map(str::to_owned).collect();
    (output.stdout.trim_start_matches('\n').lines().map(str::to_owned).collect(), shown)
}

#[test]
fn an_agent_pays_only_as_its_policies_decide_and_the_audit_log_proves_it() {
    let (printed, shown) = played("payment-desk");
    assert_eq!(printed, shown);
}

#[test]
fn agents_with_a_model_publish_each_post_once_even_if_a_worker_is_killed() {
    let (printed, shown) = played("model-agents");
    // If the kill interrupts a request to the model, the request is repeated. A line can therefore be printed twice.
    for line in &shown {
        assert!(printed.contains(line), "no line {line:?} in {printed:#?}");
    }
}
