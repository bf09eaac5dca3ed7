//! A door for the fuzz targets: the import of a document that somebody else wrote, without a file and a terminal.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::commands::import::{Building, Import, imported, parse};

/// Imports documents.
pub struct Importer(Building);

impl Default for Importer {
    fn default() -> Self {
        Self(Building::new())
    }
}

impl Importer {
    /// The tools that `tickfleet tools import` makes of a document, and the section of `tools.yaml`.
    ///
    /// # Errors
    /// Why it is no document that can be imported.
    pub fn import(&self, document: &str) -> Result<(BTreeMap<String, Value>, String), String> {
        let report = imported(parse(document)?.into(), &Import::default(), &BTreeSet::new(), &self.0);
        let report = report.map_err(|failure| failure.message().unwrap_or_default())?;
        let yaml = report.yaml().map_err(|failure| failure.message().unwrap_or_default())?;
        Ok((report.tools, yaml))
    }
}
