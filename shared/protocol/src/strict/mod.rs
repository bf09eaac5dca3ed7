//! OpenAI's strict mode: the model must follow a schema, but only a subset of JSON Schema is possible. A keyword that
//! only narrows a value moves to the description. The call is still validated against the original schema.

mod nulls;
mod schema;

use std::fmt;

use serde_json::Value;

pub use nulls::without_nulls;
pub use schema::strict_schema;

/// At most this many references are followed, because a schema can refer to itself.
const HOPS_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct NotStrict {
    /// A path such as `filter.tags[]`; empty for the arguments as a whole.
    pub at: String,
    pub why: String,
}

impl fmt::Display for NotStrict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, why } = self;
        if at.is_empty() { write!(f, "the schema {why}") } else { write!(f, "'{at}' {why}") }
    }
}

fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    if reference == "#" {
        return Some(root);
    }
    let (folder, name) = reference.strip_prefix("#/")?.split_once('/')?;
    matches!(folder, "$defs" | "definitions").then(|| root.get(folder)?.get(name)).flatten()
}

/// True if unknown, so that no meaningful null is dropped.
fn allows_null(schema: &Value, root: &Value, hops: usize) -> bool {
    let Value::Object(members) = schema else { return schema != &Value::Bool(false) };
    if hops == 0 {
        return true;
    }
    let sub = |schema: &Value| allows_null(schema, root, hops - 1);
    let every = |name: &str, test: &dyn Fn(&Value) -> bool| members.get(name).is_none_or(test);
    let any_of = |list: &Value| list.as_array().is_none_or(|list| list.iter().any(sub));
    every("type", &|kind| match kind {
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "null"),
        kind => kind == "null",
    }) && every("enum", &|values| values.as_array().is_none_or(|values| values.contains(&Value::Null)))
        && every("const", &Value::is_null)
        && every("anyOf", &any_of)
        && every("oneOf", &any_of)
        && every("allOf", &|list| list.as_array().is_none_or(|list| list.iter().all(sub)))
        && every("$ref", &|to| to.as_str().and_then(|to| resolve(root, to)).is_none_or(sub))
}
