//! An index of the outer levels of a scanned JSON text. The index neither copies nor converts values.

use std::borrow::Cow;

use super::error::JsonError;
use super::node::{Kind, Node};
use super::scan::{IndexDepth, Scan};
use super::strings::unescape;

#[derive(Debug)]
pub struct Document<'a> {
    text: &'a str,
    nodes: Vec<Node>,
}

impl<'a> Document<'a> {
    /// Indexes values down to depth `levels` (0: only the whole value). After a problem, the index still has all values
    /// that can be read.
    #[must_use]
    pub fn read(text: &'a str, depth_max: usize, levels: usize) -> (Self, Option<JsonError>) {
        let (nodes, problem) = Scan::new(text, depth_max, IndexDepth::Levels(levels)).run();
        (Self { text, nodes }, problem)
    }

    #[must_use]
    pub fn root(&self) -> Option<Value<'a, '_>> {
        self.nodes.first().map(|_| Value { document: self, at: 0 })
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Value<'a, 'd> {
    document: &'d Document<'a>,
    at: usize,
}

impl<'a, 'd> Value<'a, 'd> {
    fn node(&self) -> Option<&'d Node> {
        self.document.nodes.get(self.at)
    }

    #[must_use]
    pub fn kind(&self) -> Kind {
        self.node().map_or(Kind::Null, |node| node.kind)
    }

    /// `None` if the text ends inside the value.
    #[must_use]
    pub fn text(&self) -> Option<&'a str> {
        self.node().and_then(|node| self.document.text.get(node.start..node.end))
    }

    /// `None` if the value is not a string, or has a lone surrogate.
    #[must_use]
    pub fn as_str(&self) -> Option<Cow<'a, str>> {
        if self.kind() != Kind::String {
            return None;
        }
        self.text().and_then(|quoted| quoted.strip_prefix('"')?.strip_suffix('"')).and_then(unescape)
    }

    /// Empty for an object below the indexed levels. A key with a lone surrogate is empty.
    pub fn members(&self) -> impl Iterator<Item = (Cow<'a, str>, Value<'a, 'd>)> + use<'a, 'd> {
        let text = self.document.text;
        self.children(Kind::Object).map(move |value| {
            let key = value.node().map(|node| node.key).unwrap_or_default();
            let written = key.of(text);
            let key = if key.escaped { unescape(written).unwrap_or_default() } else { Cow::Borrowed(written) };
            (key, value)
        })
    }

    #[must_use]
    pub fn member(&self, name: &str) -> Option<Value<'a, 'd>> {
        self.members().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Empty for an array below the indexed levels.
    pub fn elements(&self) -> impl Iterator<Item = Value<'a, 'd>> + use<'a, 'd> {
        self.children(Kind::Array)
    }

    fn children(&self, of: Kind) -> impl Iterator<Item = Value<'a, 'd>> + use<'a, 'd> {
        let document = self.document;
        let (mut at, end) = match self.node() {
            Some(node) if node.kind == of => (self.at + 1, node.next.min(document.nodes.len())),
            _ => (0, 0),
        };
        std::iter::from_fn(move || {
            let node = document.nodes.get(at).filter(|_| at < end)?;
            let child = Value { document, at };
            at = node.next;
            Some(child)
        })
    }

    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.node().is_some_and(Node::is_closed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn values_keep_their_original_text() {
        let text = r#" {"a": [1, {"x": 12345678901234567890123}], "b\u0063": "t\n", "d": {}} "#;
        let (document, problem) = Document::read(text, 8, 3);
        assert_eq!(problem, None);
        let members: Vec<_> = document.root().unwrap().members().collect();
        let keys: Vec<_> = members.iter().map(|(key, _)| key.as_ref()).collect();
        assert_eq!(keys, ["a", "bc", "d"]);
        let elements: Vec<_> = members[0].1.elements().map(|v| v.text().unwrap()).collect();
        assert_eq!(elements, ["1", r#"{"x": 12345678901234567890123}"#]);
        assert_eq!(members[1].1.as_str().unwrap(), "t\n");
        assert_eq!(members[2].1.members().count(), 0);
    }

    #[test]
    fn broken_json_is_readable_up_to_the_syntax_error() {
        let (document, problem) =
            Document::read(r#"{"a":{"k":1,"k":2},"b":"\ud800","c":[[[[1]]]],"d":[{"e":1},{"f""#, 3, 3);
        assert_eq!(problem.unwrap().problem.code().as_str(), "duplicate_key");
        let members: Vec<_> = document.root().unwrap().members().collect();
        assert_eq!(members.iter().map(|(k, _)| k.as_ref()).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert_eq!(members[1].1.as_str(), None);
        assert!(members[2].1.is_whole() && !members[3].1.is_whole());
        assert_eq!(members[3].1.elements().filter(Value::is_whole).count(), 1);
    }
}
