use std::process::Command;

/// Returns the output of `tools try` for a call by the agent `support`.
fn quoted(arguments: &str) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_own-fleet"));
    program.env("CARRIER_KEY", "k-1").current_dir(env!("CARGO_MANIFEST_DIR"));
    program.args(["tools", "try", "quote_parcel", "--config", "conf", "--agent", "support", "--json", arguments]);
    String::from_utf8(program.output().unwrap().stdout).unwrap()
}

#[test]
fn a_parcel_is_quoted() {
    assert!(
        quoted(r#"{"country": "DE", "weight_g": 2500, "express": true}"#).contains(r#""price_cents":2940,"days":1"#)
    );
}

#[test]
fn a_heavy_express_parcel_is_rejected() {
    let printed = quoted(r#"{"country": "DE", "weight_g": 12500, "express": true}"#);
    assert!(printed.contains("Express parcels have at most 10000 g."), "{printed}");
}
