//! "Did you mean": the known name that is closest to a wrong one. For configuration errors and unknown tools.

/// Names further apart than this many edits are not taken for typing errors.
const EDITS_MAX: usize = 2;

/// The known name closest to `wrong`: at most two edits away, and at most half of its characters.
/// Letter case and `-` against `_` count as nothing.
pub fn closest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let folded = fold(wrong);
    let length = folded.chars().count();
    let limit = EDITS_MAX.min(length / 2);
    known
        .into_iter()
        // Names of other lengths are further apart, and a wrong name may be long.
        .filter(|name| name.chars().count().abs_diff(length) <= limit)
        .map(|name| (strsim::osa_distance(&folded, &fold(name)), name))
        .filter(|(edits, _)| *edits <= limit)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name.to_owned())
}

/// Joins names for a message: `a, b, c`; a long list is cut, and an empty one says so.
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
}
