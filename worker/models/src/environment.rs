//! The provider that the usual environment variables configure.

use std::collections::BTreeMap;
use std::time::Duration;

use secrecy::SecretString;

use crate::provider::ProviderSettings;
use crate::wire::ProviderApi;

const TIMEOUT: Duration = Duration::from_secs(120);

/// `LLM_PROVIDER` selects `openai`, `openai-responses`, `anthropic`, `claude` or `gemini`. If it is not set, OpenAI's
/// key or address selects OpenAI. Otherwise, Anthropic's key selects Anthropic. The error names a missing or invalid
/// variable.
pub fn from_environment(environment: &BTreeMap<String, String>) -> Result<Option<ProviderSettings>, String> {
    let value = |name: &str| environment.get(name).map(|v| v.trim()).filter(|v| !v.is_empty());
    let api = match value("LLM_PROVIDER").map(str::to_ascii_lowercase).as_deref() {
        Some("openai") => ProviderApi::OpenAi,
        Some("openai-responses") => ProviderApi::Responses,
        Some("anthropic" | "claude") => ProviderApi::Anthropic,
        Some("gemini") => ProviderApi::Gemini,
        Some(_) => {
            return Err("LLM_PROVIDER: expected openai, openai-responses, anthropic, claude or gemini".to_owned());
        }
        None if value("OPENAI_API_KEY").is_some() || value("OPENAI_BASE_URL").is_some() => ProviderApi::OpenAi,
        None if value("ANTHROPIC_API_KEY").is_some() => ProviderApi::Anthropic,
        None => return Ok(None),
    };
    let (key, model, base) = match api {
        ProviderApi::OpenAi | ProviderApi::Responses => ("OPENAI_API_KEY", "OPENAI_MODEL", "OPENAI_BASE_URL"),
        ProviderApi::Anthropic => ("ANTHROPIC_API_KEY", "CLAUDE_MODEL", "ANTHROPIC_BASE_URL"),
        ProviderApi::Gemini => ("GEMINI_API_KEY", "GEMINI_MODEL", "GEMINI_BASE_URL"),
    };
    // A self-hosted server often needs no key.
    if value(key).is_none() && value(base).is_none() {
        return Err(format!("{key}: expected the key of {}", api.as_str()));
    }
    let model = value(model).ok_or_else(|| format!("{model}: expected the name of a model"))?;
    Ok(Some(ProviderSettings {
        name: api.as_str().to_owned(),
        api,
        base_url: value(base).unwrap_or(api.base_url()).to_owned(),
        key: value(key).map(|key| SecretString::from(key.to_owned())),
        model: model.to_owned(),
        function_calling: true,
        // A private address is permitted: the operator has chosen it, and a model cannot influence it.
        allow_private: value(base).and_then(host_of).into_iter().collect(),
        timeout: TIMEOUT,
    }))
}

fn host_of(url: &str) -> Option<String> {
    let url = reqwest::Url::parse(url).ok()?;
    let host = url.host_str()?;
    Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<ProviderSettings>, String> {
        from_environment(&variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn environment_variables_configure_a_provider() {
        assert!(read(&[]).unwrap().is_none() && read(&[("LLM_PROVIDER", "")]).unwrap().is_none());
        let claude = read(&[("LLM_PROVIDER", "Claude"), ("ANTHROPIC_API_KEY", "k"), ("CLAUDE_MODEL", "m")]);
        let claude = claude.unwrap().unwrap();
        assert_eq!((claude.api, claude.model.as_str()), (ProviderApi::Anthropic, "m"));
        assert!(!format!("{claude:?}").contains("\"k\""), "no key is printed");
        let own = read(&[("OPENAI_BASE_URL", "http://llm:8000/v1"), ("OPENAI_MODEL", "m")]).unwrap().unwrap();
        assert!(own.key.is_none() && own.base_url == "http://llm:8000/v1");
        assert_eq!(own.allow_private, ["llm:8000".to_owned()].into(), "it may be a server within the cluster");
    }

    #[test]
    fn errors_name_the_missing_or_invalid_variable() {
        assert!(read(&[("LLM_PROVIDER", "gpt")]).unwrap_err().starts_with("LLM_PROVIDER"));
        assert!(read(&[("LLM_PROVIDER", "openai")]).unwrap_err().starts_with("OPENAI_API_KEY"));
        assert!(read(&[("OPENAI_API_KEY", "secret")]).unwrap_err().starts_with("OPENAI_MODEL"));
    }
}
