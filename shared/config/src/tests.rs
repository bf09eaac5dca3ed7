//! Tests of loading: defaults, layers and errors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod defaults;
mod layers;
mod matrix;
mod models;
mod refused;
mod refused_limits;
mod refused_mcp;
mod refused_modules;
mod refused_policy;
mod refused_settings;
mod refused_shell;
mod refused_tools;
mod schema_words;

use std::collections::BTreeSet;
use std::fs;

use super::{ConfigErrors, Configuration, Part, Sources, load};

const BUILT_IN: [&str; 8] =
    ["cancel_task", "delegate_task", "echo", "fail", "fail_once", "read_messages", "send_mcp_message", "sleep"];

struct TestConfig {
    files: Vec<(&'static str, String)>,
    variables: Vec<(&'static str, &'static str)>,
    part: Part,
}

fn given() -> TestConfig {
    TestConfig { files: vec![], variables: vec![], part: Part::Whole }
}

impl TestConfig {
    fn file(mut self, name: &'static str, text: impl Into<String>) -> Self {
        self.files.push((name, text.into()));
        self
    }

    fn file_again(mut self, name: &'static str, text: &str) -> Self {
        self.files.retain(|(given, _)| *given != name);
        self.file(name, text)
    }

    fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    fn part(mut self, part: Part) -> Self {
        self.part = part;
        self
    }

    fn load(self) -> Result<Configuration, ConfigErrors> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in &self.files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        load(&Sources {
            dir: Some(dir.path().to_owned()),
            environment: self.variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            built_in_tools: set(&BUILT_IN),
            built_in_handlers: set(&["note"]),
            part: self.part,
            ..Sources::default()
        })
    }

    fn errors(self) -> Vec<String> {
        let errors = self.load().expect_err("errors");
        let shown = errors.as_slice().iter().map(|error| {
            let text = error.to_string();
            match text.split_once("/.tmp") {
                Some((before, rest)) if before.starts_with('/') => rest.split_once('/').unwrap().1.to_owned(),
                _ => text,
            }
        });
        shown.collect()
    }

    #[track_caller]
    fn assert_refused(self, expected: &str) {
        assert_eq!(self.errors(), [expected]);
    }
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
