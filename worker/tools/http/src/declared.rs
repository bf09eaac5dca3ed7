//! Reads the fields of a declaration, which the configuration has checked.

use std::collections::BTreeMap;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_config::tools::HttpDef;
use tickfleet_model::Effect;
use tickfleet_tools::{DeclarationError, Environment};

use super::error::field;
use super::mapping::Mapping;
use super::outcome::OutcomeRules;
use super::template::Template;

const RESPONSE_BYTES_MAX_DEFAULT: usize = 1024 * 1024;

/// `None` if a default expands to an empty text: each call must then contain the argument.
pub(super) type Defaults = Vec<(String, Option<Box<RawValue>>)>;

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
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| format!("'{text}' is not a header name"))
}

/// The error names only the header, because the value may be a secret.
pub(super) fn header_value(name: &HeaderName, text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| format!("The header '{name}' would not be valid."))
}

pub(super) fn rules(def: &HttpDef, effect: Effect) -> OutcomeRules {
    OutcomeRules {
        not_executed: def.not_executed.clone(),
        mapping: Mapping::new(&def.outcomes),
        result: def.result.clone(),
        response_bytes_max: def.response_bytes_max.unwrap_or(RESPONSE_BYTES_MAX_DEFAULT),
        effect,
    }
}
