use std::collections::BTreeMap;

use super::ToolTraits;

/// A call counts for the tool that runs, because an unusual spelling must not bypass limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownTools {
    traits: BTreeMap<String, ToolTraits>,
    spellings: BTreeMap<String, String>,
}

impl KnownTools {
    /// `spellings` maps other spellings to a tool's name, even for tools that no file declares.
    #[must_use]
    pub const fn new(traits: BTreeMap<String, ToolTraits>, spellings: BTreeMap<String, String>) -> Self {
        Self { traits, spellings }
    }

    #[must_use]
    pub fn traits(&self, name: &str) -> Option<&ToolTraits> {
        self.traits.get(name)
    }

    /// Returns the tool's name, or `spelling` itself if no tool has this spelling.
    #[must_use]
    pub fn meant<'a>(&'a self, spelling: &'a str) -> &'a str {
        if self.traits.contains_key(spelling) {
            return spelling;
        }
        self.spellings.get(spelling).map_or(spelling, String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_spelling_resolves_to_the_tool_name() {
        let declared = ["crm.find", "crm_x2E_lose"].map(|name| (name.to_owned(), ToolTraits::default()));
        let spellings = [("crm_x2E_find", "crm.find"), ("crm_x2E_lose", "crm.lose"), ("crm_x2E_keep", "crm.keep")];
        let spellings = spellings.map(|(spelling, name)| (spelling.to_owned(), name.to_owned()));
        let known = KnownTools::new(declared.into(), spellings.into());
        for (spelling, meant) in [
            ("crm.find", "crm.find"),
            ("crm_x2E_find", "crm.find"),
            ("crm_x2E_lose", "crm_x2E_lose"),
            ("crm_x2E_keep", "crm.keep"),
            ("made_up", "made_up"),
        ] {
            assert_eq!(known.meant(spelling), meant);
        }
    }
}
