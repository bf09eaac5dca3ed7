//! Nodes of the index: the positions of values in a text.

/// Byte offsets of a string's content, without the quotes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) escaped: bool,
}

impl Span {
    pub(super) fn of(self, text: &str) -> &str {
        text.get(self.start..self.end).unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
    Number,
    Bool,
    Null,
}

impl Kind {
    pub(super) const fn of_first_byte(byte: u8) -> Self {
        match byte {
            b'{' => Self::Object,
            b'[' => Self::Array,
            b'"' => Self::String,
            b't' | b'f' => Self::Bool,
            b'n' => Self::Null,
            _ => Self::Number,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::String => "a string",
            Self::Number => "a number",
            Self::Bool => "a boolean",
            Self::Null => "null",
        }
    }
}

/// The nodes of the value's children follow this node. `next` is the index of the first node after all these children.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) key: Span,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) next: usize,
    pub(super) kind: Kind,
}

impl Node {
    pub(super) const fn open(key: Span, start: usize, kind: Kind) -> Self {
        Self { key, start, end: usize::MAX, next: usize::MAX, kind }
    }

    pub(super) const fn close(&mut self, end: usize, next: usize) {
        self.end = end;
        self.next = next;
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.end != usize::MAX
    }
}
