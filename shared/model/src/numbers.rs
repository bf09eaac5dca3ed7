//! Finds a number that a cut would split. Half of a number would look like a different amount.

/// Returns a byte range. `None` if a cut at `at` splits no number.
#[must_use]
pub fn number_across(text: &str, at: usize) -> Option<(usize, usize)> {
    let is_part = |c: &char| c.is_alphanumeric() || matches!(c, '.' | ',' | '_' | '+' | '-');
    let (before, behind) = text.split_at_checked(at)?;
    let start = at - before.chars().rev().take_while(is_part).map(char::len_utf8).sum::<usize>();
    let end = at + behind.chars().take_while(is_part).map(char::len_utf8).sum::<usize>();
    // A trailing period or comma belongs to the sentence or the list, not to the number.
    let word = text.get(start..end)?.trim_end_matches(['.', ',']);
    // Commas separate numbers, except between groups of three digits.
    let mut from = start;
    let mut number = word;
    if !is_grouped(word) {
        for part in word.split(',') {
            let to = from + part.len();
            if from <= at && at <= to {
                number = part;
                break;
            }
            from = to + 1;
        }
    }
    let to = from + number.len();
    (is_number(number) && from < at && at < to).then_some((from, to))
}

fn is_number(word: &str) -> bool {
    let digits = word.trim_start_matches(['+', '-']);
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '_' | 'e' | 'E' | '+' | '-');
    digits.starts_with(|c: char| c.is_ascii_digit()) && digits.chars().all(is_part)
}

fn is_grouped(word: &str) -> bool {
    let whole = word.split('.').next().unwrap_or_default().trim_start_matches(['+', '-']);
    let mut groups = whole.split(',');
    let first = groups.next().is_some_and(|first| (1..=3).contains(&first.len()));
    first && groups.all(|group| group.len() == 3)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn only_a_cut_inside_a_number_is_detected() {
        let across = |text: &str, at: usize| number_across(text, at).map(|(from, to)| text[from..to].to_owned());
        for (text, at, number) in [
            (r#"{"amount":1000000}"#, 12, Some("1000000")),
            ("pays 1,250.75 to kim", 8, Some("1,250.75")),
            ("[1234567,1234567]", 12, Some("1234567")),
            ("-1.5e-10", 4, Some("-1.5e-10")),
            ("12.", 2, None),
            ("1234567,1234567", 7, None),
            ("f9e8d54345f4c0", 12, None),
            ("100 200", 3, None),
            ("é1234é", 4, None),
        ] {
            assert_eq!(across(text, at).as_deref(), number, "{text} at {at}");
        }
    }
}
