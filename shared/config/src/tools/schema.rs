//! Reads the schemas of declared tools. Errors have the location in the file.

use std::fmt;

use crate::document::reader::Cursor;
use crate::document::tree::{Node, Value, join};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaUse {
    Arguments,
    Output,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaProblem {
    /// JSON pointer into the schema.
    pub at: String,
    /// The end of "a JSON Schema that …".
    pub why: String,
}

/// Returns the parts of a schema that will not be enforced. The crate that compiles schemas provides this function.
#[derive(Clone, Copy)]
pub struct SchemaCheck(pub fn(&serde_json::Value, SchemaUse) -> Result<Vec<SchemaProblem>, SchemaProblem>);

impl Default for SchemaCheck {
    fn default() -> Self {
        Self(|_, _| Ok(Vec::new()))
    }
}

impl fmt::Debug for SchemaCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SchemaCheck")
    }
}

impl SchemaCheck {
    pub(crate) fn read(self, cursor: &Cursor<'_>, which: SchemaUse) -> serde_json::Value {
        let schema = cursor.node.to_json();
        if !matches!(cursor.node.value, Value::Mapping(_)) {
            cursor.refuse("a JSON Schema: a mapping");
            return schema;
        }
        match self.0(&schema, which) {
            Ok(unchecked) => {
                for problem in unchecked {
                    let (node, path) = walk(cursor.node, &cursor.path, &problem.at);
                    cursor.errors.warn(&node.place, &path, format!("the schema {}", problem.why));
                }
            }
            Err(problem) => {
                let (node, path) = walk(cursor.node, &cursor.path, &problem.at);
                let expected = format!("a JSON Schema that {}", problem.why);
                cursor.errors.push(&node.place, &path, node.describe(), expected);
            }
        }
        schema
    }
}

fn walk<'a>(mut node: &'a Node, path: &str, pointer: &str) -> (&'a Node, String) {
    let mut path = path.to_owned();
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        let below = match &node.value {
            Value::List(items) => token.parse::<usize>().ok().and_then(|at| items.get(at)),
            _ => node.get(&token),
        };
        let Some(below) = below else { break };
        path = match &node.value {
            Value::List(_) => format!("{path}[{token}]"),
            _ => join(&path, &token),
        };
        node = below;
    }
    (node, path)
}
