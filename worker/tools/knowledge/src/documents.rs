//! Reads documents from files: Markdown, plain text, and JSON Lines.

use serde::Deserialize;
use tickfleet_model::knowledge::{Document, Passage, digest, document_id};
use tickfleet_model::limits;

use crate::chunks::{self, SplitDocument};

/// Change this version if documents are split differently: the next import then replaces all documents.
const CUT_VERSION: &str = "1";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    pub document: Document,
    pub passages: Vec<Passage>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, and the line number if known.
    pub place: String,
    pub why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    Markdown,
    Text,
    /// One document per line: `{"title", "text", "category", "source"}`.
    Lines,
}

impl FileFormat {
    /// The format by the file's name. `None` for other files.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "md" | "markdown" => Some(Self::Markdown),
            "txt" | "text" => Some(Self::Text),
            "jsonl" | "ndjson" => Some(Self::Lines),
            _ => None,
        }
    }

    #[must_use]
    pub const fn bytes_max(self) -> u64 {
        match self {
            Self::Markdown | Self::Text => limits::DOCUMENT_BYTES_MAX as u64,
            Self::Lines => limits::KNOWLEDGE_BYTES_MAX,
        }
    }
}

#[derive(Deserialize)]
struct DocumentLine {
    text: String,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    category: Option<String>,
    #[serde(default)]
    source: Option<String>,
}

/// Returns the documents of a file in order. A document without its own category gets `category`.
#[must_use]
pub fn read(file: &str, form: FileFormat, content: &[u8], category: &str) -> Vec<Result<Draft, Problem>> {
    let problem = |why: String| vec![Err(Problem { place: file.to_owned(), why })];
    if content.len() as u64 > form.bytes_max() {
        return problem(format!("it has {} bytes; at most {} are allowed", content.len(), form.bytes_max()));
    }
    let text = match std::str::from_utf8(content) {
        Ok(text) if !text.contains('\0') => text,
        Ok(_) => return problem("not text: it has NUL bytes".to_owned()),
        Err(error) => return problem(format!("not text: byte {} is not UTF-8", error.valid_up_to())),
    };
    let whole = |cut: SplitDocument| {
        let title = cut.title.clone().unwrap_or_else(|| stem(file));
        let draft = draft(DocumentNames { source: file, title: &title, category, file, titled: false }, cut.passages);
        vec![draft.map_err(|why| Problem { place: file.to_owned(), why })]
    };
    match form {
        FileFormat::Markdown => whole(chunks::markdown(text)),
        FileFormat::Text => whole(chunks::plain(text)),
        FileFormat::Lines => text
            .lines()
            .zip(1_usize..)
            .filter(|(line, _)| !line.trim().is_empty())
            .map(|(line, number)| {
                read_line(file, line, category).map_err(|why| Problem { place: format!("{file}:{number}"), why })
            })
            .collect(),
    }
}

fn read_line(file: &str, line: &str, category: &str) -> Result<Draft, String> {
    if line.len() > 2 * limits::DOCUMENT_BYTES_MAX {
        return Err(format!("the line has {} bytes; at most {}", line.len(), 2 * limits::DOCUMENT_BYTES_MAX));
    }
    let expected = r#"expected {"text": …}, optionally with "title", "category" and "source""#;
    let line: DocumentLine = serde_json::from_str(line).map_err(|error| format!("{error}; {expected}"))?;
    if line.text.contains('\0') {
        return Err("the text has NUL bytes".to_owned());
    }
    if line.text.len() > limits::DOCUMENT_BYTES_MAX {
        let bytes = line.text.len();
        return Err(format!("the text has {bytes} bytes; at most {} are allowed", limits::DOCUMENT_BYTES_MAX));
    }
    let cut = chunks::markdown(&line.text);
    let title = line.title.or_else(|| cut.title.clone()).unwrap_or_default();
    let category = line.category.as_deref().unwrap_or(category);
    let source = line.source.as_deref().unwrap_or(file);
    draft(DocumentNames { source, title: &title, category, file, titled: true }, cut.passages)
}

struct DocumentNames<'a> {
    source: &'a str,
    title: &'a str,
    category: &'a str,
    file: &'a str,
    /// True if several documents may have the same source. Their titles then distinguish them.
    titled: bool,
}

fn draft(named: DocumentNames<'_>, passages: Vec<Passage>) -> Result<Draft, String> {
    let DocumentNames { source, title, category, file, titled } = named;
    for (what, text) in [("source", source), ("title", title), ("category", category)] {
        if text.len() > limits::DOCUMENT_NAME_BYTES_MAX || text.chars().any(char::is_control) {
            let max = limits::DOCUMENT_NAME_BYTES_MAX;
            return Err(format!("{what}: expected at most {max} bytes without control characters"));
        }
    }
    if passages.is_empty() {
        return Err("it has no text".to_owned());
    }
    if passages.len() > limits::DOCUMENT_PASSAGES_MAX {
        let count = passages.len();
        let max = limits::DOCUMENT_PASSAGES_MAX;
        return Err(format!("it has {count} sections and passages; at most {max} are allowed"));
    }
    let mut parts = vec![CUT_VERSION, source, title, category, file];
    for passage in &passages {
        parts.extend(passage.headings.iter().map(String::as_str));
        parts.push(&passage.text);
    }
    let document = Document {
        id: document_id(source, if titled { title } else { "" }),
        source: source.to_owned(),
        title: title.to_owned(),
        category: category.trim().to_owned(),
        file: file.to_owned(),
        digest: digest(&parts),
        model: String::new(),
        passages: passages.len(),
        at_ms: 0,
    };
    Ok(Draft { document, passages })
}

fn stem(file: &str) -> String {
    let name = file.rsplit_once(['/', '\\']).map_or(file, |(_, name)| name);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn why(form: FileFormat, content: &[u8]) -> String {
        read("a/b.md", form, content, "").remove(0).unwrap_err().why
    }

    #[test]
    fn an_invalid_file_is_rejected_with_the_reason() {
        assert!(why(FileFormat::Markdown, b"a\0b").contains("NUL"));
        assert!(why(FileFormat::Text, b"abc\xff\xfe").contains("byte 3 is not UTF-8"));
        assert!(why(FileFormat::Markdown, &vec![b'x'; 10 << 20]).contains("10485760 bytes"));
        assert!(why(FileFormat::Markdown, b" \n\n").contains("no text"));
        assert!(why(FileFormat::Markdown, "# a\nb\n".repeat(5_000).as_bytes()).contains("5000 sections"));
        assert!(why(FileFormat::Lines, b"{\"title\": 1}").contains("expected {\"text\""));
        assert!(why(FileFormat::Lines, br#"{"text":"a\u0000b"}"#).contains("NUL"));
        assert!(why(FileFormat::Lines, br#"{"text":"a","title":"x\ny"}"#).contains("title"));
        assert!(why(FileFormat::Lines, "[".repeat(100_000).as_bytes()).contains("expected"));
        assert_eq!(FileFormat::of("x.exe"), None);
        assert_eq!(FileFormat::of("x.MD"), Some(FileFormat::Markdown));
    }

    #[test]
    fn each_json_line_becomes_a_document_and_a_bad_line_fails_alone() {
        let lines = b"{\"text\":\"one\",\"title\":\"A\",\"source\":\"s\"}\n\nno\n{\"text\":\"two\",\"category\":\"c\"}";
        let read = read("x.jsonl", FileFormat::Lines, lines, "given");
        let documents: Vec<_> = read.iter().map(|draft| draft.as_ref().map(|draft| &draft.document)).collect();
        let first = documents[0].unwrap();
        let last = documents[2].unwrap();
        assert_eq!((first.source.as_str(), first.category.as_str()), ("s", "given"));
        assert_eq!((last.source.as_str(), last.category.as_str()), ("x.jsonl", "c"));
        assert_eq!(documents[1].unwrap_err().place, "x.jsonl:3");
    }

    #[test]
    fn a_document_keeps_its_id_when_its_title_changes() {
        let of = |text: &str| read("a/b.md", FileFormat::Markdown, text.as_bytes(), "").remove(0).unwrap().document;
        let one = of("# A\n\nx");
        let other = of("# B\n\nx");
        assert_eq!(one.id, other.id);
        assert_ne!(one.digest, other.digest);
        assert_eq!(of("x").title, "b");
    }
}
