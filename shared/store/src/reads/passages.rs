//! The stored format of a document's passages: one line of JSON, then the vectors. Each number of a vector is one byte.

use tickfleet_model::knowledge::{Passage, Passages};
use tickfleet_model::limits;

pub(crate) fn write(passages: &Passages) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(&passages.passages).unwrap_or_default();
    // JSON escapes line breaks within texts, so the first line break ends the JSON.
    bytes.push(b'\n');
    let numbers = passages.vectors.iter().flatten();
    bytes.extend(numbers.map(|number| number.cast_unsigned()));
    bytes
}

/// `None` if the format is invalid. If the vectors have the wrong size, returns only the passages, because a search by
/// words does not need vectors.
pub(crate) fn read(bytes: &[u8]) -> Option<Passages> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let passages: Vec<Passage> = serde_json::from_slice(&bytes[..end]).ok()?;
    let numbers = &bytes[end + 1..];
    let each = numbers.len() / passages.len().max(1);
    let fits = each > 0 && each <= limits::EMBEDDING_NUMBERS_MAX && each * passages.len() == numbers.len();
    let vector = |bytes: &[u8]| bytes.iter().map(|byte| byte.cast_signed()).collect();
    let vectors = if fits { numbers.chunks(each).map(vector).collect() } else { Vec::new() };
    Some(Passages { passages, vectors })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn passages_read_back_and_foreign_bytes_are_rejected() {
        let passage = |text: &str| Passage { headings: vec!["A\nB".into()], text: text.into() };
        let whole =
            Passages { passages: vec![passage("ä\n"), passage("")], vectors: vec![vec![-128, 10], vec![0, 127]] };
        assert_eq!(read(&write(&whole)).unwrap(), whole);
        let wordy = Passages { vectors: Vec::new(), ..whole.clone() };
        assert_eq!(read(&write(&wordy)).unwrap(), wordy);
        let mut odd = write(&whole);
        odd.pop();
        assert_eq!(read(&odd).unwrap(), wordy, "vectors that do not fit are left out");
        for foreign in [&b""[..], b"\n", b"[]", b"{}\nx", b"\xff\n\n", b"[{\"text\":1}]\n"] {
            assert!(read(foreign).is_none(), "{foreign:?}");
        }
    }
}
