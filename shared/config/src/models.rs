//! `models.yaml`: the models of the fleet's own agents.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::document::errors::Errors;
use crate::document::reader::{Cursor, Section};
use crate::document::tree::Node;
use crate::tools::SecretRef;
use crate::tools::http::{SERVICE_URL, hosts, is_service_url, secret};
use crate::tools::read::TIMEOUT_MS_MAX;
use tickfleet_model::limit::amount;
use tickfleet_model::{limits, suggest};

pub const MODEL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelApi {
    OpenAi,
    OpenAiResponses,
    Anthropic,
    Gemini,
}

const APIS: [(&str, ModelApi); 4] = [
    ("openai", ModelApi::OpenAi),
    ("openai-responses", ModelApi::OpenAiResponses),
    ("anthropic", ModelApi::Anthropic),
    ("gemini", ModelApi::Gemini),
];

/// In millionths of the currency.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prices {
    /// Per million tokens of requests.
    pub input: u64,
    /// Per million tokens of responses.
    pub output: u64,
}

#[derive(Debug, Clone)]
pub struct ModelDef {
    /// `None` means the provider of the usual environment variables.
    pub provider: Option<ProviderDef>,
    pub prices: Prices,
}

#[derive(Debug, Clone)]
pub struct ProviderDef {
    pub api: ModelApi,
    pub model: String,
    pub base_url: Option<String>,
    pub key: Option<SecretRef>,
    pub function_calling: bool,
    pub timeout: Duration,
    pub allow_private: BTreeSet<String>,
}

pub type Models = BTreeMap<String, ModelDef>;

pub(super) fn read(tree: &Node, errors: &Errors) -> Models {
    let mut models = Models::new();
    let mut root = Section::open(tree, "", errors);
    for (name, place, cursor) in root.required("models").map(|c| c.members()).unwrap_or_default() {
        if !is_name(name) {
            let found = format!("the model name {name:?}");
            let expected = format!("1 to {} letters, digits and _ . -", limits::NAME_BYTES_MAX);
            errors.push(place, &cursor.path, found, expected);
        }
        models.extend(model(&cursor).map(|model| (name.to_owned(), model)));
    }
    root.close();
    models
}

fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    !name.is_empty() && name.len() <= limits::NAME_BYTES_MAX && name.bytes().all(plain)
}

fn model(cursor: &Cursor<'_>) -> Option<ModelDef> {
    let mut s = cursor.section();
    let prices = s.optional("prices").map(|c| prices(&c)).unwrap_or_default();
    let from_environment = s.optional("from_environment").and_then(|c| c.boolean()) == Some(true);
    if from_environment {
        s.close();
        return Some(ModelDef { provider: None, prices });
    }
    let api = s.required("api").and_then(|c| c.choice(&APIS));
    let model = s.required("model").and_then(|c| c.some_text());
    let provider = ProviderDef {
        api: api.unwrap_or(ModelApi::OpenAi),
        model: model.clone().unwrap_or_default(),
        base_url: s.optional("base_url").and_then(|c| base_url(&c)),
        key: s.optional("key").and_then(|c| secret(&c)),
        function_calling: s.optional("function_calling").and_then(|c| c.boolean()).unwrap_or(true),
        timeout: s
            .optional("timeout_ms")
            .and_then(|c| c.integer(1, TIMEOUT_MS_MAX))
            .map_or(MODEL_TIMEOUT_DEFAULT, Duration::from_millis),
        allow_private: s.optional("allow_private").map(|c| hosts(&c)).unwrap_or_default(),
    };
    s.close();
    (api.is_some() && model.is_some()).then_some(ModelDef { provider: Some(provider), prices })
}

fn base_url(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.some_text()?;
    if !is_service_url(&text) {
        cursor.refuse(SERVICE_URL);
        return None;
    }
    Some(text)
}

fn prices(cursor: &Cursor<'_>) -> Prices {
    let mut s = cursor.section();
    let mut price = |field| s.optional(field).and_then(|c| money(&c)).unwrap_or_default();
    let prices = Prices { input: price("input"), output: price("output") };
    s.close();
    prices
}

fn money(cursor: &Cursor<'_>) -> Option<u64> {
    let read = amount::of(&cursor.node.to_json());
    if read.is_none() {
        cursor.refuse("an amount such as 0.15, with at most six digits behind the point");
    }
    read
}

pub(super) fn known(cursor: &Cursor<'_>, models: Option<&Models>) -> Option<String> {
    let name = cursor.some_text()?;
    if let Some(models) = models.filter(|models| !models.contains_key(&name)) {
        let names = || models.keys().map(String::as_str);
        let expected = format!("a model of models.yaml: {}", suggest::list(names()));
        cursor.refuse_with(expected, suggest::closest(&name, names()));
        return None;
    }
    Some(name)
}
