//! What models have used: counted by `step`, a hash for each day of a tenant.

use std::collections::{BTreeMap, HashMap};

use tickfleet_model::TenantId;

use crate::connection::question::Question;
use crate::records::schema::usage;
use crate::{Store, StoreError};

/// What was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Used {
    /// Requests that models have answered.
    pub requests: u64,
    /// Tokens of requests.
    pub input_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// What they cost, in millionths of the currency.
    pub cost: u64,
}

/// What a tenant has used in one of its days.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DayUsage {
    /// The start of the day, ms of shard time.
    pub day_ms: i64,
    /// All of it.
    pub total: Used,
    /// By agent; those beyond the number that a day tells apart are one, `~`.
    pub agents: BTreeMap<String, Used>,
}

impl Used {
    fn field(&mut self, name: &str) -> Option<&mut u64> {
        match name {
            usage::REQUESTS => Some(&mut self.requests),
            usage::INPUT => Some(&mut self.input_tokens),
            usage::OUTPUT => Some(&mut self.output_tokens),
            usage::COST => Some(&mut self.cost),
            _ => None,
        }
    }

    fn add(&mut self, name: &str, value: u64) {
        if let Some(field) = self.field(name) {
            *field = field.saturating_add(value);
        }
    }
}

impl DayUsage {
    /// Reads the fields of a day; what a hand has put there is left out.
    fn read(day_ms: i64, fields: HashMap<String, String>) -> Self {
        let mut day = Self { day_ms, ..Self::default() };
        for (field, value) in fields {
            let Ok(value) = value.parse() else { continue };
            match field.split_once(':') {
                None => day.total.add(&field, value),
                Some((agent, name)) => day.agents.entry(agent.to_owned()).or_default().add(name, value),
            }
        }
        day
    }
}

impl Store {
    /// What a tenant's models have used in these days, each by its start, ms of shard time
    /// ([`day_bounds`](tickfleet_model::day::day_bounds) of the tenant's time zone says it). A day without any is zeros.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn usage(&self, tenant: &TenantId, days_ms: &[i64]) -> Result<Vec<DayUsage>, StoreError> {
        let mut found = Vec::with_capacity(days_ms.len());
        // A day may have thousands of fields: one a command, so that no answer of Redis is large.
        for day_ms in days_ms {
            let mut command = redis::cmd("HGETALL");
            command.arg(self.keys.key(format_args!("usage:{tenant}:{day_ms}")));
            let fields = self.connection.query(Question::Usage, &command).await?;
            found.push(DayUsage::read(*day_ms, fields));
        }
        Ok(found)
    }
}
