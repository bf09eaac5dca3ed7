//! Inserts a call's arguments into a command. An argument never leaves its element of the command.

use serde_json::{Map, Value};

pub(crate) type Arguments = Map<String, Value>;

#[derive(Debug, Clone)]
pub(crate) struct Template(Vec<Part>);

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Argument(String),
}

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let (name, after) = after.split_once("}}").ok_or_else(|| format!("'{text}': a {{{{ without its }}}}"))?;
            parts.push(Part::Text(before.to_owned()));
            parts.push(Part::Argument(name.to_owned()));
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self(parts))
    }

    pub(crate) fn arguments(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Argument(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// Inserts the arguments. `None` if an argument is absent or null.
    pub(crate) fn render(&self, arguments: &Arguments) -> Option<String> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(fixed) => text.push_str(fixed),
                Part::Argument(name) => match arguments.get(name)? {
                    Value::Null => return None,
                    Value::String(given) => text.push_str(given),
                    other => text.push_str(&other.to_string()),
                },
            }
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    fn render(template: &str, arguments: Value) -> Option<String> {
        Template::parse(template).unwrap().render(arguments.as_object().unwrap())
    }

    #[test]
    fn an_argument_is_inserted_verbatim() {
        assert_eq!(render("--name={{a}}!", json!({"a": "x y; $(z) {{b}}"})).unwrap(), "--name=x y; $(z) {{b}}!");
        assert_eq!(render("{{n}}{{t}}", json!({"n": 5, "t": true})).unwrap(), "5true");
        assert_eq!(render("{{list}}", json!({"list": [1, "a"]})).unwrap(), r#"[1,"a"]"#);
        assert_eq!(render("plain", json!({})).unwrap(), "plain");
    }

    #[test]
    fn an_element_with_an_absent_argument_is_omitted() {
        assert!(render("--n={{n}}", json!({})).is_none() && render("{{n}}", json!({"n": null})).is_none());
        assert!(Template::parse("a {{b").is_err());
    }
}
