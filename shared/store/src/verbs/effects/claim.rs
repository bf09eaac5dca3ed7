//! A call that has an effect key claims it before it begins.

use tickfleet_model::{TenantId, TurnId};

use crate::connection::question::Question;
use crate::keys::TurnName;
use crate::records::schema::effect;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// What a call is about to do: all equal calls have the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectName {
    /// The tenant.
    pub tenant: TenantId,
    /// The tool.
    pub tool: String,
    /// The hash of what its arguments say.
    pub hash: String,
}

impl std::fmt::Display for EffectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.tenant, self.tool, self.hash)
    }
}

/// The call that has claimed an effect: `<turn>/<position>/<digest of the turn's content>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimant(String);

impl Claimant {
    /// The call at `position` of a turn whose content has this digest.
    #[must_use]
    pub fn new(turn: &TurnId, position: usize, digest: &str) -> Self {
        Self(format!("{turn}/{position}/{digest}"))
    }

    /// The call as results name it, `<turn>/<position>`.
    #[must_use]
    pub fn call(&self) -> &str {
        self.0.rsplit_once('/').map_or(self.0.as_str(), |(call, _)| call)
    }

    /// Its turn and its position there; none where a foreign writer has left something else.
    #[must_use]
    pub fn place(&self) -> Option<(TurnId, usize)> {
        let (turn, position) = self.call().rsplit_once('/')?;
        Some((TurnId::new(turn).ok()?, position.parse().ok()?))
    }

    /// The digest of its turn's content; none where a foreign writer has left something else.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        Some(self.0.rsplit_once('/')?.1)
    }

    /// The claimant as Redis has it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A call that is about to begin.
#[derive(Debug, Clone)]
pub struct EffectClaim {
    /// The turn.
    pub name: TurnName,
    /// The fence of the slice.
    pub fence: String,
    /// Position of the call.
    pub position: usize,
    /// Digest of the turn's content.
    pub digest: String,
    /// What it is about to do.
    pub effect: EffectName,
    /// For how long its end will answer equal calls, ms.
    pub window_ms: i64,
    /// A claimant that is known to have done nothing: its claim goes over to this call.
    pub nothing: Option<Claimant>,
    /// The Redis (its `run_id`) that the worker has told of what it claimed; none where it knows none.
    pub knows: Option<String>,
}

/// The outcome of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// It is the call's own: no equal call begins.
    Ours,
    /// This call, or an equal one, has ended so: its result, JSON.
    Ended(Claimant, String),
    /// An equal call of this turn is under way.
    Waits(TurnId),
    /// The call that has the claim is over, and the ledger was not told. Its result, JSON, where its turn has it still.
    Gone(Claimant, Option<String>),
    /// Somebody who is gone has begun this very call: `begin` says what is known of it.
    Begun,
    /// Somebody else holds the turn now.
    Stale,
    /// Redis restarted less than a lease ago, or is another than the worker knows: claim again later.
    Hold,
}

impl Store {
    /// Whether it is known what came of an effect, so that the next call that claims it is answered. To be read before a
    /// claim, where a call would not be carried out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn is_concluded(&self, name: &EffectName) -> Result<bool, StoreError> {
        let command =
            redis::cmd("HGET").arg(self.keys.key(format_args!("effect:{name}"))).arg(effect::ENDED).to_owned();
        let ended: Option<String> = self.connection.query(Question::Look, &command).await?;
        Ok(ended.is_some())
    }

    /// Claims the effects of calls that are about to begin.
    ///
    /// # Errors
    /// [`StoreError`]; the same claim may be repeated.
    pub async fn claim(&self, calls: &[EffectClaim]) -> Result<Vec<Claimed>, StoreError> {
        let mut args = self.args();
        args.show(self.options.lease_ms).show(calls.len());
        for call in calls {
            args.show(&call.name).text(call.fence.as_str()).show(call.position).text(call.digest.as_str());
            args.show(&call.effect).show(call.window_ms);
            args.text(call.nothing.as_ref().map_or("", Claimant::as_str)).maybe(call.knows.as_ref());
        }
        let mut reply = self.ask(Verb::Claim, args).await?;
        reply.rest().iter().map(claimed).collect()
    }
}

fn claimed(value: &redis::Value) -> Result<Claimed, StoreError> {
    let texts: Vec<String> = match value {
        redis::Value::Array(values) => values.iter().map(|value| text_of(value).unwrap_or_default()).collect(),
        word => text_of(word).into_iter().collect(),
    };
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let by = |text: &str| Claimant(text.to_owned());
    Ok(match texts[..] {
        ["CLAIMED"] => Claimed::Ours,
        ["ENDED", claimant, result] => Claimed::Ended(by(claimant), result.to_owned()),
        ["GONE", claimant, ""] => Claimed::Gone(by(claimant), None),
        ["GONE", claimant, result] => Claimed::Gone(by(claimant), Some(result.to_owned())),
        ["WAITS", turn] => Claimed::Waits(TurnId::new(turn).map_err(|_| unexpected(Verb::Claim.as_str(), value))?),
        ["BEGUN"] => Claimed::Begun,
        ["STALE"] => Claimed::Stale,
        ["HOLD"] => Claimed::Hold,
        _ => return Err(unexpected(Verb::Claim.as_str(), value)),
    })
}
