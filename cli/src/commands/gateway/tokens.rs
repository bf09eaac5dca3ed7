//! The OpenID Connect tokens that a gateway accepts in addition to API keys.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tickfleet_config::SealKey;
use tickfleet_gateway::{Algorithm, ClientSecret, SignInOptions, TokenOptions, Tokens};

use crate::failure::Failure;
use crate::setup::Setup;
use crate::words::word_of;

/// Other algorithms are not safe here.
const ASYMMETRIC: [&str; 9] = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];

/// Identity provider, and what its tokens grant.
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    /// Issuer of OpenID Connect tokens (JWT) to accept. The gateway fetches its public keys.
    #[arg(long, value_name = "URL", requires_all = ["oidc_audience", "oidc_rules"])]
    oidc_issuer: Option<String>,
    /// Accepted `aud` claim of tokens. Repeatable.
    #[arg(long, value_name = "NAME", requires = "oidc_issuer")]
    oidc_audience: Vec<String>,
    /// File of rules that map claims to permissions. Changes apply without a restart.
    #[arg(long, value_name = "FILE", requires = "oidc_issuer")]
    oidc_rules: Option<PathBuf>,
    /// File with the issuer's public keys (JSON Web Key Set), instead of fetching them.
    #[arg(long, value_name = "FILE", requires = "oidc_issuer")]
    oidc_jwks: Option<PathBuf>,
    /// Accepted signature algorithm. Repeatable. If missing, RS256, ES256 and EdDSA.
    #[arg(long, value_name = "ALGORITHM", requires = "oidc_issuer", value_parser = word_of::<Algorithm>(&ASYMMETRIC))]
    oidc_algorithm: Vec<Algorithm>,
    /// Claim with the name for the audit log, such as email.
    #[arg(long, value_name = "CLAIM", requires = "oidc_issuer", default_value = "sub")]
    oidc_name_claim: String,
    /// Accepted clock difference between issuer and gateway, at most 5m.
    #[arg(long, value_name = "DURATION", requires = "oidc_issuer", default_value = "30s", value_parser = super::duration)]
    oidc_leeway: Duration,
    /// Client ID of the console at the issuer. Users can then sign in to the console there.
    #[arg(long, value_name = "ID", requires_all = ["oidc_issuer", "public_url"], conflicts_with = "oidc_jwks")]
    oidc_client_id: Option<String>,
    /// Place of the client secret: env:NAME or file:/PATH. If missing, the console is a public client.
    #[arg(long, value_name = "PLACE", requires = "oidc_client_id", value_parser = crate::setup::parse_secret_place)]
    oidc_client_secret: Option<SealKey>,
    /// Scope to request at sign-in in addition to openid. Repeatable. If missing, profile and email.
    #[arg(long, value_name = "SCOPE", requires = "oidc_client_id", value_parser = scope)]
    oidc_scope: Vec<String>,
}

impl TokenArgs {
    pub(super) fn open(&self, setup: &Setup) -> Result<Option<Tokens>, Failure> {
        let (Some(issuer), Some(rules)) = (&self.oidc_issuer, &self.oidc_rules) else { return Ok(None) };
        let algorithms = match self.oidc_algorithm.as_slice() {
            [] => TokenOptions::ALGORITHMS.into(),
            given => given.to_vec(),
        };
        let tokens = Tokens::open(TokenOptions {
            issuer: issuer.clone(),
            jwks: self.oidc_jwks.clone(),
            audience: self.oidc_audience.clone(),
            algorithms,
            name_claim: self.oidc_name_claim.clone(),
            leeway: self.oidc_leeway,
            rules: rules.clone(),
            keys_rest: TokenOptions::KEYS_COOLDOWN,
            answer_max: TokenOptions::ANSWER_MAX,
            sign_in: self.sign_in(setup)?,
        });
        tokens.map(Some).map_err(Failure::failed)
    }

    fn sign_in(&self, setup: &Setup) -> Result<Option<SignInOptions>, Failure> {
        const SECRET: &str = "--oidc-client-secret";
        let Some(client_id) = self.oidc_client_id.clone() else { return Ok(None) };
        let secret = self.oidc_client_secret.as_ref().map(|place| setup.secret(SECRET, place)).transpose()?;
        let empty = || Failure::failed(anyhow::anyhow!("{SECRET}: the secret is empty"));
        let client_secret = secret.map(|text| ClientSecret::new(&text).ok_or_else(empty)).transpose()?;
        let scopes = match self.oidc_scope.as_slice() {
            [] => SignInOptions::SCOPES.map(str::to_owned).into(),
            given => given.to_vec(),
        };
        Ok(Some(SignInOptions { client_id, client_secret, scopes }))
    }
}

/// RFC 6749, section 3.3.
fn scope(text: &str) -> Result<String, String> {
    let is_scope = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\');
    let is_one = !text.is_empty() && text.chars().all(is_scope);
    is_one
        .then(|| text.to_owned())
        .ok_or_else(|| "expected one scope without spaces; repeat the option for more".into())
}
