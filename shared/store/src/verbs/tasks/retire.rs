//! Streams of runtimes outside are looked after.

use crate::connection::question::Question;
use crate::keys::Queue;
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, TenantId};

impl Store {
    /// Looks after some of the streams that runtimes outside read: trims them, and removes those that are empty and whose
    /// agent `is_configured` no longer. Answers where to go on; 0 where the round is complete.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn retire(
        &self,
        cursor: u64,
        is_configured: impl Fn(&TenantId, &AgentId) -> bool,
    ) -> Result<u64, StoreError> {
        let scan = redis::cmd("SSCAN").arg(self.keys.key("externals")).arg(cursor).arg("COUNT").arg(100).to_owned();
        let (next, queues): (u64, Vec<String>) = self.connection.query(Question::Externals, &scan).await?;
        let streams: Vec<(Queue, bool)> = queues
            .iter()
            .filter_map(|queue| match Queue::parse(queue)? {
                Queue::External(tenant, agent) => {
                    let orphan = !is_configured(&tenant, &agent);
                    Some((Queue::External(tenant, agent), orphan))
                }
                Queue::Ready(_) | Queue::Suspect(_) => None,
            })
            .collect();
        if !streams.is_empty() {
            let mut args = self.args();
            args.show(streams.len());
            for (queue, orphan) in &streams {
                args.show(queue).flag(*orphan);
            }
            self.run(Verb::Retire, args).await?;
        }
        Ok(next)
    }
}
