//! Prepares a server's text for logs, files and people.

use tickfleet_model::{Redactor, hidden};
use tickfleet_tools::{Secrets, wording};

/// Maximum bytes of a server's text in a reason.
pub(super) const REASON_BYTES_MAX: usize = 300;

/// Removes secrets, makes hidden characters visible, and escapes line feeds and tabs.
pub(super) fn printable(words: &str, secrets: &Secrets, bytes_max: usize) -> String {
    let clean = secrets.scrub(words);
    let clean = Redactor::default().text(&clean).into_owned();
    wording::cut(&hidden::visible(&clean).replace('\n', "\\n").replace('\t', "\\t"), bytes_max)
}
