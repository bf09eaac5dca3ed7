//! Dialect names in command line options.

use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use tickfleet_model::Dialect;
use tickfleet_protocol::dialect_info;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format(pub(crate) Dialect);

impl ValueEnum for Format {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<Format>> = LazyLock::new(|| Dialect::ALL.into_iter().map(Format).collect());
        &ALL
    }

    /// The alias is the dialect's name in messages.
    fn to_possible_value(&self) -> Option<PossibleValue> {
        let about = dialect_info(self.0);
        let value = PossibleValue::new(about.option).help(about.summary).aliases(about.aliases);
        Some(value.alias(self.0.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dialect_parses_from_its_option_and_its_name() {
        for dialect in Dialect::ALL {
            for word in [dialect_info(dialect).option, dialect.as_str()] {
                assert_eq!(Format::from_str(word, false), Ok(Format(dialect)), "{word}");
            }
        }
        assert_eq!(Format::from_str("openai-chat", false), Ok(Format(Dialect::OpenaiChat)));
    }
}
