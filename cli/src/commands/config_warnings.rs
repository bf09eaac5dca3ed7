//! Warnings of `config check` about missing secrets, and about arguments that can be a number or a text.

use std::collections::BTreeSet;

use serde_json::Value;
use tickfleet_config::Configuration;
use tickfleet_config::tools::{SecretRef, TENANT, ToolDef, ToolRunner};
use tickfleet_model::limit::{LimitBound, fits};
use tickfleet_tools::Environment;

/// A file of the configuration, a field, and the warning.
pub(super) type ConfigWarning = (&'static str, String, String);

pub(super) fn missing_secrets(configuration: &Configuration, environment: &Environment) -> Vec<ConfigWarning> {
    let mut found = Vec::new();
    let mut look = |file: &'static str, field: String, secret: &SecretRef| {
        let what = match secret {
            SecretRef::Env(name) if !name.contains(TENANT) && environment.get(name).is_none() => {
                format!("the variable {name} is not set here")
            }
            SecretRef::File(path) if !path.contains(TENANT) && !std::path::Path::new(path).exists() => {
                format!("the file {path} is not here")
            }
            SecretRef::Env(_) | SecretRef::File(_) => return,
        };
        found.push((file, field, format!("{what}: if a worker lacks the secret too, calls end as not_configured")));
    };
    // The secrets of the sample business are optional, so they cause no warnings.
    let own_tools =
        if configuration.samples().contains(&"tools.yaml") { None } else { Some(&configuration.tools.tools) };
    for (tool, def) in own_tools.into_iter().flatten() {
        let secrets = match &def.runner {
            Some(ToolRunner::Http(http)) => &http.secrets,
            Some(ToolRunner::Shell(_) | ToolRunner::Local(_)) | None => continue,
        };
        for (name, secret) in secrets {
            look("tools.yaml", format!("tools.{tool}.http.secrets.{name}"), secret);
        }
    }
    for (server, def) in &configuration.mcp.servers {
        for (name, secret) in &def.connection.secrets {
            look("mcp.yaml", format!("servers.{server}.secrets.{name}"), secret);
        }
    }
    found
}

/// Finds arguments that can be a number or a text. As effect keys, `5` and `"5"` name different effects. Sums and
/// comparisons fail for texts.
pub(super) fn arguments_of_two_types(configuration: &Configuration) -> Vec<ConfigWarning> {
    let mut found = Vec::new();
    let policy = &configuration.policy;
    for (tool, def) in &configuration.tools.tools {
        let mut warn = |file: &'static str, field: String, pointer: &str, why: &str| {
            if is_of_two_types(def, pointer) {
                let what = format!("{pointer} of {tool} may be a number or a text, and {why}: declare one type");
                found.push((file, field, what));
            }
        };
        for pointer in def.effect_key.iter().flat_map(|key| &key.arguments) {
            warn(
                "tools.yaml",
                format!("tools.{tool}.effect_key"),
                pointer,
                "5 and \"5\" count as two different effects",
            );
        }
        for limit in policy.limits.iter() {
            let is_counted = limit.matches.tools.is_empty() || limit.matches.tools.iter().any(|one| fits(one, tool));
            if let (LimitBound::Sum { argument, .. }, true) = (&limit.bound, is_counted) {
                warn("limits.yaml", format!("limits.{}.sum.argument", limit.name), argument, "a text cannot be summed");
            }
        }
        let rules = policy.permissions.matrix.get(tool).into_iter().flat_map(|row| row.rules.iter().enumerate());
        for (at, rule) in rules {
            let pointers: BTreeSet<String> =
                rule.when.iter().chain([&rule.require]).flat_map(|text| arguments_of(text)).collect();
            for pointer in pointers {
                let field = format!("permissions.{tool}.rules[{at}]");
                warn("permissions.yaml", field, &pointer, "a rule compares the value by its type");
            }
        }
    }
    found
}

fn arguments_of(rule: &str) -> Vec<String> {
    let path =
        |rest: &str| -> String { rest.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '.')).collect() };
    let named = rule.split("args.").skip(1).map(path).filter(|path| !path.is_empty());
    named.map(|path| format!("/{}", path.trim_end_matches('.').replace('.', "/"))).collect()
}

fn is_of_two_types(tool: &ToolDef, pointer: &str) -> bool {
    let mut schema = tool.input_schema.as_ref();
    for name in pointer.split('/').skip(1) {
        let name = name.replace("~1", "/").replace("~0", "~");
        schema = schema.and_then(|schema| schema.get("properties")?.get(&name));
    }
    let Some(schema) = schema else { return false };
    let mut types = BTreeSet::new();
    types_of(schema, &mut types);
    types.contains("string") && (types.contains("number") || types.contains("integer"))
}

fn types_of<'a>(schema: &'a Value, types: &mut BTreeSet<&'a str>) {
    match schema.get("type") {
        Some(Value::String(one)) => drop(types.insert(one)),
        Some(Value::Array(all)) => types.extend(all.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for word in ["anyOf", "oneOf"] {
        schema.get(word).and_then(Value::as_array).into_iter().flatten().for_each(|one| types_of(one, types));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    #[test]
    fn an_argument_of_two_types_is_detected_in_every_schema_form() {
        let of = |amount: Value| -> ToolDef {
            let schema = json!({"type": "object", "properties": {"amount": amount, "to": {"properties": {"id": {"type": ["integer", "string"]}}}}});
            serde_json::from_value(json!({"description": "Pays.", "input_schema": schema})).unwrap()
        };
        for two in [json!({"type": ["number", "string"]}), json!({"anyOf": [{"type": "string"}, {"type": "integer"}]})]
        {
            assert!(is_of_two_types(&of(two.clone()), "/amount"), "{two}");
        }
        for one in [json!({"type": "number"}), json!({"type": ["string", "null"]}), json!({})] {
            assert!(!is_of_two_types(&of(one.clone()), "/amount"), "{one}");
        }
        assert!(is_of_two_types(&of(json!({})), "/to/id") && !is_of_two_types(&of(json!({})), "/none"));
        assert_eq!(arguments_of("args.amount <= 5 && args.to.id == session.args.x"), ["/amount", "/to/id", "/x"]);
    }
}
