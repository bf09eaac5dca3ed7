//! The words of a server, as they reach logs, files and people.

use tickfleet_model::{Redactor, hidden};
use tickfleet_tools::{Secrets, wording};

/// Bytes of a server's words that go into a reason.
pub(super) const REASON_BYTES_MAX: usize = 300;

/// Words of a server without secrets, on one line, with hidden characters made visible, and cut to a length.
pub(super) fn printable(words: &str, secrets: &Secrets, bytes_max: usize) -> String {
    let clean = secrets.scrub(words);
    let clean = Redactor::default().text(&clean).into_owned();
    wording::cut(&hidden::visible(&clean).replace('\n', "\\n").replace('\t', "\\t"), bytes_max)
}
