//! Prepares a server's text for logs, files and people.

use tickfleet_model::{Redactor, hidden};
use tickfleet_tools::{Secrets, wording};

/// Maximum bytes of a server's text in a reason.
pub(super) const REASON_BYTES_MAX: usize = 300;

/// Returns a server's text without secrets, on one line, with hidden characters made visible, and cut to `bytes_max`.
pub(super) fn printable(words: &str, secrets: &Secrets, bytes_max: usize) -> String {
    let clean = secrets.scrub(words);
    let clean = Redactor::default().text(&clean).into_owned();
    wording::cut(&hidden::visible(&clean).replace('\n', "\\n").replace('\t', "\\t"), bytes_max)
}
