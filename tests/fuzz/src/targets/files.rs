//! Configuration files that operators write, and third-party documents that they import.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tickfleet::fuzzing::Importer;
use tickfleet_config::{
    ConfigErrors, ConfigLocation, Environment, MCP_LOCK_FILE, McpPins, SchemaCheck, Sources, load, load_mcp, print,
};
use tickfleet_model::limits;
use tickfleet_tools::check_schema;

use crate::bounds::text;

const TOOLS: &str = "tools.yaml";
const FILES: [&str; 7] =
    ["tickfleet.yaml", "agents.yaml", TOOLS, "permissions.yaml", "tenants.yaml", "mcp.yaml", MCP_LOCK_FILE];

/// A configuration folder with only one file. Built-in files replace the other files.
pub(super) struct Folder(TempDir);

thread_local! {
    static FOLDER: Folder = Folder::new();
    static IMPORTER: OnceCell<Importer> = const { OnceCell::new() };
}

impl Folder {
    pub(super) fn new() -> Self {
        Self(TempDir::new().expect("a temporary folder"))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    fn sources(&self, schema_check: SchemaCheck) -> Sources {
        let environment: Environment = [("SET".to_owned(), "from the environment".to_owned())].into();
        Sources {
            dir: Some(self.path().to_owned()),
            environment,
            built_in_tools: BTreeSet::from(["echo".to_owned()]),
            allow_unknown_names: true,
            schema_check,
            ..Sources::default()
        }
    }

    pub(super) fn assert_pins_come_back(&self, pins: &McpPins) {
        let text = pins.to_yaml();
        fs::write(self.path().join(MCP_LOCK_FILE), &text).expect("a file");
        let (_, back) = load_mcp(&self.sources(SchemaCheck::default())).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(&back, pins, "{text}");
    }
}

/// The first byte selects the file. The rest is the text of the file.
pub(super) fn config(bytes: &[u8]) {
    let Some((by, yaml)) = bytes.split_first() else { return };
    let name = FILES[usize::from(by.wrapping_sub(b'0')) % FILES.len()];
    FOLDER.with(|folder| {
        let file = folder.path().join(name);
        fs::write(&file, yaml).expect("a file");
        let check = if name == TOOLS { SchemaCheck(check_schema) } else { SchemaCheck::default() };
        let loaded = load(&folder.sources(check));
        fs::remove_file(&file).expect("a file");
        match loaded {
            Ok(configuration) => assert!(!print(&configuration).is_empty()),
            Err(errors) => assert_errors_are_located(&errors, name, &text(yaml)),
        }
    });
}

fn assert_errors_are_located(errors: &ConfigErrors, name: &str, yaml: &str) {
    assert!(!errors.as_slice().is_empty());
    let lines = yaml.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count() as u64 + 1;
    for error in errors.as_slice() {
        match &error.place {
            ConfigLocation::File { file, line, column } => {
                assert!(file.contains(name) || *line == 0, "{error}");
                assert!(*line <= lines, "{error}: there are {lines} lines");
                assert!((*line == 0) == (*column == 0), "{error}");
            }
            // A built-in file may use a name that the tested file lacks, so an error in a built-in file is permitted.
            ConfigLocation::BuiltIn { .. } | ConfigLocation::Environment(_) => {}
        }
    }
}

pub(super) fn mcp_lock(bytes: &[u8]) {
    FOLDER.with(|folder| {
        fs::write(folder.path().join(MCP_LOCK_FILE), bytes).expect("a file");
        if let Ok((_, pins)) = load_mcp(&folder.sources(SchemaCheck::default())) {
            folder.assert_pins_come_back(&pins);
        }
        fs::remove_file(folder.path().join(MCP_LOCK_FILE)).expect("a file");
    });
}

fn importer_of_tools() -> Importer {
    tickfleet_outbound::install_crypto_provider();
    Importer::default()
}

pub(super) fn openapi(bytes: &[u8]) {
    let document = text(bytes);
    let made = IMPORTER.with(|importer| importer.get_or_init(importer_of_tools).import(&document));
    let Ok((tools, yaml)) = made else { return };
    for name in tools.keys() {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        assert!(!name.is_empty() && name.len() <= limits::NAME_BYTES_MAX && name.chars().all(legal), "{name:?}");
    }
    if tools.is_empty() {
        return;
    }
    FOLDER.with(|folder| {
        fs::write(folder.path().join(TOOLS), &yaml).expect("a file");
        let loaded = load(&folder.sources(SchemaCheck(check_schema)));
        fs::remove_file(folder.path().join(TOOLS)).expect("a file");
        let configuration = loaded.unwrap_or_else(|errors| panic!("{errors}\n{yaml}"));
        let names: BTreeSet<&String> = configuration.tools.tools.keys().collect();
        assert_eq!(names, tools.keys().collect(), "{yaml}");
    });
}
