//! Counts of outcomes, and texts shortened to whole sentences.

use crate::output::{Output, StatusColor, short};

/// Sorted by first occurrence: `3 ok, 1 denied`.
pub(super) fn counted(words: impl Iterator<Item = (String, StatusColor)>, output: &Output) -> String {
    let mut counts: Vec<(String, StatusColor, usize)> = Vec::new();
    for (word, color) in words {
        match counts.iter_mut().find(|(known, ..)| *known == word) {
            Some((_, _, count)) => *count += 1,
            None => counts.push((word, color, 1)),
        }
    }
    let one = |(word, color, count): &(String, StatusColor, usize)| {
        let text = if *count == 1 { word.clone() } else { format!("{count} {word}") };
        output.paint(*color, &text)
    };
    counts.iter().map(one).collect::<Vec<_>>().join(", ")
}

pub(super) fn whole_sentences(text: &str, chars_max: usize) -> String {
    let ends = text.match_indices(['.', '?']).map(|(at, _)| at + 1).filter(|end| text[*end..].starts_with(' '));
    let mut ends = ends.chain([text.len()]);
    let fitting = ends.rfind(|end| text[..*end].chars().count() <= chars_max);
    short(&text[..fitting.unwrap_or(text.len())], chars_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_after_a_sentence_if_one_fits() {
        assert_eq!(whole_sentences("One. Two. Three.", 10), "One. Two.");
        assert_eq!(whole_sentences("One. Two.", 9), "One. Two.");
        assert_eq!(whole_sentences("A long one. Two.", 6), "A long…");
        assert_eq!(whole_sentences("", 6), "");
    }

    #[test]
    fn outcome_counts_keep_first_seen_order() {
        let words = ["ok", "denied", "ok"].map(|word| (word.to_owned(), StatusColor::Good));
        assert_eq!(counted(words.into_iter(), &Output::new(true)), "2 ok, denied");
    }
}
