//! The message of a rule that stops a call. It has values in braces, such as `amount {args.amount} exceeds 500`.

use tickfleet_model::redaction::Redactor;

use crate::compile::{self, RuleError};
use crate::evaluate::{Evaluation, Node};
use crate::value::Value;

pub(crate) const MESSAGE_BYTES_MAX: usize = 300;
const VALUES_MAX: usize = 8;
/// Few characters are enough, because a model knows the arguments that it sent.
const VALUE_CHARS_MAX: usize = 80;
/// Enough for the kept characters and one more, which shows that the value must be cut.
const VALUE_BYTES_MAX: usize = (VALUE_CHARS_MAX + 1) * 4;

#[derive(Debug, Clone)]
pub(crate) struct Message(Vec<Part>);

#[derive(Debug, Clone)]
enum Part {
    Words(String),
    Value(Node),
}

impl Message {
    /// `{{` and `}}` are literal braces.
    pub(crate) fn compile(text: &str) -> Result<Self, RuleError> {
        if text.len() > MESSAGE_BYTES_MAX {
            return Err(RuleError::because(
                format!("has {} bytes", text.len()),
                format!("at most {MESSAGE_BYTES_MAX}"),
            ));
        }
        let mut parts = Vec::new();
        let mut words = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            words.push_str(before);
            if let Some(after) = from.strip_prefix("{{").or_else(|| from.strip_prefix("}}")) {
                words.extend(from.chars().next());
                rest = after;
                continue;
            }
            let inner = from.strip_prefix('{').and_then(|inner| inner.split_once('}'));
            let Some((path, after)) = inner else {
                return Err(RuleError::because("has a lone brace", "`{args.amount}`, or `{{` for the brace itself"));
            };
            parts.push(Part::Words(std::mem::take(&mut words)));
            parts.push(Part::Value(value(path)?));
            rest = after;
        }
        words.push_str(rest);
        parts.push(Part::Words(words));
        if parts.len() > 2 * VALUES_MAX + 1 {
            return Err(RuleError::because("shows too many values", format!("at most {VALUES_MAX}")));
        }
        Ok(Self(parts))
    }

    pub(crate) fn values(&self) -> Vec<&Node> {
        let values = self.0.iter().filter_map(|part| match part {
            Part::Value(node) => Some(node),
            Part::Words(_) => None,
        });
        values.collect()
    }

    /// A value that cannot be evaluated becomes a question mark, because the call is stopped in any case.
    pub(crate) fn render<'a>(&'a self, evaluation: &mut Evaluation<'a>) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Words(words) => text.push_str(words),
                Part::Value(node) => text.push_str(&evaluation.value(node).map_or_else(|_| "?".to_owned(), render)),
            }
        }
        text
    }
}

fn value(path: &str) -> Result<Node, RuleError> {
    let mut names = path.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
    if let Some(secret) = names.find(|name| Redactor::default().is_secret_key(name)) {
        return Err(RuleError::because(
            format!("shows `{secret}`, which names a secret"),
            "a value that is not secret",
        ));
    }
    compile::expression(path).map_err(|refused| RuleError {
        found: format!("shows {{{path}}}, which {}", refused.found),
        expected: refused.expected,
    })
}

fn render(value: Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(is) => is.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Text(text) => {
            // Redact before the cut, because half a secret does not look like a secret.
            let clean = Redactor::default().head(text.as_bytes(), VALUE_BYTES_MAX);
            // A line break could look like output of the program that shows the message.
            let visible = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
            let mut cut: String = clean.chars().take(VALUE_CHARS_MAX).map(visible).collect();
            if clean.chars().nth(VALUE_CHARS_MAX).is_some() {
                cut.push('…');
            }
            cut
        }
        Value::List(items) => format!("[{} items]", items.len()),
        Value::Map(_) | Value::Json(_) => "{…}".to_owned(),
    }
}
