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
    oidc_algorithm: Vec<AlgorithmArg>,
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
enum AlgorithmArg {
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

impl From<AlgorithmArg> for Algorithm {
    fn from(signed: AlgorithmArg) -> Self {
        match signed {
            AlgorithmArg::RS256 => Self::RS256,
            AlgorithmArg::RS384 => Self::RS384,
            AlgorithmArg::RS512 => Self::RS512,
            AlgorithmArg::PS256 => Self::PS256,
            AlgorithmArg::PS384 => Self::PS384,
            AlgorithmArg::PS512 => Self::PS512,
            AlgorithmArg::ES256 => Self::ES256,
            AlgorithmArg::ES384 => Self::ES384,
            AlgorithmArg::EdDSA => Self::EdDSA,
        }
    }
}

impl TokenArgs {
    /// Opens the token check, with its rules. Returns `None` if no issuer is given.
    ///
    /// # Errors
    /// [`TokenError`] if the rules or keys cannot be used.
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
            keys_rest: TokenOptions::KEYS_COOLDOWN,
            answer_max: TokenOptions::ANSWER_MAX,
        })
        .map(Some)
    }
}
