//! Plays every target in every run of the tests. `make fuzz` tries more inputs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use tickfleet_fuzz::{TARGETS, play, target};
use tickfleet_model::Dialect;

fn data() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let folder = here.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    folder.expect("a test runs from cargo's target folder").to_owned()
}

macro_rules! targets {
    ($($name:ident),+ $(,)?) => {
        const PLAYED: &[&str] = &[$(stringify!($name)),+];

        $(
            #[test]
            fn $name() {
                let played = play::play(target(stringify!($name)), &data());
                println!("{}: {played:?}", stringify!($name));
            }
        )+
    };
}

targets!(
    turn,
    task,
    dialect,
    answer,
    json,
    schema,
    redaction,
    http_answer,
    http_request,
    token,
    mcp,
    mcp_lock,
    config,
    openapi,
    records,
    words,
    document,
);

#[test]
fn every_dialect_has_a_seed_and_a_word() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let words = std::fs::read_to_string(here.join("dictionaries/dialect.dict")).unwrap();
    for dialect in Dialect::ALL.map(Dialect::as_str) {
        assert!(here.join("seeds/dialect").join(dialect).exists(), "tests/fuzz/seeds/dialect/{dialect} is missing");
        assert!(words.contains(&format!("\"{dialect}\\x0a\"")), "the dictionary has no word for {dialect}");
    }
}

#[test]
fn every_fuzz_target_has_a_replay_test_and_a_binary() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, PLAYED);
    let manifest = std::fs::read_to_string(here.join("libfuzzer/Cargo.toml")).unwrap();
    let bins: Vec<&str> =
        manifest.split("[[bin]]\nname = \"").skip(1).filter_map(|bin| bin.split('"').next()).collect();
    assert_eq!(bins, names);
    for folder in ["seeds", "found"].iter().filter_map(|kind| here.join(kind).read_dir().ok()).flatten().flatten() {
        let name = folder.file_name().to_string_lossy().into_owned();
        assert!(names.contains(&name.as_str()), "{name} is no target");
    }
}
