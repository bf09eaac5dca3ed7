//! Tests the HTTP API with schemathesis, which reads the API's OpenAPI document and sends valid and invalid requests.

use std::fs;
use std::process::Command;

use super::fixture::GatewayFixture;
use crate::support::python::installed;

const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
const VERBS: [&str; 6] = ["submit", "read", "cancel", "view", "operate", "approve"];

/// Streams.
const EXCLUDED: &str = "events|chat$|ag-ui";

fn is_excluded(path: &str) -> bool {
    path.contains("events") || path.ends_with("chat") || path.contains("ag-ui")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_to_a_fuzzed_request_matches_the_openapi_document() {
    let permissions = "permissions: {echo: {everyone: true}}\napprovers: {ann: {roles: [finance]}}\n";
    let place = GatewayFixture::new(&[("permissions.yaml", permissions)]).await;
    let _fleet = place.fleet();
    let verbs: Vec<&str> = VERBS.iter().flat_map(|verb| ["--verb", verb]).collect();
    let key = place.key("all", &[&["--approver", "ann"], &verbs[..]].concat());
    let gateway = place.gateway();

    // Other tests cover the waits for replies, so these requests do not wait.
    fs::write(place.folder.path().join("schemathesis.toml"), "[parameters]\n\"query.wait\" = 0\n").unwrap();
    let mut fuzzer = Command::new(installed("schemathesis").join("schemathesis"));
    fuzzer.args(["run", &format!("http://{}/v1/openapi.json", gateway.address), "--checks", CHECKS, "--no-color"]);
    fuzzer.args(["--header", &format!("Authorization: Bearer {key}"), "--exclude-path-regex", EXCLUDED]);
    // Several workers would parse Python at the same time, which the parser does not support.
    fuzzer.args(["--seed", "1", "--max-examples", "5", "--phases", "coverage,fuzzing"]);
    let output = fuzzer.current_dir(place.folder.path()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{said}");
    let document = gateway.get("", "/v1/openapi.json").json();
    let fuzzed = document["paths"].as_object().unwrap().iter().filter(|(path, _)| !is_excluded(path));
    let operations: usize = fuzzed.map(|(_, item)| item.as_object().unwrap().len()).sum();
    assert!(said.contains(&format!("Tested: {operations}")), "not {operations} operations: {said}");
    println!("{said}");
}
