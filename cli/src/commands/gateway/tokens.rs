//! The OpenID Connect tokens that a gateway accepts in addition to API keys.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tickfleet_gateway::{Algorithm, TokenError, TokenOptions, Tokens};

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
    #[arg(long, value_enum, value_name = "ALGORITHM", requires = "oidc_issuer")]
    oidc_algorithm: Vec<Signed>,
    /// Claim with the name for the audit log, such as email.
    #[arg(long, value_name = "CLAIM", requires = "oidc_issuer", default_value = "sub")]
    oidc_name_claim: String,
    /// Accepted clock difference between issuer and gateway, at most 5m.
    #[arg(long, value_name = "DURATION", requires = "oidc_issuer", default_value = "30s", value_parser = super::duration)]
    oidc_leeway: Duration,
}

/// Signature algorithm of tokens. Only asymmetric algorithms are safe here.
#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "verbatim")]
enum Signed {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    EdDSA,
}

impl From<Signed> for Algorithm {
    fn from(signed: Signed) -> Self {
        match signed {
            Signed::RS256 => Self::RS256,
            Signed::RS384 => Self::RS384,
            Signed::RS512 => Self::RS512,
            Signed::PS256 => Self::PS256,
            Signed::PS384 => Self::PS384,
            Signed::PS512 => Self::PS512,
            Signed::ES256 => Self::ES256,
            Signed::ES384 => Self::ES384,
            Signed::EdDSA => Self::EdDSA,
        }
    }
}

impl TokenArgs {
    /// Reads the rules; `None` without an issuer.
    ///
    /// # Errors
    /// [`TokenError`].
    pub(super) fn open(&self) -> Result<Option<Tokens>, TokenError> {
        let (Some(issuer), Some(rules)) = (&self.oidc_issuer, &self.oidc_rules) else { return Ok(None) };
        let algorithms = match self.oidc_algorithm.as_slice() {
            [] => TokenOptions::ALGORITHMS.into(),
            given => given.iter().map(|signed| (*signed).into()).collect(),
        };
        Tokens::open(TokenOptions {
            issuer: issuer.clone(),
            jwks: self.oidc_jwks.clone(),
            audience: self.oidc_audience.clone(),
            algorithms,
            name_claim: self.oidc_name_claim.clone(),
            leeway: self.oidc_leeway,
            rules: rules.clone(),
            keys_rest: TokenOptions::KEYS_REST,
            answer_max: TokenOptions::ANSWER_MAX,
        })
        .map(Some)
    }
}
