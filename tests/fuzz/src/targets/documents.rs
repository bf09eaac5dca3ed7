//! Documents of a knowledge base.

use std::collections::BTreeSet;

use tickfleet_model::limits;
use tickfleet_tools_knowledge::documents::{FileFormat, read};

/// A passage may repeat up to 200 characters from the end of the previous passage.
const PASSAGE_CHARS_MAX: usize = limits::PASSAGE_CHARS + 200;

/// The first byte selects the format of the file.
pub(super) fn document(bytes: &[u8]) {
    let Some((first, content)) = bytes.split_first() else { return };
    let form = match first {
        b'l' => FileFormat::Lines,
        b't' => FileFormat::Text,
        _ => FileFormat::Markdown,
    };
    let drafts = read("folder/file.md", form, content, "category");
    assert!(form == FileFormat::Lines || drafts.len() == 1, "a file is one document");
    for draft in drafts.into_iter().flatten() {
        let document = &draft.document;
        assert_eq!((document.id.len(), document.digest.len(), document.passages), (32, 32, draft.passages.len()));
        for name in [&document.source, &document.title, &document.category] {
            assert!(name.len() <= limits::DOCUMENT_NAME_BYTES_MAX && !name.chars().any(char::is_control), "{name:?}");
        }
        for passage in &draft.passages {
            assert!(!passage.text.trim().is_empty(), "a passage says something");
            let chars = passage.text.chars().count();
            assert!(chars <= PASSAGE_CHARS_MAX, "a passage of {chars} characters");
        }
        if form == FileFormat::Text {
            nothing_is_lost(content, draft.passages.iter().map(|passage| passage.text.as_str()));
        }
    }
}

fn nothing_is_lost<'a>(content: &[u8], passages: impl Iterator<Item = &'a str>) {
    let text = String::from_utf8_lossy(content);
    let kept: BTreeSet<&str> = passages.flat_map(str::split_whitespace).collect();
    let short = |word: &&str| word.chars().count() < limits::PASSAGE_CHARS / 4;
    let lost = text.split_whitespace().filter(short).find(|word| !kept.contains(word));
    // A short word next to a very long word may be cut, so a text with a very long word may lose short words.
    assert!(lost.is_none() || text.split_whitespace().any(|word| !short(&word)), "{lost:?} is in no passage");
}
