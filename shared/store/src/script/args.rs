//! Arguments of scripts: a flat list of byte strings, built once and sent once.

use std::fmt::Display;

/// The arguments of one script call. The first is always the injected clock.
pub(crate) struct Args {
    pub(crate) values: Vec<Vec<u8>>,
    /// Whether behind them stands what Redis called itself when the connection was made.
    pub(crate) run_id: bool,
}

impl Args {
    pub(crate) fn new(clock: String) -> Self {
        Self { values: vec![clock.into_bytes()], run_id: false }
    }

    /// Lets what Redis called itself when the connection was made be the last of them; the empty text where that is not
    /// known.
    pub(crate) fn run_id_last(&mut self) -> &mut Self {
        self.run_id = true;
        self
    }

    /// Adds a text.
    pub(crate) fn text(&mut self, text: impl Into<Vec<u8>>) -> &mut Self {
        self.values.push(text.into());
        self
    }

    /// Adds anything that displays: numbers, ids.
    pub(crate) fn show(&mut self, value: impl Display) -> &mut Self {
        self.values.push(value.to_string().into_bytes());
        self
    }

    /// Adds an optional id; none becomes the empty text.
    pub(crate) fn maybe(&mut self, value: Option<impl Display>) -> &mut Self {
        match value {
            Some(value) => self.show(value),
            None => self.text(""),
        }
    }

    /// Adds `1` or the empty text.
    pub(crate) fn flag(&mut self, on: bool) -> &mut Self {
        self.text(if on { "1" } else { "" })
    }
}
