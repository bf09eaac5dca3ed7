//! Helpers for messages to models.

/// Cuts `text` to at most `bytes_max` bytes at a character boundary. Text that is cut ends in `…`.
pub fn cut(text: &str, bytes_max: usize) -> String {
    const MARK: &str = "…";
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let mut end = bytes_max.saturating_sub(MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", &text[..end])
}

/// Longer names are compared only up to here, because the cost of a comparison is quadratic.
const COMPARED_CHARS_MAX: usize = 64;

/// Returns at most `count` candidates that are near to `wrong`, nearest first.
pub fn closest<'a>(wrong: &str, candidates: impl Iterator<Item = &'a str>, count: usize) -> Vec<&'a str> {
    let plain = |name: &str| -> Vec<char> {
        let kept = name.chars().filter(|c| !matches!(c, '_' | '-' | '.' | ' '));
        kept.take(COMPARED_CHARS_MAX).flat_map(char::to_lowercase).collect()
    };
    let wanted = plain(wrong);
    let mut near: Vec<(usize, &str)> = candidates
        .filter_map(|name| {
            let have = plain(name);
            let differ = distance(&wanted, &have);
            (differ * 3 <= wanted.len().max(have.len())).then_some((differ, name))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().take(count).map(|(_, name)| name).collect()
}

/// The number of edits between two names. An edit inserts, deletes or replaces a character, or swaps two neighbors.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_text_keeps_whole_characters_and_fits_the_limit() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("ééééé", 8), "éé…");
        assert_eq!(cut("abc", 2), "…", "no room for text: the mark alone, never a panic");
    }

    #[test]
    fn only_similar_names_are_suggested() {
        let names = ["send_telegram", "send_email", "read_file", "write_file"];
        assert_eq!(closest("sendTelegram", names.into_iter(), 3), ["send_telegram"]);
        assert_eq!(closest("raed_file", names.into_iter(), 3), ["read_file"]);
        assert_eq!(closest("launch_rocket", names.into_iter(), 3), Vec::<&str>::new());
        assert_eq!(closest(&"x".repeat(100_000), names.into_iter(), 3), Vec::<&str>::new());
    }
}
