//! Creates the models of `models.yaml` once, so that all agents share a provider's circuit breaker.

use std::collections::BTreeMap;
use std::sync::Arc;

use secrecy::SecretString;
use tickfleet_config::tools::SecretRef;
use tickfleet_config::{ModelApi, ModelDef, Prices, ProviderDef};
use tickfleet_models::{ModelChain, Provider, ProviderApi, ProviderSettings, from_environment};

#[derive(Debug, Default)]
pub struct ModelSet(BTreeMap<String, Result<PricedModel, String>>);

#[derive(Debug)]
struct PricedModel {
    provider: Arc<Provider>,
    prices: Prices,
}

impl ModelSet {
    /// `environment` contains the API keys. An unavailable model affects only the agents that use it.
    #[must_use]
    pub fn new(defs: &BTreeMap<String, ModelDef>, environment: &BTreeMap<String, String>) -> Self {
        let made = |(name, def): (&String, &ModelDef)| (name.clone(), entry(name, def, environment));
        Self(defs.iter().map(made).collect())
    }

    /// In the order of `names`, without unavailable models.
    pub(crate) fn chain(&self, names: &[String]) -> Result<ModelChain, String> {
        let mut missing = Vec::new();
        let mut providers = Vec::new();
        for name in names {
            match self.0.get(name) {
                Some(Ok(entry)) => providers.push(Arc::clone(&entry.provider)),
                Some(Err(why)) => missing.push(format!("{name}: {why}")),
                None => missing.push(format!("{name}: no model of models.yaml")),
            }
        }
        if providers.is_empty() {
            return Err(format!("No model is configured for this agent ({}).", missing.join("; ")));
        }
        Ok(ModelChain::new(providers))
    }

    /// In millionths of the currency.
    pub(crate) fn cost(&self, provider: &str, input: u64, output: u64) -> u64 {
        let Some(Ok(entry)) = self.0.get(provider) else { return 0 };
        let of = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price) / 1_000_000;
        u64::try_from(of(input, entry.prices.input) + of(output, entry.prices.output)).unwrap_or(u64::MAX)
    }
}

fn entry(name: &str, def: &ModelDef, environment: &BTreeMap<String, String>) -> Result<PricedModel, String> {
    let settings = match &def.provider {
        Some(provider) => declared(provider, environment)?,
        None => from_environment(environment)?.ok_or(
            "set OPENAI_API_KEY and OPENAI_MODEL, ANTHROPIC_API_KEY and CLAUDE_MODEL, or another provider of models.yaml",
        )?,
    };
    let provider = Provider::new(ProviderSettings { name: name.to_owned(), ..settings })?;
    Ok(PricedModel { provider: Arc::new(provider), prices: def.prices })
}

fn declared(def: &ProviderDef, environment: &BTreeMap<String, String>) -> Result<ProviderSettings, String> {
    let api = match def.api {
        ModelApi::OpenAi => ProviderApi::OpenAi,
        ModelApi::OpenAiResponses => ProviderApi::Responses,
        ModelApi::Anthropic => ProviderApi::Anthropic,
        ModelApi::Gemini => ProviderApi::Gemini,
    };
    let key = match &def.key {
        None => None,
        Some(SecretRef::Env(name)) => {
            let value = environment.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
            Some(value.ok_or_else(|| format!("the variable {name} is not set"))?.to_owned())
        }
        Some(SecretRef::File(path)) => {
            let read = std::fs::read_to_string(path).map_err(|error| format!("the key's file {path}: {error}"))?;
            Some(read.trim().to_owned())
        }
    };
    Ok(ProviderSettings {
        name: String::new(),
        api,
        base_url: def.base_url.clone().unwrap_or_else(|| api.base_url().to_owned()),
        key: key.map(SecretString::from),
        model: def.model.clone(),
        function_calling: def.function_calling,
        allow_private: def.allow_private.clone(),
        timeout: def.timeout,
    })
}
