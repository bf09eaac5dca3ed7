use serde::{Serialize, Serializer};
use serde_json::Number;
use tickfleet_model::limit::amount;
use tickfleet_store::Used;

/// The number of model requests, with their tokens and cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ModelUse {
    /// The number of requests that got a response.
    pub requests: u64,
    /// Tokens of the requests.
    pub input_tokens: u64,
    /// Tokens of the responses.
    pub output_tokens: u64,
    /// The cost, in millionths of the currency of the configured prices. Serialized as an amount in that currency.
    #[serde(serialize_with = "in_currency")]
    pub cost: u64,
}

fn in_currency<S: Serializer>(millionths: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    // A formatted amount is a valid JSON number, so the fallback is never used.
    let number: Number = amount::show(*millionths).parse().unwrap_or_else(|_| (*millionths).into());
    number.serialize(serializer)
}

impl ModelUse {
    pub(crate) const fn add(&mut self, used: &Used) {
        self.requests = self.requests.saturating_add(used.requests);
        self.input_tokens = self.input_tokens.saturating_add(used.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(used.output_tokens);
        self.cost = self.cost.saturating_add(used.cost);
    }
}
