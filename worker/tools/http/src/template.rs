//! Templates: `{{argument}}` and `${SECRET}` inside text. The encoding of a value depends on the template's position.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use tickfleet_tools::Secrets;
use tickfleet_tools::percent::{SECRET_KEEPS, percent_decoded, percent_encoded};

/// The arguments by name, as the model wrote them.
pub(super) type Arguments = BTreeMap<String, Box<RawValue>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplatePosition {
    Path,
    Query,
    Header,
    /// Inside a string of a JSON body. The whole string is escaped after the values are filled in.
    Text,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Argument(String),
    Secret(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

impl Template {
    /// `{{` and `${` always begin a reference.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = [rest.find("{{"), rest.find("${")].into_iter().flatten().min() {
            let (before, from) = rest.split_at(at);
            let close = if from.starts_with("{{") { "}}" } else { "}" };
            let (name, after) = from[2..].split_once(close).ok_or_else(|| format!("'{}' is not closed", &from[..2]))?;
            let name = name.trim();
            let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
            if !plain {
                return Err(format!("'{name}' is not a name"));
            }
            parts.push(Part::Text(before.to_owned()));
            parts.push(if close == "}}" { Part::Argument(name.to_owned()) } else { Part::Secret(name.to_owned()) });
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        Ok(Self(parts))
    }

    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|p| if let Part::Secret(name) = p { Some(name.as_str()) } else { None })
    }

    fn whole(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Part::Argument(name)] => Some(name),
            _ => None,
        }
    }

    /// `None` if an argument is absent or null. The error is for a model, and contains no secrets.
    pub(super) fn render(&self, values: &Values<'_>, place: TemplatePosition) -> Result<Option<String>, String> {
        let mut text = String::new();
        let mut segment = Segment::default();
        for part in &self.0 {
            match part {
                Part::Text(literal) => {
                    text.push_str(literal);
                    if place == TemplatePosition::Path {
                        segment.add_literal(literal)?;
                    }
                }
                Part::Argument(name) => {
                    let raw = values.arguments.get(name);
                    let Some(value) = raw.map(|raw| as_text(name, raw)).transpose()?.flatten() else { return Ok(None) };
                    text.push_str(&encoded(name, &value, place)?);
                    segment.add_argument(name, &value);
                }
                Part::Secret(name) => {
                    let value = values.secrets.get(name).ok_or_else(|| format!("The secret '{name}' is missing."))?;
                    match place {
                        TemplatePosition::Path => text.push_str(&percent_encoded(value, SECRET_KEEPS)),
                        TemplatePosition::Query => text.push_str(&percent_encoded(value, "")),
                        TemplatePosition::Header | TemplatePosition::Text => text.push_str(value),
                    }
                }
            }
        }
        if place == TemplatePosition::Path {
            segment.check()?;
        }
        Ok(Some(text))
    }
}

/// A path segment while it is assembled. The whole segment is checked, because two parts together can form an encoded
/// separator.
#[derive(Default)]
struct Segment<'a> {
    decoded: String,
    arguments: Vec<&'a str>,
}

impl<'a> Segment<'a> {
    fn add_argument(&mut self, name: &'a str, value: &str) {
        self.decoded.push_str(value);
        self.arguments.push(name);
    }

    fn add_literal(&mut self, literal: &str) -> Result<(), String> {
        for (index, piece) in literal.split('/').enumerate() {
            if index > 0 {
                self.check()?;
                *self = Self::default();
            }
            self.decoded.push_str(piece);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.arguments.is_empty() {
            return Ok(());
        }
        let names = self.arguments.join("', '");
        one_segment(&self.decoded).map_err(|why| format!("The path segment of '{names}' {why}."))
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Values<'a> {
    pub(super) arguments: &'a Arguments,
    pub(super) secrets: &'a Secrets,
}

/// Joins the items of a list with commas. An object becomes JSON. `None` for null.
fn as_text(name: &str, raw: &RawValue) -> Result<Option<String>, String> {
    let unreadable = |_| format!("Argument '{name}' cannot be read.");
    let json = raw.get();
    match json.as_bytes().first() {
        Some(b'n') => Ok(None),
        Some(b'"') => serde_json::from_str(json).map(Some).map_err(unreadable),
        Some(b'[') => {
            let items: Vec<Box<RawValue>> = serde_json::from_str(json).map_err(unreadable)?;
            if items.iter().any(|item| item.get().starts_with(['[', '{'])) {
                return Err(format!("Argument '{name}' must be a list of plain values."));
            }
            let texts: Result<Vec<_>, _> = items.iter().map(|item| as_text(name, item)).collect();
            Ok(Some(texts?.into_iter().flatten().collect::<Vec<_>>().join(",")))
        }
        _ => Ok(Some(json.to_owned())),
    }
}

fn encoded(name: &str, value: &str, place: TemplatePosition) -> Result<String, String> {
    match place {
        TemplatePosition::Path => {
            one_segment(value).map_err(|why| format!("Argument '{name}' {why}: it is one segment of a path."))?;
            Ok(percent_encoded(value, ""))
        }
        TemplatePosition::Query => Ok(percent_encoded(value, "")),
        TemplatePosition::Header => {
            if value.chars().any(char::is_control) {
                return Err(format!("Argument '{name}' must not contain line breaks or control characters."));
            }
            Ok(value.to_owned())
        }
        TemplatePosition::Text => Ok(value.to_owned()),
    }
}

const DECODINGS_MAX: usize = 5;

/// Checks that the value stays one path segment. Proxies may decode `%2F` (some twice), resolve dots, treat `\\` as
/// `/`, or drop parameters after `;`.
fn one_segment(value: &str) -> Result<(), &'static str> {
    if value.is_empty() {
        return Err("must not be empty");
    }
    let mut decoded = value.to_owned();
    for _ in 0..DECODINGS_MAX {
        if decoded.contains(['/', '\\']) {
            return Err("must not contain '/' or '\\', encoded or not");
        }
        if decoded.chars().any(char::is_control) {
            return Err("must not contain control characters, encoded or not");
        }
        if matches!(decoded.split(';').next(), Some("" | "." | "..")) {
            return Err("must not be '.' or '..', encoded or not");
        }
        let next = percent_decoded(&decoded);
        if next == decoded {
            return Ok(());
        }
        decoded = next;
    }
    Err("must not be percent-encoded again and again")
}

#[derive(Debug, Clone)]
pub(super) enum Body {
    Fixed(Value),
    /// A string that is exactly one argument becomes the argument's JSON value.
    Whole(String),
    Text(Template),
    /// If an item's argument is absent, the item is left out.
    List(Vec<Body>),
    /// If a member's argument is absent, the member is left out.
    Object(Vec<(String, Body)>),
}

impl Body {
    pub(super) fn parse(value: &Value) -> Result<Self, String> {
        Ok(match value {
            Value::String(text) => {
                let template = Template::parse(text)?;
                match template.whole() {
                    Some(name) => Self::Whole(name.to_owned()),
                    None => Self::Text(template),
                }
            }
            Value::Array(items) => Self::List(items.iter().map(Self::parse).collect::<Result<_, _>>()?),
            Value::Object(members) => Self::Object(Self::members(members)?),
            fixed => Self::Fixed(fixed.clone()),
        })
    }

    fn members(members: &Map<String, Value>) -> Result<Vec<(String, Self)>, String> {
        let parse = |(name, value): (&String, &Value)| {
            if name.contains("{{") || name.contains("${") {
                return Err(format!("the member name '{name}' has a reference; only values can"));
            }
            Ok((name.clone(), Self::parse(value)?))
        };
        members.iter().map(parse).collect()
    }

    pub(super) fn templates(&self, see: &mut dyn FnMut(&Template)) {
        match self {
            Self::Fixed(_) => {}
            Self::Whole(name) => see(&Template(vec![Part::Argument(name.clone())])),
            Self::Text(template) => see(template),
            Self::List(items) => items.iter().for_each(|item| item.templates(see)),
            Self::Object(members) => members.iter().for_each(|(_, member)| member.templates(see)),
        }
    }

    /// `None` if the body is a single string with an absent argument. The error is for a model.
    pub(super) fn render(&self, values: &Values<'_>) -> Result<Option<String>, String> {
        Ok(match self {
            Self::Fixed(value) => Some(value.to_string()),
            Self::Whole(name) => values.arguments.get(name).map(|raw| raw.get().to_owned()),
            Self::Text(template) => {
                template.render(values, TemplatePosition::Text)?.map(|text| Value::from(text).to_string())
            }
            Self::List(items) => {
                let items: Result<Vec<_>, _> = items.iter().map(|item| item.render(values)).collect();
                Some(format!("[{}]", items?.into_iter().flatten().collect::<Vec<_>>().join(",")))
            }
            Self::Object(members) => {
                let mut rendered = Vec::with_capacity(members.len());
                for (name, member) in members {
                    if let Some(json) = member.render(values)? {
                        rendered.push(format!("{}:{json}", Value::from(name.as_str())));
                    }
                }
                Some(format!("{{{}}}", rendered.join(",")))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn secrets() -> Secrets {
        Secrets::of([("TOKEN", "12:a/b")])
    }

    fn render(template: &str, arguments: &str, place: TemplatePosition) -> Result<Option<String>, String> {
        let arguments: Arguments = serde_json::from_str(arguments).unwrap();
        Template::parse(template)?.render(&Values { arguments: &arguments, secrets: &secrets() }, place)
    }

    fn body(template: Value, arguments: &str) -> String {
        let arguments: Arguments = serde_json::from_str(arguments).unwrap();
        let values = Values { arguments: &arguments, secrets: &secrets() };
        Body::parse(&template).unwrap().render(&values).unwrap().unwrap()
    }

    #[test]
    fn each_position_has_its_own_encoding() {
        let nasty = r#"{"a":"xy?z#&=;%2e \"q\""}"#;
        let path = Ok(Some("/u/xy%3Fz%23%26%3D%3B%252e%20%22q%22/e".to_owned()));
        assert_eq!(render("/u/{{a}}/e", nasty, TemplatePosition::Path), path);
        let query = r#"{"a":"x/y?z#&=;%2e \"q\""}"#;
        assert_eq!(
            render("{{ a }}", query, TemplatePosition::Query),
            Ok(Some("x%2Fy%3Fz%23%26%3D%3B%252e%20%22q%22".into()))
        );
        assert_eq!(render("Bearer {{a}}", r#"{"a":"é b"}"#, TemplatePosition::Header), Ok(Some("Bearer é b".into())));
        assert_eq!(render("/bot${TOKEN}/x", "{}", TemplatePosition::Path), Ok(Some("/bot12:a%2Fb/x".into())));
    }

    #[test]
    fn path_traversal_and_header_injection_are_rejected() {
        for bad in ["..", ".", "a/../b", "..\\\\x", "", "c7/admin", "c7\\\\admin", "/", "c7%2fadmin", "c7%252Fadmin"]
            .into_iter()
            .chain([
                "c7%5cadmin",
                "%2e%2E",
                "%252e.",
                "..;x",
                ";x",
                "%3bx",
                "c7%00",
                "c7\\n",
                "%25252e",
                "%252525252525252e",
            ])
        {
            assert!(render("/u/{{a}}", &format!(r#"{{"a":"{bad}"}}"#), TemplatePosition::Path).is_err(), "{bad}");
        }
        for good in ["...", "a.b", "c7%", "100%25", "a;b", "%zz", "%", "%c0%af"] {
            assert!(render("/u/{{a}}", &format!(r#"{{"a":"{good}"}}"#), TemplatePosition::Path).is_ok(), "{good}");
        }
        // Two values that are harmless alone form an encoded dot or a separator together.
        for (a, b) in [("%2", "e%2e"), ("%", "2f"), (".", ".")] {
            let both = format!(r#"{{"a":"{a}","b":"{b}"}}"#);
            assert!(render("/x/{{a}}{{b}}", &both, TemplatePosition::Path).is_err(), "{both}");
        }
        let joined = render("/x/{{a}}{{b}}", r#"{"a":"v","b":"1.2"}"#, TemplatePosition::Path);
        assert_eq!(joined, Ok(Some("/x/v1.2".into())));
        for bad in [r"x\r\nEvil: 1", r"x\ny", r"\u0000", r"\u007f"] {
            assert!(render("{{a}}", &format!(r#"{{"a":"{bad}"}}"#), TemplatePosition::Header).is_err(), "{bad}");
        }
        assert!(render("{{a}}", r#"{"a":[[1]]}"#, TemplatePosition::Query).is_err());
    }

    #[test]
    fn an_argument_is_never_expanded_as_a_reference() {
        let text = render("{{a}}", r#"{"a":"${TOKEN} {{a}}"}"#, TemplatePosition::Text);
        assert_eq!(text, Ok(Some("${TOKEN} {{a}}".into())));
    }

    #[test]
    fn numbers_lists_and_absent_arguments_render_as_documented() {
        let arguments = r#"{"n":123456789012345678901,"b":true,"l":[1,"a b",null],"z":null}"#;
        assert_eq!(
            render("{{n}}-{{b}}", arguments, TemplatePosition::Query),
            Ok(Some("123456789012345678901-true".into()))
        );
        assert_eq!(render("{{l}}", arguments, TemplatePosition::Query), Ok(Some("1%2Ca%20b".into())));
        assert_eq!(render("{{z}}", arguments, TemplatePosition::Query), Ok(None));
        assert_eq!(render("x{{none}}", arguments, TemplatePosition::Query), Ok(None));
    }

    #[test]
    fn a_body_keeps_value_types_and_omits_absent_members() {
        let template = json!({"id": "{{n}}", "text": "Hi {{name}}", "cc": "{{cc}}", "tags": ["{{tag}}", "x"], "v": 1});
        let arguments = r#"{"n":123456789012345678901,"name":"\"Bo\"\n","tag":{"k":[1]}}"#;
        let expected = r#"{"id":123456789012345678901,"text":"Hi \"Bo\"\n","tags":[{"k":[1]},"x"],"v":1}"#;
        assert_eq!(body(template, arguments), expected);
        assert_eq!(body(json!("{{n}}"), r#"{"n":null}"#), "null");
    }

    #[test]
    fn a_template_with_a_malformed_reference_fails_to_parse() {
        for bad in ["{{a", "${A", "{{}}", "{{a b}}", "${A:-b}", "{{a}"] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
        assert!(Body::parse(&json!({"{{a}}": 1})).is_err());
    }

    proptest! {
        #[test]
        fn no_argument_escapes_its_position(text in "\\PC{0,40}|[\\x00-\\x7f]{0,20}") {
            let arguments = json!({"a": text}).to_string();
            let inert = |s: &str| s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~%".contains(&b));
            for place in [TemplatePosition::Path, TemplatePosition::Query] {
                if let Ok(Some(rendered)) = render("{{a}}", &arguments, place) {
                    prop_assert!(inert(&rendered));
                }
            }
            if let Ok(Some(rendered)) = render("{{a}}", &arguments, TemplatePosition::Header) {
                prop_assert!(!rendered.contains(['\r', '\n', '\0']));
            }
            let parsed: Value = serde_json::from_str(&body(json!({"x": "<{{a}}>"}), &arguments)).unwrap();
            prop_assert_eq!(parsed, json!({"x": format!("<{text}>")}));
        }
    }
}
