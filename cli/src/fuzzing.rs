//! Entry point for fuzz targets: imports an untrusted OpenAPI document without a file or a terminal.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::commands::import::{Import, ToolBuilder, imported, parse};

pub struct Importer(ToolBuilder);

impl Default for Importer {
    fn default() -> Self {
        Self(ToolBuilder::new())
    }
}

impl Importer {
    pub fn import(&self, document: &str) -> Result<(BTreeMap<String, Value>, String), String> {
        let report = imported(parse(document)?.into(), &Import::default(), &BTreeSet::new(), &self.0);
        let report = report.map_err(|failure| failure.message().unwrap_or_default())?;
        let yaml = report.yaml().map_err(|failure| failure.message().unwrap_or_default())?;
        Ok((report.tools, yaml))
    }
}
