//! Pages of lists.

use std::convert::Infallible;
use std::fmt::{self, Display};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::verbs::VerbError;

/// A page of a list.
#[derive(Debug, Clone, Serialize)]
pub struct Page<T> {
    /// The items, in the order of the list.
    pub items: Vec<T>,
    /// The position of the next page; `None` at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Cursor>,
    /// The time of the list (ms of shard time).
    pub now_ms: i64,
    /// True if the position no longer exists, or if the caller may not see it. The list then starts again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub list_restarted: bool,
}

impl<T> Page<T> {
    pub(crate) const fn new(now_ms: i64) -> Self {
        Self { items: Vec::new(), next: None, now_ms, list_restarted: false }
    }
}

/// A position in a list, as a page returned it. Only the same list can read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor(String);

impl Cursor {
    pub(crate) fn of(position: &impl Display) -> Self {
        Self(position.to_string())
    }

    pub(crate) fn read<P: FromStr>(from: Option<&Self>) -> Result<Option<P>, VerbError> {
        let expected = || VerbError::Invalid("expected a position that this list has returned".into());
        from.map(|Self(text)| text.parse().map_err(|_| expected())).transpose()
    }
}

impl Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Cursor {
    type Err = Infallible;
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}
