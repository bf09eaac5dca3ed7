//! Prepares a server's text for logs, files and people.

use tickfleet_model::{Redactor, hidden};
use tickfleet_tools::{Secrets, wording};

pub(super) const REASON_BYTES_MAX: usize = 300;

pub(super) fn printable(words: &str, secrets: &Secrets, bytes_max: usize) -> String {
    let clean = secrets.scrub(words);
    let clean = Redactor::default().text(&clean).into_owned();
    wording::cut(&hidden::visible(&clean).replace('\n', "\\n").replace('\t', "\\t"), bytes_max)
}
