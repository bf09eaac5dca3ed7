//! The kept answers of reads.

use std::time::Duration;

use tickfleet_model::TenantId;

use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// What a read asks: all that ask the same have the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadName {
    /// The tenant.
    pub tenant: TenantId,
    /// The hash of all that its answer may depend on.
    pub hash: String,
}

/// The kept answer of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptAnswer {
    /// How old it is.
    pub age: Duration,
    /// The call that was carried out for it, `<turn>/<position>`.
    pub call: String,
    /// The media type of the output.
    pub content_type: String,
    /// The output, JSON.
    pub output: String,
}

impl Store {
    /// Looks for the kept answers of these reads.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lookup(&self, reads: &[ReadName]) -> Result<Vec<Option<KeptAnswer>>, StoreError> {
        let mut args = self.args();
        args.show(reads.len());
        for read in reads {
            args.text(read.tenant.as_str()).text(read.hash.as_str());
        }
        let mut reply = self.ask(Verb::Lookup, args).await?;
        reply.rest().iter().map(kept).collect()
    }
}

fn kept(value: &redis::Value) -> Result<Option<KeptAnswer>, StoreError> {
    let redis::Value::Array(values) = value else {
        return match text_of(value).as_deref() {
            Some("ABSENT") => Ok(None),
            _ => Err(unexpected(Verb::Lookup.as_str(), value)),
        };
    };
    let texts: Option<Vec<String>> = values.iter().map(text_of).collect();
    let Some(Ok([age, call, content_type, output])) = texts.map(<[String; 4]>::try_from) else {
        return Err(unexpected(Verb::Lookup.as_str(), value));
    };
    let age = Duration::from_millis(age.parse().map_err(|_| unexpected(Verb::Lookup.as_str(), value))?);
    Ok(Some(KeptAnswer { age, call, content_type, output }))
}
