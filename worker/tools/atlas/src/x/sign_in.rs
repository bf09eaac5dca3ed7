//! Tokens of X: fixed tokens, and OAuth 2.0 with a refresh token (docs.x.com, OAuth 2.0; scope `offline.access`). Each
//! refresh token can be used once, so only one worker at a time requests a new grant.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use tickfleet_store::{Store, StoreError};
use tickfleet_tools::{CallContext, Environment, ToolError, ToolFailure, TypedTool};
use tickfleet_tools_http::{Client, Credentials, TokenGrant};

use super::sealed::{Seal, StoredGrant};

/// How long one worker has the right to request the next grant: longer than a request takes. After a failed request, no
/// worker requests a grant until this time is over.
const RENEWAL_MS: u64 = 20_000;
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(15);
/// The pause between two checks of a call that waits for another worker's grant.
const POLL_EVERY: Duration = Duration::from_millis(200);
const LOOKS: u32 = 40;
/// A worker tries this often to store a grant, because a grant that is not stored is lost permanently.
const KEEP_TRIES: u32 = 10;
/// Redis keeps a grant for this time. X's refresh tokens are valid for half a year, and each use returns a new one.
const KEPT_MS: u64 = 190 * 86_400_000;

#[derive(Clone)]
pub(super) enum Account {
    /// The name of the secret that contains the token.
    Fixed(&'static str),
    SignedIn(Arc<SignIn>),
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(name) => f.debug_tuple("Fixed").field(name).finish(),
            Self::SignedIn(_) => f.write_str("SignedIn(..)"),
        }
    }
}

impl Account {
    pub(super) fn of_user(sign_in: Option<Arc<SignIn>>) -> Self {
        sign_in.map_or(Self::Fixed("X_USER_TOKEN"), Self::SignedIn)
    }

    /// For requests that only read: the app's token if there is one, otherwise the user's.
    pub(super) fn of_reader(sign_in: Option<Arc<SignIn>>, environment: &Environment) -> Self {
        let is_set = |name: &str| environment.get(name).is_some();
        match sign_in {
            Some(sign_in) if !is_set("X_BEARER_TOKEN") => Self::SignedIn(sign_in),
            None if !is_set("X_BEARER_TOKEN") && is_set("X_USER_TOKEN") => Self::Fixed("X_USER_TOKEN"),
            _ => Self::Fixed("X_BEARER_TOKEN"),
        }
    }

    /// If a secret is missing, the tool is not configured. Values of secrets are removed from results.
    pub(super) fn declared_on(&self, tool: TypedTool, environment: &Environment) -> TypedTool {
        match self {
            Self::Fixed(name) => tool.secret_from_env(name, name),
            Self::SignedIn(_) => ["X_REFRESH_TOKEN", "X_CLIENT_ID", "X_CLIENT_SECRET"]
                .into_iter()
                .filter(|name| environment.get(name).is_some())
                .fold(tool, |tool, name| tool.secret_from_env(name, name)),
        }
    }

    pub(super) async fn token(&self, context: &CallContext) -> Result<SecretString, ToolError> {
        match self {
            Self::Fixed(name) => context.secret(name).map(SecretString::from),
            Self::SignedIn(sign_in) => sign_in.token(None).await,
        }
    }

    pub(super) async fn token_after_rejection(
        &self,
        refused: &SecretString,
    ) -> Result<Option<SecretString>, ToolError> {
        match self {
            Self::Fixed(_) => Ok(None),
            Self::SignedIn(sign_in) => sign_in.token(Some(refused)).await.map(Some),
        }
    }
}

pub(super) struct SignIn {
    token_url: Url,
    client_id: SecretString,
    client_secret: Option<SecretString>,
    /// For the first grant only.
    refresh_token: SecretString,
    client: Arc<Client>,
    home: Store,
    seal: Seal,
    /// The last grant that this worker read or obtained. Used if Redis has lost the grant.
    last: Mutex<Option<StoredGrant>>,
}

impl SignIn {
    /// `None` if no refresh token is set. The error names a variable that is missing or cannot be used.
    pub(super) fn new(
        base: &Url,
        client: &Arc<Client>,
        home: &Store,
        environment: &Environment,
    ) -> Result<Option<Self>, String> {
        let Some(refresh_token) = environment.get("X_REFRESH_TOKEN").map(SecretString::from) else { return Ok(None) };
        let client_id = environment.get("X_CLIENT_ID").ok_or("X_REFRESH_TOKEN is set, and X_CLIENT_ID is not")?;
        let token_url = format!("{}/2/oauth2/token", base.as_str().trim_end_matches('/'));
        Ok(Some(Self {
            token_url: Url::parse(&token_url).map_err(|error| format!("X_BASE_URL: {error}"))?,
            seal: Seal::new(&client_id, &refresh_token)?,
            client_id: client_id.into(),
            client_secret: environment.get("X_CLIENT_SECRET").map(SecretString::from),
            refresh_token,
            client: client.clone(),
            home: home.clone(),
            last: Mutex::default(),
        }))
    }

    /// Returns a token other than `refused`. A dropped call must not stop the task: X may have replaced the refresh
    /// token already.
    async fn token(self: &Arc<Self>, refused: Option<&SecretString>) -> Result<SecretString, ToolError> {
        let this = Arc::clone(self);
        let refused = refused.cloned();
        let found = tokio::spawn(async move { this.find(refused.as_ref()).await }).await;
        found.unwrap_or_else(|error| Err(ToolError::internal(format!("the sign-in ended without a result: {error}"))))
    }

    async fn find(&self, refused: Option<&SecretString>) -> Result<SecretString, ToolError> {
        let is_good = |kept: &StoredGrant, now_ms: i64| {
            kept.good_until_ms > now_ms && refused.is_none_or(|refused| refused.expose_secret() != kept.access)
        };
        for _ in 0..LOOKS {
            let (kept, now_ms) = self.newest().await?;
            if let Some(kept) = kept.as_ref().filter(|kept| is_good(kept, now_ms)) {
                return Ok(SecretString::from(kept.access.clone()));
            }
            if self.home.may_renew_grant(&self.seal.id, RENEWAL_MS).await.map_err(away)? {
                // Another worker may have obtained a grant before this worker got the right to request one.
                let (kept, now_ms) = self.newest().await?;
                return match kept.filter(|kept| is_good(kept, now_ms)) {
                    Some(kept) => Ok(SecretString::from(kept.access)),
                    None => self.renew().await,
                };
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        Err(not_signed_in("another worker is signing in; try again later", None))
    }

    /// The grant with the highest number counts. Also returns the current time of the shard (ms).
    async fn newest(&self) -> Result<(Option<StoredGrant>, i64), ToolError> {
        let (kept, now_ms) = tokio::try_join!(self.home.load_grant(&self.seal.id), self.home.now_ms()).map_err(away)?;
        let kept = kept.and_then(|sealed| self.seal.open(&sealed));
        let mut last = self.last.lock();
        let number = |kept: &Option<StoredGrant>| kept.as_ref().map_or(0, |kept| kept.number);
        if number(&kept) >= number(&last) {
            last.clone_from(&kept);
        }
        Ok((last.clone(), now_ms))
    }

    /// Tries to store the grant before its access token is used.
    async fn renew(&self) -> Result<SecretString, ToolError> {
        let (last, _) = self.newest().await?;
        let refresh = last.as_ref().map_or_else(|| self.refresh_token.clone(), |kept| kept.refresh.clone().into());
        let secret = self.client_secret.clone();
        let url = self.token_url.clone();
        let credentials = Credentials::refreshing(url, self.client_id.clone(), secret, refresh.clone());
        let asked = tokio::time::timeout(SIGN_IN_TIMEOUT, credentials.request_grant(&self.client, None)).await;
        let asked = asked.map_err(|_| not_signed_in("its token service did not answer in time", None))?;
        let TokenGrant { token, life, refresh_token } = asked.map_err(refused)?;
        let now_ms = self.home.now_ms().await.unwrap_or(0);
        let kept = StoredGrant {
            access: token.expose_secret().to_owned(),
            refresh: refresh_token.unwrap_or(refresh).expose_secret().to_owned(),
            good_until_ms: now_ms.saturating_add(i64::try_from(life.as_millis()).unwrap_or(i64::MAX)),
            number: last.map_or(0, |kept| kept.number) + 1,
        };
        *self.last.lock() = Some(kept.clone());
        self.keep(&kept).await;
        Ok(token)
    }

    async fn keep(&self, kept: &StoredGrant) {
        let sealed = match self.seal.close(kept) {
            Ok(sealed) => sealed,
            Err(error) => return tracing::error!(error, "cannot encrypt X's next refresh token; a restart loses it"),
        };
        for _ in 0..KEEP_TRIES {
            match self.home.keep_grant(&self.seal.id, &sealed, KEPT_MS).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, "failed to store X's next refresh token; retrying"),
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        tracing::error!("failed to store X's next refresh token in Redis; a restart of this worker loses it");
    }
}

fn away(error: StoreError) -> ToolError {
    not_signed_in(&error.to_string(), None)
}

/// The tool's own request was not sent, so a retry repeats nothing.
fn not_signed_in(why: &str, retry_after: Option<Duration>) -> ToolError {
    ToolError::NotExecuted { message: format!("The tool could not sign in to X: {why}."), retry_after }
}

fn refused(failure: ToolFailure) -> ToolError {
    match failure {
        ToolFailure::Transient { message, retry_after, .. } => ToolError::NotExecuted { message, retry_after },
        ToolFailure::Ended { message, .. }
        | ToolFailure::InvalidArguments { message }
        | ToolFailure::NotConfigured { message } => ToolError::Permanent(message),
        ToolFailure::Waits { awaits, at_most } => ToolError::Waits { awaits: awaits.turn(), at_most },
        ToolFailure::Internal { message } => ToolError::Internal(message),
    }
}
