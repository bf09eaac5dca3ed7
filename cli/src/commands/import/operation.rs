//! Converts one operation of an OpenAPI document into one tool.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::schema::Document;
use super::security::{self, SecretNaming};

/// Models read all descriptions with every request, so descriptions must be short.
const DESCRIPTION_BYTES_MAX: usize = 1_024;
/// OpenAPI excludes these from parameters, or the connection sets them.
const HEADERS_IGNORED: [&str; 3] = ["accept", "content-type", "authorization"];
/// If a body schema has only these keywords, the properties of the body can be arguments of the tool.
const PLAIN_BODY: [&str; 6] = ["type", "properties", "required", "title", "description", "additionalProperties"];

pub(super) struct Operation<'d> {
    pub(super) document: &'d Document,
    pub(super) method: &'d str,
    pub(super) path: &'d str,
    pub(super) item: &'d Value,
    pub(super) operation: &'d Value,
}

pub(super) struct ImportedTool {
    pub(super) tool: Value,
    pub(super) notes: Vec<String>,
}

#[derive(Default)]
struct Arguments {
    properties: Map<String, Value>,
    required: BTreeSet<String>,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Option<Value>,
    notes: Vec<String>,
}

impl Operation<'_> {
    pub(super) fn name(&self) -> String {
        let given = self.operation.get("operationId").and_then(Value::as_str);
        let name = given.map_or_else(|| format!("{}_{}", self.method, self.path), str::to_owned);
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') { c } else { '_' };
        let name: String = name.replace(['{', '}'], "").chars().map(plain).collect();
        let parts: Vec<&str> = name.split('_').filter(|part| !part.is_empty()).collect();
        parts.join("_")
    }

    pub(super) fn import(
        &self,
        server: &str,
        naming: &SecretNaming,
        allow_private: &[String],
    ) -> Result<ImportedTool, String> {
        let (method, effect) = match self.method {
            "get" => ("GET", "read"),
            "put" => ("PUT", "idempotent"),
            "delete" => ("DELETE", "idempotent"),
            "post" => ("POST", "once"),
            "patch" => ("PATCH", "once"),
            other => return Err(format!("{} has no response that a tool could return", other.to_uppercase())),
        };
        let mut arguments = self.arguments()?;
        let mut signing = security::signing(self.document, self.operation, naming)?;
        arguments.headers.append(&mut signing.headers);
        arguments.query.append(&mut signing.query);
        let mut schema = json!({ "type": "object", "properties": arguments.properties, "additionalProperties": false });
        if !arguments.required.is_empty() {
            schema["required"] = json!(arguments.required);
        }
        let mut http = json!({ "method": method, "base_url": server, "path": arguments.path });
        let parts = [
            ("query", json!(arguments.query)),
            ("headers", json!(arguments.headers)),
            ("secrets", json!(signing.secrets)),
            ("allow_private", json!(allow_private)),
            ("body", arguments.body.unwrap_or_default()),
            ("oauth2", signing.oauth2.unwrap_or_default()),
        ];
        for (name, part) in parts {
            let nothing = part.is_null() || name != "body" && (part == json!({}) || part == json!([]));
            if !nothing {
                http[name] = part;
            }
        }
        let tool = json!({ "description": self.description(), "effect": effect, "input_schema": schema, "http": http });
        arguments.notes.append(&mut signing.notes);
        Ok(ImportedTool { tool, notes: arguments.notes })
    }

    fn description(&self) -> String {
        let text = |key: &str| self.operation.get(key).and_then(Value::as_str).map(str::trim).unwrap_or_default();
        let summary = text("summary");
        let description = text("description");
        let mut text = match (summary.is_empty(), description.is_empty()) {
            (true, true) => format!("{} {}", self.method.to_uppercase(), self.path),
            (false, false) if !description.starts_with(summary) => {
                format!("{}. {description}", summary.trim_end_matches('.'))
            }
            (_, false) => description.to_owned(),
            (false, true) => summary.to_owned(),
        };
        if text.len() > DESCRIPTION_BYTES_MAX {
            let mut end = DESCRIPTION_BYTES_MAX - '…'.len_utf8();
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.push('…');
        }
        text
    }

    fn arguments(&self) -> Result<Arguments, String> {
        if self.path.contains(['?', '#']) {
            return Err("its path has a query".to_owned());
        }
        let mut arguments = Arguments { path: self.path.to_owned(), ..Arguments::default() };
        for parameter in self.parameters()? {
            let text = |key: &str| parameter.get(key).and_then(Value::as_str).unwrap_or_default();
            let name = text("name");
            let place = text("in");
            let required = place == "path" || parameter.get("required") == Some(&Value::Bool(true));
            // Even an optional parameter needs a readable schema: without it, the call could have another effect.
            if let Some(schema) = parameter.get("schema")
                && let Err(reason) = self.document.inlined(schema)
            {
                return Err(format!("its {place} parameter {name} cannot be read: {reason}"));
            }
            match self.parameter(&mut arguments, parameter, name, place, required) {
                // Without this parameter, the call could affect more than intended, so the operation is left out.
                Err(reason) if required || self.method != "get" => {
                    return Err(format!("its {place} parameter {name} {reason}"));
                }
                Err(reason) => arguments.notes.push(format!("without the {place} parameter {name}, which {reason}")),
                Ok(()) => {}
            }
        }
        let left = arguments.path.replace("{{", "").replace("}}", "");
        if left.contains(['{', '}']) {
            return Err("its path names a parameter that is not declared".to_owned());
        }
        self.body(&mut arguments)?;
        Ok(arguments)
    }

    /// Parameters of the operation override those of its path.
    fn parameters(&self) -> Result<Vec<&Value>, String> {
        let mut found: Vec<&Value> = Vec::new();
        for holder in [self.operation, self.item] {
            let Some(parameters) = holder.get("parameters") else { continue };
            let parameters = parameters.as_array().ok_or("its parameters are not a list")?;
            for parameter in parameters {
                let parameter = self.document.follow(parameter)?;
                if ["name", "in"].iter().any(|key| !parameter.get(*key).is_some_and(Value::is_string)) {
                    return Err("one of its parameters has no name, or no place (`in`)".to_owned());
                }
                let same = |other: &&Value| ["name", "in"].iter().all(|key| other.get(*key) == parameter.get(*key));
                if !found.iter().any(same) {
                    found.push(parameter);
                }
            }
        }
        Ok(found)
    }

    fn parameter(
        &self,
        arguments: &mut Arguments,
        parameter: &Value,
        name: &str,
        place: &str,
        required: bool,
    ) -> Result<(), String> {
        if place == "header" && HEADERS_IGNORED.contains(&name.to_ascii_lowercase().as_str()) {
            return Ok(());
        }
        if !matches!(place, "path" | "query" | "header") {
            return Err("is in a cookie".to_owned());
        }
        let schema = parameter.get("schema").ok_or("has no schema of its own")?;
        let mut schema = self.document.inlined(schema)?;
        let repeats = place == "query" && parameter.get("explode") != Some(&Value::Bool(false));
        match schema.get("type").and_then(Value::as_str) {
            Some("object") => return Err("is an object".to_owned()),
            Some("array") if repeats => {
                schema = schema.get("items").cloned().unwrap_or_else(|| json!({}));
                arguments.notes.push(format!("takes one value of the list {name} at a time"));
            }
            _ => {}
        }
        describe(&mut schema, parameter.get("description"));
        let argument = arguments.name(name, place)?;
        let template = format!("{{{{{argument}}}}}");
        match place {
            "path" => {
                let written = format!("{{{name}}}");
                if !arguments.path.contains(&written) {
                    return Err("is not in the path".to_owned());
                }
                arguments.path = arguments.path.replace(&written, &template);
            }
            "query" => drop(arguments.query.insert(name.to_owned(), template)),
            _ => drop(arguments.headers.insert(name.to_owned(), template)),
        }
        arguments.add(argument, schema, required);
        Ok(())
    }

    fn body(&self, arguments: &mut Arguments) -> Result<(), String> {
        let Some(body) = self.operation.get("requestBody") else { return Ok(()) };
        let body = self.document.follow(body)?;
        let required = body.get("required") == Some(&Value::Bool(true));
        if self.method == "get" {
            return if required { Err("it is a GET with a body".to_owned()) } else { Ok(()) };
        }
        let content = body.get("content").and_then(Value::as_object);
        let json = |kind: &str| {
            let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            kind == "application/json" || kind == "*/*"
        };
        let media = content.into_iter().flatten().find(|(kind, _)| json(kind));
        let Some((_, media)) = media else {
            let kinds: Vec<&str> = content.into_iter().flatten().map(|(kind, _)| kind.as_str()).collect();
            return Err(format!("its body is not JSON but {}", kinds.join(", ")));
        };
        let mut schema = self.document.inlined(media.get("schema").unwrap_or(&json!({})))?;
        let needs = schema.get("required").and_then(Value::as_array).is_some_and(|names| !names.is_empty());
        if is_plain(&schema) && (required || !needs) && arguments.fits(&schema) {
            let properties = schema["properties"].as_object().cloned().unwrap_or_default();
            let needed: Vec<Value> = schema["required"].as_array().cloned().unwrap_or_default();
            let members = properties.keys().map(|name| (name.clone(), format!("{{{{{name}}}}}").into()));
            arguments.body = Some(Value::Object(members.collect()));
            for (name, property) in properties {
                let required = needed.iter().any(|needed| *needed == name);
                arguments.add(name, property, required);
            }
            return Ok(());
        }
        describe(&mut schema, body.get("description"));
        let name = arguments.name("body", "json")?;
        arguments.body = Some(format!("{{{{{name}}}}}").into());
        arguments.add(name, schema, required);
        Ok(())
    }
}

impl Arguments {
    fn add(&mut self, name: String, schema: Value, required: bool) {
        if required {
            self.required.insert(name.clone());
        }
        self.properties.insert(name, schema);
    }

    /// Returns a name that templates can use and that no other argument has.
    fn name(&self, name: &str, place: &str) -> Result<String, String> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' };
        let plain: String = name.chars().map(plain).collect();
        let plain = plain.trim_matches('_').to_owned();
        let other = format!("{plain}_{place}");
        let free = [plain.clone(), other].into_iter().find(|name| !self.properties.contains_key(name));
        free.filter(|_| !plain.is_empty()).ok_or_else(|| "has a name that another parameter uses".to_owned())
    }

    /// The properties of the body must be valid argument names that no other argument has.
    fn fits(&self, schema: &Value) -> bool {
        let mut names = schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name);
        names.all(|name| !self.properties.contains_key(name) && self.name(name, "").is_ok_and(|plain| plain == *name))
    }
}

fn is_plain(schema: &Value) -> bool {
    let Some(members) = schema.as_object() else { return false };
    let closed = members.get("additionalProperties").is_none_or(|more| *more == Value::Bool(false));
    let properties = members.get("properties").and_then(Value::as_object).is_some_and(|p| !p.is_empty());
    let object = members.get("type").and_then(Value::as_str) == Some("object");
    object && closed && properties && members.keys().all(|key| PLAIN_BODY.contains(&key.as_str()))
}

fn describe(schema: &mut Value, description: Option<&Value>) {
    if let (Value::Object(members), Some(Value::String(text))) = (schema, description) {
        members.entry("description").or_insert_with(|| text.as_str().into());
    }
}
