//! Checks each field of a declaration, and the references in its templates.

use std::collections::BTreeMap;

use reqwest::header::{self, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_config::tools::{HttpDef, SecretRef};
use tickfleet_model::Effect;
use tickfleet_tools::{DeclarationError, Environment};

use super::error::field;
use super::mapping::Mapping;
use super::outcome::OutcomeRules;
use super::template::Template;

const RESPONSE_BYTES_MAX_DEFAULT: usize = 1024 * 1024;
/// All slots of a worker can hold a response at the same time, so the size is limited.
const RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// With these headers, a template could smuggle in a second request or remove a limit on the response.
const HEADERS_REFUSED: [HeaderName; 8] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::ACCEPT_ENCODING,
    header::EXPECT,
];

/// `None` if a default expands to an empty text: each call must then contain the argument.
pub(super) type Defaults = Vec<(String, Option<Box<RawValue>>)>;

pub(super) struct References<'a> {
    pub(super) schema: &'a Value,
    pub(super) secrets: &'a BTreeMap<String, SecretRef>,
}

impl References<'_> {
    pub(super) fn check(&self, place: &str, template: &Template) -> Result<(), DeclarationError> {
        let declared = |name: &str| self.schema.get("properties").is_some_and(|p| p.get(name).is_some());
        if let Some(name) = template.arguments().find(|name| !declared(name)) {
            return Err(field(place)(format!("'{{{{{name}}}}}' is not in the input schema's properties")));
        }
        if let Some(name) = template.secrets().find(|name| !self.secrets.contains_key(*name)) {
            return Err(field(place)(format!("'${{{name}}}' is not in http.secrets")));
        }
        Ok(())
    }

    pub(super) fn optional(&self, name: &str) -> Result<(), String> {
        if self.schema.get("properties").is_none_or(|properties| properties.get(name).is_none()) {
            return Err(format!("'{name}' is not in the input schema's properties"));
        }
        let list = self.schema.get("required").and_then(Value::as_array);
        match list.is_some_and(|list| list.iter().any(|required| required.as_str() == Some(name))) {
            true => Err(format!("'{name}' is required, so no call leaves it out")),
            false => Ok(()),
        }
    }

    pub(super) fn required(&self, template: &Template) -> Result<(), String> {
        let list = self.schema.get("required").and_then(Value::as_array);
        let required = |name: &str| list.is_some_and(|list| list.iter().any(|r| r.as_str() == Some(name)));
        match template.arguments().find(|name| !required(name)) {
            Some(name) => Err(format!("'{{{{{name}}}}}' must be a required argument")),
            None => Ok(()),
        }
    }
}

pub(super) fn method(def: &HttpDef) -> Result<Method, String> {
    let method = match def.method.as_str() {
        "GET" => Method::GET,
        "POST" => Method::POST,
        "PUT" => Method::PUT,
        "PATCH" => Method::PATCH,
        "DELETE" => Method::DELETE,
        other => return Err(format!("'{other}' is not one of GET, POST, PUT, PATCH, DELETE")),
    };
    if method == Method::GET && def.body.is_some() {
        return Err("GET carries no body".to_owned());
    }
    Ok(method)
}

pub(super) fn base_url(text: &str) -> Result<Url, String> {
    if text.contains("{{") {
        return Err("an argument must not choose the host".to_owned());
    }
    let url = Url::parse(text).map_err(|e| e.to_string())?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("it ends with a path; parameters belong in `query`".to_owned());
    }
    Ok(url)
}

pub(super) fn path(text: &str) -> Result<Template, String> {
    if !text.starts_with('/') {
        return Err("it must begin with '/'".to_owned());
    }
    if text.contains(['?', '#', '\\']) || text.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err("it must not contain '?', '#', '\\' or the segments '.' and '..'".to_owned());
    }
    Template::parse(text)
}

pub(super) fn defaults(def: &HttpDef, environment: &Environment) -> Result<Defaults, DeclarationError> {
    let default = |(name, text): (&String, &String)| {
        let text = environment.expand(text)?;
        let value = Some(text).filter(|text| !text.is_empty()).and_then(|text| to_raw_value(&text).ok());
        Ok((name.clone(), value))
    };
    def.defaults.iter().map(default).collect()
}

pub(super) fn parse_all(
    what: &str,
    templates: &BTreeMap<String, String>,
) -> Result<Vec<(String, Template)>, DeclarationError> {
    let parse = |(name, text): (&String, &String)| {
        let template = Template::parse(text).map_err(field(format!("{what}.{name}")))?;
        Ok((name.clone(), template))
    };
    templates.iter().map(parse).collect()
}

pub(super) fn headers(def: &HttpDef) -> Result<Vec<(HeaderName, Template)>, DeclarationError> {
    let parse = |(name, template): (String, Template)| {
        let header = header_name(&name).map_err(field(format!("headers.{name}")))?;
        Ok((header, template))
    };
    parse_all("headers", &def.headers)?.into_iter().map(parse).collect()
}

pub(super) fn header_name(text: &str) -> Result<HeaderName, String> {
    let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| format!("'{text}' is not a header name"))?;
    if HEADERS_REFUSED.contains(&name) || name.as_str().starts_with("proxy-") {
        return Err(format!("'{name}' belongs to the connection"));
    }
    Ok(name)
}

/// The error names only the header, because the value may be a secret.
pub(super) fn header_value(name: &HeaderName, text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| format!("The header '{name}' would not be valid."))
}

pub(super) fn rules(def: &HttpDef, effect: Effect) -> Result<OutcomeRules, DeclarationError> {
    if let Some(status) = def.not_executed.iter().find(|status| !(400..600).contains(*status)) {
        return Err(field("not_executed")(format!("{status} is not an error status (400 to 599)")));
    }
    if let Some(pointer) = def.result.as_deref().filter(|p| !p.is_empty() && !p.starts_with('/')) {
        return Err(field("result")(format!("'{pointer}' is not a JSON pointer; a pointer begins with '/'")));
    }
    let response_bytes_max = def.response_bytes_max.unwrap_or(RESPONSE_BYTES_MAX_DEFAULT);
    if !(1..=RESPONSE_BYTES_MAX).contains(&response_bytes_max) {
        return Err(field("response_bytes_max")(format!("it must be 1 to {RESPONSE_BYTES_MAX}")));
    }
    let mapping = Mapping::new(&def.outcomes).map_err(field("outcomes"))?;
    let not_executed = def.not_executed.clone();
    let result = def.result.clone();
    Ok(OutcomeRules { not_executed, mapping, result, response_bytes_max, effect })
}
