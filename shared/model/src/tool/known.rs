//! The tools that a configuration knows, as limits ask about them.

use std::collections::BTreeMap;

use super::ToolTraits;

/// The tools that a configuration knows, by name, and how models spell them. A call counts as one of the tool that it runs,
/// whichever spelling it has: a limit that went by the spelling would let through what it does not recognise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownTools {
    traits: BTreeMap<String, ToolTraits>,
    spellings: BTreeMap<String, String>,
}

impl KnownTools {
    /// The tools with what files declare of them, and other spellings of names → the name, among them those of tools that
    /// no file declares.
    #[must_use]
    pub const fn new(traits: BTreeMap<String, ToolTraits>, spellings: BTreeMap<String, String>) -> Self {
        Self { traits, spellings }
    }

    /// What is declared of the tool of this name.
    #[must_use]
    pub fn traits(&self, name: &str) -> Option<&ToolTraits> {
        self.traits.get(name)
    }

    /// The name of the tool that a model means by `said`; what nobody knows is its own name.
    #[must_use]
    pub fn meant<'a>(&'a self, said: &'a str) -> &'a str {
        if self.traits.contains_key(said) {
            return said;
        }
        self.spellings.get(said).map_or(said, String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declared_name_is_itself_and_another_spelling_of_one_leads_to_it() {
        let declared = ["crm.find", "crm_x2E_lose"].map(|name| (name.to_owned(), ToolTraits::default()));
        let spellings = [("crm_x2E_find", "crm.find"), ("crm_x2E_lose", "crm.lose"), ("crm_x2E_keep", "crm.keep")];
        let spellings = spellings.map(|(said, name)| (said.to_owned(), name.to_owned()));
        let known = KnownTools::new(declared.into(), spellings.into());
        for (said, meant) in [
            ("crm.find", "crm.find"),
            ("crm_x2E_find", "crm.find"),
            ("crm_x2E_lose", "crm_x2E_lose"),
            ("crm_x2E_keep", "crm.keep"),
            ("made_up", "made_up"),
        ] {
            assert_eq!(known.meant(said), meant);
        }
    }
}
