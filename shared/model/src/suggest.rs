//! "Did you mean": finds known names that are similar to an unknown name.

const EDITS_MAX: usize = 2;

/// The names may differ by at most two edits, and by at most half of the characters. Letter case, `-` and `_` do not
/// count.
pub fn closest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let folded = fold(wrong);
    let length = folded.chars().count();
    let limit = EDITS_MAX.min(length / 2);
    known
        .into_iter()
        .filter(|name| name.chars().count().abs_diff(length) <= limit)
        .map(|name| (strsim::osa_distance(&folded, &fold(name)), name))
        .filter(|(edits, _)| *edits <= limit)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name.to_owned())
}

/// Returns at most three names, closest first. A name must begin with `wrong`, or need edits for at most half of the
/// characters.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    const SHOWN: usize = 3;
    const CHARS_MAX: usize = 128;
    let folded: String = fold(wrong).chars().take(CHARS_MAX).collect();
    let limit = folded.chars().count() / 2;
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .filter(|name| name.chars().count() <= CHARS_MAX)
        .map(|name| (strsim::osa_distance(&folded, &fold(name)), name))
        .filter(|(edits, name)| *edits <= limit || !folded.is_empty() && fold(name).starts_with(&folded))
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().take(SHOWN).map(|(_, name)| name).collect()
}

/// For messages: `a, b, c`. A long list is cut, and an empty list becomes `there are none`.
pub fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 30;
    let names: Vec<&str> = names.into_iter().collect();
    if names.is_empty() {
        return "there are none".into();
    }
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} … ({more} more)", names[..SHOWN].join(", ")),
    }
}

fn fold(name: &str) -> String {
    name.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_names_are_suggested_and_far_ones_are_not() {
        let known = ["slots", "lease", "drain", "tool_timeout"];
        let meant = |wrong| closest(wrong, known);
        assert_eq!(meant("slot").as_deref(), Some("slots"));
        assert_eq!(meant("laese").as_deref(), Some("lease"));
        assert_eq!(meant("solts").as_deref(), Some("slots"), "swapped neighbours are one edit");
        assert_eq!(meant("Tool-Timeout").as_deref(), Some("tool_timeout"));
        assert_eq!(meant("colour"), None);
        assert_eq!(meant("x"), None);
        assert_eq!(meant(""), None);
    }

    #[test]
    fn nearest_names_come_first_and_distant_ones_are_omitted() {
        let known = ["kelly", "kerry", "fran", "kelly-2", "kenneth"];
        assert_eq!(nearest("kely", known), ["kelly", "kerry"]);
        assert_eq!(nearest("kelly-", known), ["kelly", "kelly-2", "kerry"]);
        assert_eq!(nearest("fr", known), ["fran"]);
        assert!(nearest("zzz", known).is_empty() && nearest("", known).is_empty());
    }
}
