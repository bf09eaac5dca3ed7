use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use tickfleet_model::limits::REASON_BYTES_MAX;

/// Why an operator runs a verb. Written to the audit log.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Reason(String);

impl Reason {
    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Deserializes an optional reason. An empty text counts as absent.
    pub(super) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        let text = Option::<String>::deserialize(from)?.filter(|text| !text.trim().is_empty());
        text.map(Self::try_from).transpose().map_err(serde::de::Error::custom)
    }
}

impl TryFrom<String> for Reason {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Reason {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match text.len() {
            0 => Err("the reason must not be empty".into()),
            bytes if bytes > REASON_BYTES_MAX => {
                Err(format!("the reason has {bytes} bytes; at most {REASON_BYTES_MAX} are allowed"))
            }
            _ => Ok(Self(text.to_owned())),
        }
    }
}
