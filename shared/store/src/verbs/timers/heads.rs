//! The turns at the heads of lanes.

use redis::Value;

use crate::keys::Lane;
use crate::script::reply::{Reply, into_text};
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// A turn that waits on a lane, as far as limits need to know it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    /// `<tenant>:<turn>`, as the lane says.
    pub name: String,
    /// Position of its next call.
    pub next: usize,
    /// The agent; empty where its record is gone.
    pub agent: String,
    /// Its meta, JSON; empty where that is gone.
    pub meta: String,
    /// True if it comes back for places of limits that it gave back while a call waited.
    pub comes_back: bool,
    /// Its calls from the next one on, JSON each.
    pub calls: Vec<String>,
}

impl Store {
    /// Reads the turns at the heads of lanes: up to `turns` of each, and about `bytes` in all.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn heads(&self, lanes: &[Lane], turns: usize, bytes: usize) -> Result<Vec<Vec<Head>>, StoreError> {
        let mut args = self.args();
        args.show(turns).show(bytes).show(lanes.len());
        for lane in lanes {
            args.show(lane);
        }
        let mut reply = self.ask(Verb::Heads, args).await?;
        reply.rest().into_iter().map(lane).collect()
    }
}

fn lane(value: Value) -> Result<Vec<Head>, StoreError> {
    Reply::new(Verb::Heads.as_str(), value)?.rest().into_iter().map(head).collect()
}

fn head(value: Value) -> Result<Head, StoreError> {
    let mut reply = Reply::new(Verb::Heads.as_str(), value)?;
    let (name, next) = (reply.text()?, reply.number()?);
    let (agent, meta, back) = (reply.text()?, reply.text()?, reply.text()?);
    let calls = reply.rest().into_iter().filter_map(into_text).collect();
    Ok(Head { name, next: usize::try_from(next).unwrap_or(0), agent, meta, comes_back: !back.is_empty(), calls })
}
