//! Splits documents into passages of about [`limits::PASSAGE_CHARS`] characters, along headings and paragraphs.

use tickfleet_model::knowledge::Passage;
use tickfleet_model::limits;

/// The number of characters that a passage repeats from the end of the previous passage.
const OVERLAP_CHARS: usize = 120;
const HEADING_BYTES_MAX: usize = 200;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SplitDocument {
    pub(crate) title: Option<String>,
    pub(crate) passages: Vec<Passage>,
}

/// A line in a code block is not a heading.
pub(crate) fn markdown(text: &str) -> SplitDocument {
    let mut cutter = Cutter::default();
    let mut fence: Option<&str> = None;
    for line in body(text).lines() {
        let trimmed = line.trim_start();
        match fence {
            Some(mark) if trimmed.starts_with(mark) => fence = None,
            None => fence = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark)),
            Some(_) => {}
        }
        match heading(line).filter(|_| fence.is_none()) {
            Some((level, words)) => cutter.heading(level, words),
            None if line.trim().is_empty() && fence.is_none() => cutter.end_block(),
            None => cutter.line(line),
        }
    }
    cutter.end()
}

pub(crate) fn plain(text: &str) -> SplitDocument {
    let mut cutter = Cutter::default();
    for line in text.lines() {
        if line.trim().is_empty() { cutter.end_block() } else { cutter.line(line) }
    }
    cutter.end()
}

fn body(text: &str) -> &str {
    let text = text.trim_start_matches('\u{feff}');
    let matter = text.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---\n"));
    matter.map_or(text, |(_, body)| body)
}

fn heading(line: &str) -> Option<(usize, &str)> {
    let level = line.bytes().take_while(|b| *b == b'#').count();
    let words = line.get(level..)?.strip_prefix(' ')?;
    let words = words.trim().trim_end_matches('#').trim();
    ((1..=6).contains(&level) && !words.is_empty()).then_some((level, words))
}

#[derive(Default)]
struct Cutter {
    cut: SplitDocument,
    /// The headings above the current position, with their levels.
    headings: Vec<(usize, String)>,
    block: String,
    passage: String,
    /// True if the passage contains more than repeated text.
    is_new: bool,
}

impl Cutter {
    fn line(&mut self, line: &str) {
        if !self.block.is_empty() {
            self.block.push('\n');
        }
        self.block.push_str(line.trim_end());
    }

    fn heading(&mut self, level: usize, words: &str) {
        self.end_section();
        let words = tickfleet_tools::wording::cut(words, HEADING_BYTES_MAX);
        if level == 1 && self.cut.title.is_none() {
            self.cut.title = Some(words);
            return;
        }
        self.headings.retain(|(above, _)| *above < level);
        self.headings.push((level, words));
    }

    fn end_block(&mut self) {
        let block = std::mem::take(&mut self.block);
        let block = block.trim_end();
        if block.trim().is_empty() {
            return;
        }
        for piece in pieces(block, limits::PASSAGE_CHARS) {
            if self.is_new && chars(&self.passage) + chars(piece) > limits::PASSAGE_CHARS {
                self.end_passage(true);
            }
            if !self.passage.is_empty() {
                self.passage.push_str("\n\n");
            }
            self.passage.push_str(piece);
            self.is_new = true;
        }
    }

    fn end_passage(&mut self, has_more: bool) {
        let text = std::mem::take(&mut self.passage);
        if !self.is_new {
            return;
        }
        if has_more {
            tail(&text, OVERLAP_CHARS).clone_into(&mut self.passage);
        }
        self.is_new = false;
        let headings = self.headings.iter().map(|(_, words)| words.clone()).collect();
        self.cut.passages.push(Passage { headings, text });
    }

    fn end_section(&mut self) {
        self.end_block();
        self.end_passage(false);
    }

    fn end(mut self) -> SplitDocument {
        self.end_section();
        self.cut
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

/// A piece ends at a line break in its second half, or else after a sentence, a word or any character.
fn pieces(mut text: &str, most: usize) -> Vec<&str> {
    let mut found = Vec::new();
    while let Some((end, _)) = text.char_indices().nth(most) {
        let window = &text[..end];
        let half = end / 2;
        let behind = |at: usize| Some(at).filter(|at| *at > half);
        let line = window.rfind('\n').and_then(behind);
        let sentence = || window.rfind(". ").map(|at| at + 1).and_then(behind);
        let word = || window.rfind(' ').and_then(behind);
        let at = line.or_else(sentence).or_else(word).unwrap_or(end);
        found.push(text[..at].trim_end());
        text = text[at..].trim_start();
    }
    if !text.is_empty() {
        found.push(text);
    }
    found
}

/// Returns at most `most` characters, from the start of a sentence or else of a word.
fn tail(text: &str, most: usize) -> &str {
    let from = text.char_indices().rev().nth(most.saturating_sub(1)).map_or(0, |(at, _)| at);
    let end = &text[from..];
    let begins = end.find(". ").map(|at| at + 2).or_else(|| end.find([' ', '\n']).map(|at| at + 1));
    if from == 0 { end } else { begins.map_or("", |at| end[at..].trim_start()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_carry_the_headings_above_them() {
        let text = "---\nx: y\n---\n# The Guide #\nIntro.\n\n## Caps\nTen.\n\n### Days\nMany.\n```sh\n# no heading\n```\n## Other\nEnd.";
        let cut = markdown(text);
        assert_eq!(cut.title.as_deref(), Some("The Guide"));
        let found: Vec<(String, &str)> =
            cut.passages.iter().map(|passage| (passage.headings.join("/"), passage.text.as_str())).collect();
        assert_eq!(
            found,
            [
                (String::new(), "Intro."),
                ("Caps".into(), "Ten."),
                ("Caps/Days".into(), "Many.\n```sh\n# no heading\n```"),
                ("Other".into(), "End.")
            ]
        );
    }

    #[test]
    fn a_long_text_is_split_at_sentence_ends() {
        let sentence = "Every agent has a cap of ten calls, which nobody ever passes. ";
        let cut = plain(&sentence.repeat(100));
        assert!(cut.passages.len() > 5);
        for passage in &cut.passages {
            assert!(chars(&passage.text) <= limits::PASSAGE_CHARS + OVERLAP_CHARS + 2, "{}", chars(&passage.text));
            assert!(passage.text.ends_with('.'), "{:?}", passage.text);
        }
        assert!(cut.passages[1].text.starts_with("Every agent"), "{:?}", cut.passages[1].text);
    }

    #[test]
    fn splitting_keeps_whole_characters_and_all_text() {
        let text = "äöü🦀".repeat(2_000);
        let cut = plain(&text);
        let without_blanks: String = cut.passages.iter().map(|passage| passage.text.as_str()).collect();
        assert!(chars(&without_blanks) >= chars(&text));
        for empty in ["", "\n\n\n", "# \n", "```\n", "---\n"] {
            assert!(markdown(empty).passages.len() <= 1, "{empty:?}");
        }
        assert_eq!(plain("one\n\ntwo").passages[0].text, "one\n\ntwo");
    }
}
