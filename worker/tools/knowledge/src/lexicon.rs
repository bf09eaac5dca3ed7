//! An in-memory index of texts by their words, ranked by BM25.

use std::collections::HashMap;

/// BM25's `k1`: how soon repetitions of a word stop increasing the score.
const SATURATION: f32 = 1.2;
/// BM25's `b`: how strongly the length of a text reduces its score.
const LENGTH: f32 = 0.75;
/// An index of more than 1,000 texts is rebuilt when more than one in `GONE_SHARE` texts is removed.
const GONE_SHARE: usize = 3;

#[derive(Debug, Clone, Copy)]
struct Posting {
    text: u32,
    times: u16,
}

#[derive(Debug, Default)]
pub(crate) struct Lexicon {
    words: HashMap<Box<str>, Vec<Posting>>,
    /// The number of words of each text. `None` if the text was removed.
    lengths: Vec<Option<u32>>,
    live: usize,
    length: u64,
    bytes: usize,
}

impl Lexicon {
    pub(crate) fn add(&mut self, words: &[String]) -> usize {
        let number = self.lengths.len();
        let text = u32::try_from(number).unwrap_or(u32::MAX);
        let mut times: HashMap<&str, u16> = HashMap::new();
        for word in words {
            let times = times.entry(word).or_default();
            *times = times.saturating_add(1);
        }
        for (word, times) in times {
            let posting = Posting { text, times };
            self.bytes += size_of::<Posting>();
            match self.words.get_mut(word) {
                Some(postings) => postings.push(posting),
                None => {
                    self.bytes += word.len() + 64;
                    self.words.insert(word.into(), vec![posting]);
                }
            }
        }
        let length = u32::try_from(words.len()).unwrap_or(u32::MAX);
        self.lengths.push(Some(length));
        self.live += 1;
        self.length += u64::from(length);
        number
    }

    /// The text's number is not used again.
    pub(crate) fn remove(&mut self, number: usize) {
        if let Some(length) = self.lengths.get_mut(number).and_then(Option::take) {
            self.live -= 1;
            self.length -= u64::from(length);
        }
    }

    pub(crate) fn needs_rebuild(&self) -> bool {
        self.lengths.len() > 1_000 && (self.lengths.len() - self.live) * GONE_SHARE > self.lengths.len()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Finds texts that contain at least one of the words, best first. Scores are relative to an upper bound, so they
    /// are below 1.
    pub(crate) fn find(&self, words: &[String], most: usize, wanted: impl Fn(usize) -> bool) -> Vec<(usize, f32)> {
        let mean = (self.length as f32 / self.live.max(1) as f32).max(1.0);
        let mut scores = HashMap::<u32, f32>::new();
        let mut best = 0.0;
        for word in words {
            let postings = self.words.get(word.as_str()).map_or(&[][..], Vec::as_slice);
            let live = |posting: &&Posting| self.lengths[posting.text as usize].is_some();
            let having = postings.iter().filter(live).count();
            let rarity = (1.0 + (self.live as f32 - having as f32 + 0.5) / (having as f32 + 0.5)).ln();
            best += rarity * (SATURATION + 1.0);
            for posting in postings {
                let Some(length) = self.lengths[posting.text as usize] else { continue };
                if !wanted(posting.text as usize) {
                    continue;
                }
                let times = f32::from(posting.times);
                let norm = SATURATION * (1.0 - LENGTH + LENGTH * length as f32 / mean);
                *scores.entry(posting.text).or_default() += rarity * times * (SATURATION + 1.0) / (times + norm);
            }
        }
        let mut found: Vec<(usize, f32)> =
            scores.into_iter().map(|(text, score)| (text as usize, score / best)).collect();
        best_first(&mut found, most);
        found
    }
}

/// Keeps the `most` texts with the highest scores. Equal scores are sorted by text number.
pub(crate) fn best_first(found: &mut Vec<(usize, f32)>, most: usize) {
    found.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    found.truncate(most);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{query_words, words};

    fn lexicon(texts: &[&str]) -> Lexicon {
        let mut lexicon = Lexicon::default();
        for text in texts {
            lexicon.add(&words(text));
        }
        lexicon
    }

    #[test]
    fn rare_words_and_short_texts_rank_higher() {
        let lexicon = lexicon(&[
            "the fleet has agents and the agents have calls",
            "agents wait for the quarantine",
            "quarantine of agents, with much else said beside it about other things that nobody asked for at all",
            "nothing of it",
        ]);
        let found = lexicon.find(&query_words("quarantine of agents"), 9, |_| true);
        let order: Vec<usize> = found.iter().map(|(text, _)| *text).collect();
        assert_eq!(order, [1, 2, 0]);
        assert!(found.iter().all(|(_, score)| *score > 0.0 && *score <= 1.0), "{found:?}");
        assert_eq!(
            lexicon.find(&query_words("quarantine"), 1, |text| text != 1),
            [(2, lexicon.find(&query_words("quarantine"), 9, |_| true)[1].1)]
        );
        assert!(lexicon.find(&[], 9, |_| true).is_empty());
    }

    #[test]
    fn a_removed_text_is_neither_found_nor_counted() {
        let mut lexicon = lexicon(&["alpha beta", "alpha gamma"]);
        lexicon.remove(0);
        lexicon.remove(0);
        let only = Lexicon::find(&lexicon, &query_words("alpha"), 9, |_| true);
        let mut fresh = Lexicon::default();
        fresh.add(&words("alpha gamma"));
        assert_eq!(only.len(), 1);
        assert_eq!(only[0].1, fresh.find(&query_words("alpha"), 9, |_| true)[0].1);
    }
}
