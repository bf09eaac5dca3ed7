//! Scans a text in a single pass: a recursive descent with bounded depth. The text must be UTF-8.

use std::collections::BTreeSet;

use super::error::{ECHO_BYTES_MAX, JsonError, JsonProblem};
use super::node::{Kind, Node, Span};
use super::strings::{ENDS_RUN, bounded, hex4, unescape};

/// Objects with more keys use a set to find duplicates, because comparing all pairs takes quadratic time.
const FEW_KEYS: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexDepth {
    /// The scan stops at the first problem.
    Nothing,
    /// Down to this depth. The scan continues after a problem if it still recognizes the structure of the text.
    Levels(usize),
}

struct ScanStopped;

enum PathStep {
    Member(Span),
    Element(usize),
}

pub(super) struct Scan<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth_max: usize,
    keep: IndexDepth,
    path: Vec<PathStep>,
    /// The keys of all open objects, the innermost object's last.
    keys: Vec<Span>,
    nodes: Vec<Node>,
    problem: Option<JsonError>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(text: &'a str, depth_max: usize, keep: IndexDepth) -> Self {
        let bytes = text.as_bytes();
        Self {
            text,
            bytes,
            at: 0,
            depth_max,
            keep,
            path: Vec::with_capacity(8),
            keys: Vec::with_capacity(16),
            nodes: Vec::with_capacity(if keep == IndexDepth::Nothing { 0 } else { 32 }),
            problem: None,
        }
    }

    pub(super) fn run(mut self) -> (Vec<Node>, Option<JsonError>) {
        if self.value(Span::default()).is_ok() {
            self.blanks();
            if self.at < self.bytes.len() {
                self.note(JsonProblem::Trailing);
            }
        }
        (self.nodes, self.problem)
    }

    pub(super) fn leading(mut self) -> Result<usize, JsonError> {
        match self.value(Span::default()) {
            Ok(()) => Ok(self.at),
            Err(ScanStopped) => Err(self.problem.unwrap_or_else(|| {
                JsonError::at(JsonProblem::Ended { expected: "a JSON value" }, "", self.bytes, self.at)
            })),
        }
    }

    fn value(&mut self, key: Span) -> Result<(), ScanStopped> {
        self.blanks();
        let kept = matches!(self.keep, IndexDepth::Levels(levels) if self.path.len() <= levels);
        let node = self.nodes.len();
        if kept {
            self.nodes.push(Node::open(key, self.at, self.peek().map_or(Kind::Null, Kind::of_first_byte)));
        }
        match self.peek() {
            Some(b'"') => self.string().map(drop),
            Some(b'{' | b'[') if self.path.len() >= self.depth_max => self.too_deep(),
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            _ => Err(self.unexpected("a JSON value")),
        }?;
        if kept {
            let next = self.nodes.len();
            if let Some(node) = self.nodes.get_mut(node) {
                node.close(self.at, next);
            }
        }
        Ok(())
    }

    fn object(&mut self) -> Result<(), ScanStopped> {
        self.at += 1;
        let first_key = self.keys.len();
        let mut seen = BTreeSet::new();
        self.blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.blanks();
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("a key in double quotes"));
            }
            let key = self.string()?;
            self.new_key(first_key, key, &mut seen)?;
            self.blanks();
            self.path.push(PathStep::Member(key));
            self.expect(b':', "a colon after the key")?;
            self.value(key)?;
            self.path.pop();
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.unexpected("a comma or the end of the object")),
            }
        }
        self.at += 1;
        self.keys.truncate(first_key);
        Ok(())
    }

    fn array(&mut self) -> Result<(), ScanStopped> {
        self.at += 1;
        self.blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        for index in 0.. {
            self.path.push(PathStep::Element(index));
            self.value(Span::default())?;
            self.path.pop();
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.unexpected("a comma or the end of the array")),
            }
        }
        self.at += 1;
        Ok(())
    }

    /// The keys of the innermost open object begin at index `first`.
    fn new_key(
        &mut self,
        first: usize,
        key: Span,
        seen: &mut BTreeSet<std::borrow::Cow<'a, str>>,
    ) -> Result<(), ScanStopped> {
        let text = self.text;
        let siblings = self.keys.get(first..).unwrap_or_default();
        let twice = if siblings.len() < FEW_KEYS {
            siblings.iter().any(|other| same_key(text, *other, key))
        } else {
            if seen.is_empty() {
                seen.extend(siblings.iter().filter_map(|span| unescape(span.of(text))));
            }
            // A key with a lone surrogate has no text; the surrogate is already reported.
            unescape(key.of(text)).is_some_and(|key| !seen.insert(key))
        };
        self.keys.push(key);
        if !twice {
            return Ok(());
        }
        let name = unescape(key.of(text)).unwrap_or_default();
        self.soft(JsonProblem::DuplicateKey(bounded(&name, ECHO_BYTES_MAX).into_owned()), key.start)
    }

    fn string(&mut self) -> Result<Span, ScanStopped> {
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            self.at += rest.iter().position(|b| ENDS_RUN[usize::from(*b)]).unwrap_or(rest.len());
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return Err(self.unexpected("the rest of a string (control characters must be escaped)")),
            }
        }
        self.at += 1;
        Ok(Span { start, end: self.at - 1, escaped })
    }

    fn escape(&mut self) -> Result<(), ScanStopped> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                Ok(())
            }
            Some(b'u') => self.unicode(),
            _ => Err(self.unexpected("one of \" \\ / b f n r t u after a backslash")),
        }
    }

    fn unicode(&mut self) -> Result<(), ScanStopped> {
        let start = self.at - 1;
        let unit = self.hex()?;
        match unit {
            0xD800..=0xDBFF if self.bytes.get(self.at..self.at + 2) == Some(b"\\u") => {
                let back = self.at;
                self.at += 1;
                if (0xDC00..=0xDFFF).contains(&self.hex()?) {
                    return Ok(());
                }
                self.at = back;
                self.soft(JsonProblem::LoneSurrogate, start)
            }
            0xD800..=0xDFFF => self.soft(JsonProblem::LoneSurrogate, start),
            _ => Ok(()),
        }
    }

    /// The current position is the `u` before the digits.
    fn hex(&mut self) -> Result<u32, ScanStopped> {
        self.at += 1;
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if let Some(unit) = hex4(rest) {
            self.at += 4;
            return Ok(unit);
        }
        self.at += rest.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        Err(self.unexpected("four hexadecimal digits after \\u"))
    }

    fn number(&mut self) -> Result<(), ScanStopped> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), ScanStopped> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let count = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { Err(self.unexpected("a digit")) } else { Ok(()) }
    }

    fn word(&mut self, word: &'static str) -> Result<(), ScanStopped> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let same = rest.iter().zip(word.as_bytes()).take_while(|(a, b)| a == b).count();
        self.at += same;
        if same == word.len() { Ok(()) } else { Err(self.unexpected("true, false or null")) }
    }

    fn too_deep(&mut self) -> Result<(), ScanStopped> {
        self.soft(JsonProblem::TooDeep { max: self.depth_max }, self.at)?;
        let mut open = 0usize;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                    continue;
                }
                Some(b'{' | b'[') => open += 1,
                Some(b'}' | b']') => open -= 1,
                Some(_) => {}
                None => return Err(ScanStopped),
            }
            self.at += 1;
            if open == 0 {
                return Ok(());
            }
        }
    }

    fn blanks(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), ScanStopped> {
        if self.peek() != Some(byte) {
            return Err(self.unexpected(expected));
        }
        self.at += 1;
        Ok(())
    }

    fn unexpected(&mut self, expected: &'static str) -> ScanStopped {
        let problem = match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(found) => JsonProblem::Syntax { expected, found },
            None => JsonProblem::Ended { expected },
        };
        self.note(problem);
        ScanStopped
    }

    /// Records a problem after which the structure is still recognizable. The scan continues only if it builds an
    /// index.
    fn soft(&mut self, problem: JsonProblem, at: usize) -> Result<(), ScanStopped> {
        let back = std::mem::replace(&mut self.at, at);
        self.note(problem);
        self.at = back;
        if self.keep == IndexDepth::Nothing { Err(ScanStopped) } else { Ok(()) }
    }

    fn note(&mut self, problem: JsonProblem) {
        if self.problem.is_none() {
            self.problem = Some(JsonError::at(problem, &self.place(), self.bytes, self.at));
        }
    }

    /// Such as `calls[0].arguments`, with a bounded length.
    fn place(&self) -> String {
        let mut place = String::new();
        for step in &self.path {
            match step {
                PathStep::Element(index) => place.push_str(&format!("[{index}]")),
                PathStep::Member(key) => {
                    if !place.is_empty() {
                        place.push('.');
                    }
                    place.push_str(&bounded(key.of(self.text), ECHO_BYTES_MAX));
                }
            }
            if place.len() > ECHO_BYTES_MAX {
                break;
            }
        }
        place
    }
}

/// Compares the unescaped keys, because equal keys can have different escapes.
fn same_key(text: &str, one: Span, other: Span) -> bool {
    if !(one.escaped || other.escaped) {
        return one.of(text) == other.of(text);
    }
    match (unescape(one.of(text)), unescape(other.of(text))) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}
