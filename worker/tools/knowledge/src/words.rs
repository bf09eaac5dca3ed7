//! Normalizes the words of texts and questions. In scripts without spaces, pairs of characters count as words.

/// A longer string is data, not a word.
const WORD_BYTES_MAX: usize = 48;

/// English words that do not help to find an answer.
const EMPTY: [&str; 69] = [
    "a", "about", "all", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can", "could", "did", "do",
    "does", "for", "from", "get", "had", "has", "have", "how", "i", "if", "in", "into", "is", "it", "its", "me", "my",
    "no", "not", "of", "on", "or", "our", "out", "should", "so", "that", "the", "their", "them", "then", "there",
    "they", "this", "to", "up", "was", "we", "were", "what", "when", "where", "which", "who", "why", "will", "with",
    "would", "you", "your", "one", "than",
];

pub(crate) fn words(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for run in text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|run| !run.is_empty()) {
        each_word(run, &mut found);
    }
    found
}

/// Drops words that do not help to find an answer. If no word helps, returns all words.
pub(crate) fn query_words(question: &str) -> Vec<String> {
    let mut telling: Vec<String> = Vec::new();
    let mut all: Vec<String> = Vec::new();
    for run in question.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|run| !run.is_empty()) {
        let is_empty = EMPTY.contains(&run.to_lowercase().as_str());
        let mut found = Vec::new();
        each_word(run, &mut found);
        for word in found {
            if !is_empty && !telling.contains(&word) {
                telling.push(word.clone());
            }
            if !all.contains(&word) {
                all.push(word);
            }
        }
    }
    if telling.is_empty() { all } else { telling }
}

/// A run of letters, digits and underscores, such as `max_calls`, is added as a whole and in parts.
fn each_word(run: &str, found: &mut Vec<String>) {
    let parts = run.split('_').filter(|part| !part.is_empty());
    if run.contains('_') {
        found.push(bounded(&run.to_lowercase()));
    }
    for part in parts {
        let mut word = String::new();
        let mut dense: Vec<char> = Vec::new();
        for c in part.chars() {
            if is_dense(c) {
                end_word(&mut word, found);
                dense.push(c);
            } else {
                flush_dense(&mut dense, found);
                word.extend(c.to_lowercase());
            }
        }
        end_word(&mut word, found);
        flush_dense(&mut dense, found);
    }
}

fn end_word(word: &mut String, found: &mut Vec<String>) {
    if !word.is_empty() {
        found.push(bounded(&stem(&std::mem::take(word))));
    }
}

fn flush_dense(dense: &mut Vec<char>, found: &mut Vec<String>) {
    let all = std::mem::take(dense);
    match all.as_slice() {
        [] => {}
        [alone] => found.push(alone.to_string()),
        several => found.extend(several.windows(2).map(|pair| pair.iter().collect::<String>())),
    }
}

/// True if the script of this character does not separate words with spaces.
const fn is_dense(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}')
}

fn bounded(word: &str) -> String {
    let mut end = word.len().min(WORD_BYTES_MAX);
    while !word.is_char_boundary(end) {
        end -= 1;
    }
    word[..end].to_owned()
}

/// `limits`, `limited` and `limiting` become equal, and `policies` becomes `policy`.
fn stem(word: &str) -> String {
    if word.len() < 4 || !word.bytes().all(|b| b.is_ascii_lowercase()) {
        return word.to_owned();
    }
    let mut stem = word;
    if let Some(short) = word.strip_suffix("ies").filter(|short| short.len() > 1) {
        return format!("{short}y");
    }
    let hissing = ["sses", "xes", "ches", "shes"].iter().any(|end| word.ends_with(end));
    if hissing {
        stem = &word[..word.len() - 2];
    } else if word.ends_with('s') && !["ss", "us", "is"].iter().any(|end| word.ends_with(end)) {
        stem = &word[..word.len() - 1];
    }
    for end in ["ing", "ed"] {
        if let Some(short) = stem.strip_suffix(end).filter(|short| short.len() > 2 && has_vowel(short)) {
            return one_consonant(short.strip_suffix('e').unwrap_or(short)).to_owned();
        }
    }
    let stem = stem.strip_suffix('e').filter(|short| short.len() > 2).unwrap_or(stem);
    stem.to_owned()
}

fn has_vowel(text: &str) -> bool {
    text.bytes().any(|b| b"aeiouy".contains(&b))
}

/// `stopp` becomes `stop`, but `fall` stays unchanged.
fn one_consonant(text: &str) -> &str {
    let bytes = text.as_bytes();
    let doubled = bytes.len() > 3 && bytes[bytes.len() - 1] == bytes[bytes.len() - 2];
    if doubled && !b"aeioulsz".contains(&bytes[bytes.len() - 1]) { &text[..text.len() - 1] } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_forms_share_one_stem() {
        for forms in [
            &["limit", "limits", "limited", "limiting"][..],
            &["policy", "policies"],
            &["schedule", "schedules", "scheduled", "scheduling"],
            &["stop", "stops", "stopped", "stopping"],
            &["process", "processes", "processed"],
        ] {
            let stems: Vec<String> = forms.iter().map(|form| stem(form)).collect();
            assert!(stems.iter().all(|stem| *stem == stems[0]), "{stems:?}");
        }
        assert_eq!(stem("redis"), "redis");
        assert_eq!(
            words("The agent's max_calls_per_tick: 10."),
            ["the", "agent", "s", "max_calls_per_tick", "max", "call", "per", "tick", "10"]
        );
    }

    #[test]
    fn a_query_drops_stop_words_and_duplicates() {
        assert_eq!(query_words("How do I limit the calls of an agent's calls?"), ["limit", "call", "agent", "s"]);
        assert_eq!(query_words("what is it"), ["what", "is", "it"]);
        assert!(query_words("\0 \u{7} ?!").is_empty());
    }

    #[test]
    fn text_without_spaces_is_split_into_character_pairs() {
        assert_eq!(words("東京都 Größe"), ["東京", "京都", "größe"]);
        assert_eq!(words("都"), ["都"]);
        assert_eq!(words(&"ä".repeat(500))[0].len(), WORD_BYTES_MAX);
    }
}
