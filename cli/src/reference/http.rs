//! `docs/reference/http-api.md`: the routes of the gateway, from the gateway's OpenAPI document.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::{Map, Value};

use super::{anchor, cell, keep_current, sentence};

const TAGS: [(&str, &str); 4] =
    [("turns", "Turns"), ("tasks", "Tasks"), ("agents", "Agents"), ("operators", "Operator routes")];

const EVERYWHERE: [(&str, &str); 6] = [
    ("401", "The API key or token is missing, invalid or expired."),
    ("403", "The key or token lacks the permission, or belongs to another tenant."),
    ("413", "The body is too large."),
    ("429", "A queue is full or a rate is exceeded. Retry after `Retry-After` seconds."),
    ("500", "Stored data is damaged (`damaged`), or an internal error (`internal`)."),
    ("503", "Redis or the identity provider is unavailable. Retry after `Retry-After` seconds."),
];

const HEAD: &str = "\
`GET /v1/openapi.json` and `tickfleet gateway openapi` return this API as an OpenAPI document. \
[Gateways and keys](../operate/gateways.md) explains how to run a gateway.

Send the API key or token in the header `Authorization: Bearer KEY`. The optional header `Tickfleet-Tenant` names the \
tenant; the gateway rejects a key of another tenant with 403.

```sh
curl -H 'Authorization: Bearer tfk_…' 'http://127.0.0.1:8080/v1/turns?wait=30' \\
  -d '{\"agent\":\"kelly\",\"calls\":[{\"name\":\"echo\",\"arguments\":{\"text\":\"hi\"}}]}'
```
";

#[test]
fn the_page_of_the_http_api_is_current() {
    let document = tickfleet_gateway::openapi();
    let permissions = permissions();
    let paths = document["paths"].as_object().unwrap();
    let mut routes: Vec<Route<'_>> = Vec::new();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            let method = method.to_uppercase();
            let stated = operation["x-permission"].as_str();
            let permission = stated.unwrap_or_else(|| permissions.get(&format!("{method} {path}")).unwrap());
            routes.push(Route { method, path, permission, operation });
        }
    }
    let mut page = HEAD.to_owned();
    for (tag, heading) in TAGS {
        write!(page, "\n## {heading}\n\n| Route | Permission | Purpose |\n|---|---|---|\n").unwrap();
        for route in routes.iter().filter(|route| route.operation["tags"][0] == tag) {
            let title = route.title();
            let summary = cell(text(&route.operation["summary"]));
            writeln!(
                page,
                "| [`{title}`](#{}) | {} | {summary} |",
                anchor(&title),
                if route.permission.is_empty() { "any".to_owned() } else { code(route.permission) }
            )
            .unwrap();
        }
    }
    page.push_str("\n## Errors\n\nA response that is not a success has the body `{\"error\": {\"code\", \"message\"}}`. Every route may return:\n\n| Status | Meaning |\n|---|---|\n");
    for (status, meaning) in EVERYWHERE {
        writeln!(page, "| {status} | {meaning} |").unwrap();
    }
    let described = document["components"]["schemas"].as_object().unwrap();
    for (tag, heading) in TAGS {
        write!(page, "\n## {heading} in detail\n").unwrap();
        for route in routes.iter().filter(|route| route.operation["tags"][0] == tag) {
            page.push_str(&route.section(described));
        }
    }
    page.push_str(&schemas(described));
    keep_current("http-api.md", "HTTP API", &page);
}

struct Route<'a> {
    method: String,
    path: &'a str,
    permission: &'a str,
    operation: &'a Value,
}

impl Route<'_> {
    fn title(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    fn section(&self, schemas: &Map<String, Value>) -> String {
        let operation = self.operation;
        let mut section = format!("\n### `{}`\n\n{}\n", self.title(), prose(&operation["summary"]));
        if operation["description"].is_string() {
            write!(section, "\n{}\n", prose(&operation["description"])).unwrap();
        }
        let permission =
            if self.permission.is_empty() { "any valid key or token".to_owned() } else { code(self.permission) };
        write!(section, "\n- Permission: {permission}\n").unwrap();
        if let Some(body) = schema_of(&operation["requestBody"], schemas) {
            writeln!(section, "- Request body: {body}").unwrap();
        }
        for (status, response) in operation["responses"].as_object().unwrap() {
            if EVERYWHERE.iter().any(|(known, _)| known == status) {
                continue;
            }
            let body = schema_of(response, schemas).filter(|body| !body.contains("ProblemBody"));
            let body = body.map(|body| format!(" {body}")).unwrap_or_default();
            writeln!(section, "- {status}: {}{body}", prose(&response["description"])).unwrap();
        }
        let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !parameters.is_empty() {
            section.push_str("\n| Parameter | In | Type | Description |\n|---|---|---|---|\n");
        }
        for parameter in parameters {
            let required = if parameter["required"] == true { ", required" } else { "" };
            writeln!(
                section,
                "| `{}` | {} | {}{required} | {} |",
                text(&parameter["name"]),
                text(&parameter["in"]),
                kind(&parameter["schema"]),
                cell(text(&parameter["description"]))
            )
            .unwrap();
        }
        section
    }
}

fn schemas(schemas: &Map<String, Value>) -> String {
    let mut page = "\n## Schemas\n".to_owned();
    for (name, schema) in schemas {
        let Some(fields) = schema["properties"].as_object() else { continue };
        let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        write!(
            page,
            "\n### {name}\n\n{}\n\n| Field | Type | Description |\n|---|---|---|\n",
            prose(&schema["description"])
        )
        .unwrap();
        for (field, schema) in fields {
            let need = if required.iter().any(|known| known == field) { ", required" } else { "" };
            writeln!(page, "| `{field}` | {}{need} | {} |", kind(schema), cell(text(&schema["description"]))).unwrap();
        }
    }
    page
}

fn permissions() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("gateway/src")];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            waiting.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = std::fs::read_to_string(path).unwrap();
            for (at, start) in source.match_indices("#[utoipa::path(") {
                let rest = &source[at + start.len()..];
                let method = rest.split(',').next().unwrap().to_uppercase();
                let path = rest.split('"').nth(1).unwrap();
                // A handler without its own check calls a helper further down in the source. The next check is then the
                // helper's.
                let checked = rest.split("require_permission(Verb::").nth(1).and_then(|verb| verb.split(')').next());
                found.insert(format!("{method} {path}"), checked.unwrap_or_default().to_lowercase());
            }
        }
    }
    found
}

/// Only objects have a heading.
fn schema_of(part: &Value, schemas: &Map<String, Value>) -> Option<String> {
    let (content_type, content) = part["content"].as_object()?.iter().next()?;
    let schema = &content["schema"];
    if content_type == "text/event-stream" {
        return Some("Server-sent events.".into());
    }
    let name = text(&schema["$ref"]).rsplit('/').next().unwrap_or_default();
    let is_described = |name: &str| schemas.get(name).is_some_and(|schema| schema["properties"].is_object());
    if is_described(name) {
        return Some(format!("[{name}](#{}).", anchor(name)));
    }
    let item = text(&schemas.get(name)?["items"]["$ref"]).rsplit('/').next().unwrap_or_default();
    is_described(item).then(|| format!("A list of [{item}](#{}).", anchor(item)))
}

fn kind(schema: &Value) -> String {
    if let Some(name) = text(&schema["$ref"]).rsplit('/').next().filter(|name| !name.is_empty()) {
        return format!("[{name}](#{})", anchor(name));
    }
    if let Some(one) = schema["oneOf"].as_array().or_else(|| schema["allOf"].as_array()) {
        let parts: Vec<String> = one.iter().filter(|part| part["type"] != "null").map(kind).collect();
        return parts.join(" or ");
    }
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words.iter().filter(|word| !word.is_null()).map(|word| code(text(word))).collect();
        return words.join(", ");
    }
    let name = match &schema["type"] {
        Value::String(name) => name.as_str(),
        Value::Array(names) => names.iter().map(text).find(|name| *name != "null").unwrap_or("any"),
        _ => "any",
    };
    let bounds = match (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
        (Some(least), Some(most)) => format!(" {least}–{most}"),
        _ => String::new(),
    };
    if name == "array" { format!("array of {}", kind(&schema["items"])) } else { format!("{name}{bounds}") }
}

fn prose(value: &Value) -> String {
    sentence(&text(value).split_whitespace().collect::<Vec<_>>().join(" "))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn code(word: &str) -> String {
    if word.is_empty() { String::new() } else { format!("`{word}`") }
}
