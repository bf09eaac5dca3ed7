//! Environment variables: one for each setting, and `${NAME:-default}` in texts.

use std::collections::BTreeMap;

use crate::document::errors::{ConfigLocation, Errors};
use crate::document::reader::Cursor;
use crate::document::tree::{Node, Value, join};
use tickfleet_model::suggest;

pub type Environment = BTreeMap<String, String>;

const PREFIX: &str = "TICKFLEET_";

const SHORT_NAMES: [(&str, &str); 3] = [
    ("REDIS_URL", "redis.url"),
    ("MAX_ACTIONS_PER_DAY", "caps.max_actions_per_day"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "tracing.otlp_endpoint"),
];

/// Variables that are not settings. Other code reads this variable: the path of the binary for a private Redis.
const NOT_SETTINGS: [&str; 1] = ["TICKFLEET_REDIS_SERVER"];

/// `worker.slots` becomes `TICKFLEET_WORKER_SLOTS`.
fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "_").to_ascii_uppercase())
}

fn settings(built_in: &Node) -> Vec<String> {
    let sections = built_in.entries().iter();
    sections.flat_map(|s| s.node.entries().iter().map(move |field| join(&s.key, &field.key))).collect()
}

/// An empty variable counts as unset.
pub(crate) fn apply_environment(tree: &mut Node, built_in: &Node, environment: &Environment, errors: &Errors) {
    let settings = settings(built_in);
    for path in &settings {
        let long = variable(path);
        let short = SHORT_NAMES.iter().find(|(_, of)| of == path).map(|(name, _)| *name);
        let given = |name: &str| environment.get(name).filter(|text| !text.trim().is_empty()).cloned();
        let (name, text) = match (given(&long), short.and_then(|name| Some((name, given(name)?)))) {
            (Some(text), Some((short, other))) => {
                if text != other {
                    let place = ConfigLocation::Environment(long.as_str().into());
                    let found = format!("another value than in {short}");
                    errors.push(&place, path, found, "one of the two variables, or the same value in both");
                }
                (long, text)
            }
            (Some(text), None) => (long, text),
            (None, Some((short, text))) => (short.to_owned(), text),
            (None, None) => continue,
        };
        set(tree, built_in, path, &name, text);
    }
    refuse_unknown(&settings, built_in, environment, errors);
}

fn set(tree: &mut Node, built_in: &Node, path: &str, name: &str, text: String) {
    let place = ConfigLocation::Environment(name.into());
    let is_list = path.split('.').try_fold(built_in, |node, field| node.get(field));
    let is_list = is_list.is_some_and(|setting| matches!(setting.value, Value::List(_)));
    let value = if is_list {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        Value::List(items.map(|item| Node { value: Value::Text(item.into()), place: place.clone() }).collect())
    } else {
        Value::Text(text.trim().to_owned())
    };
    if let Some(setting) = path.split('.').try_fold(tree, |node, field| node.get_mut(field)) {
        *setting = Node { value, place };
    }
}

/// An unknown variable is an error. Otherwise, a cap with a misspelled name would have no effect.
fn refuse_unknown(settings: &[String], built_in: &Node, environment: &Environment, errors: &Errors) {
    let known: Vec<String> = settings.iter().map(|path| variable(path)).collect();
    let sections: Vec<String> = built_in.entries().iter().map(|s| format!("{}_", variable(&s.key))).collect();
    for name in environment.keys().filter(|name| name.starts_with(PREFIX)) {
        if known.contains(name) || NOT_SETTINGS.contains(&name.as_str()) || is_service_link(name) {
            continue;
        }
        let meant = suggest::closest(name, known.iter().map(String::as_str));
        if let Some(section) = sections.iter().find(|section| name.starts_with(section.as_str())) {
            let fields = known.iter().filter(|known| known.starts_with(section.as_str()));
            let expected = format!("one of {}", suggest::list(fields.map(String::as_str)));
            errors.suggest(
                &ConfigLocation::Environment(name.as_str().into()),
                "",
                "an unknown setting",
                expected,
                meant,
            );
        } else if meant.is_some() {
            let place = ConfigLocation::Environment(name.as_str().into());
            errors.suggest(&place, "", "an unknown setting", "TICKFLEET_<SECTION>_<FIELD>", meant);
        }
    }
}

/// Kubernetes adds these variables to every pod. A service `tickfleet-worker` causes `TICKFLEET_WORKER_SERVICE_HOST`
/// and `TICKFLEET_WORKER_PORT_9090_TCP_ADDR`.
fn is_service_link(name: &str) -> bool {
    name.ends_with("_PORT")
        || name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.split_once("_PORT_").is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// An empty variable counts as unset. An unset variable without a default is an error.
pub(crate) fn expand(cursor: &Cursor<'_>, environment: &Environment) -> Option<String> {
    let mut rest = cursor.text()?;
    let mut expanded = String::with_capacity(rest.len());
    while let Some((before, after)) = rest.split_once("${") {
        let Some((reference, after)) = after.split_once('}') else {
            cursor.refuse("a `}` after every `${`");
            return None;
        };
        let (name, default) = reference.split_once(":-").map_or((reference, None), |(n, d)| (n, Some(d)));
        let value = environment.get(name).map(String::as_str).filter(|value| !value.is_empty()).or(default);
        let Some(value) = value else {
            cursor.refuse(format!("the environment variable {name} to be set, or a default: ${{{name}:-…}}"));
            return None;
        };
        expanded.push_str(before);
        expanded.push_str(value);
        rest = after;
    }
    expanded.push_str(rest);
    Some(expanded)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
    use super::*;
    use crate::document::yaml::{Origin, parse};

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    fn expanded(text: &str, pairs: &[(&str, &str)]) -> Option<String> {
        let errors = Errors::default();
        let node = parse(&format!("{text:?}"), Origin::File("a.yaml"), &errors).unwrap();
        let result = expand(&Cursor { node: &node, path: "a".into(), errors: &errors }, &environment(pairs));
        assert_eq!(result.is_none(), errors.len() == 1);
        result
    }

    #[test]
    fn references_are_replaced_or_take_their_default() {
        assert_eq!(expanded("${A:-https://a}/x", &[]).as_deref(), Some("https://a/x"));
        assert_eq!(expanded("${A:-https://a}/x", &[("A", "http://b")]).as_deref(), Some("http://b/x"));
        assert_eq!(expanded("${A:-x}", &[("A", "")]).as_deref(), Some("x"));
        assert_eq!(expanded("${A:-}", &[]).as_deref(), Some(""));
        assert_eq!(expanded("${A}${B}", &[("A", "1"), ("B", "${A}")]).as_deref(), Some("1${A}"));
        assert_eq!(expanded("${A}", &[]), None);
        assert_eq!(expanded("${A", &[("A", "1")]), None);
    }

    #[test]
    fn kubernetes_service_variables_are_recognized() {
        for name in [
            "TICKFLEET_WORKER_SERVICE_HOST",
            "TICKFLEET_WORKER_SERVICE_PORT_HTTP",
            "TICKFLEET_WORKER_PORT",
            "TICKFLEET_HTTP_PORT_9090_TCP_ADDR",
        ] {
            assert!(is_service_link(name), "{name}");
        }
        assert!(!is_service_link("TICKFLEET_WORKER_SLOTS"));
    }
}
