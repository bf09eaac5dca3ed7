//! Limits on the calls or amounts of a tenant, agent or user in a given time. [`counters`](counters::counters) finds
//! the counters that a turn's calls debit. Redis stores counters, not the definitions of limits.

pub mod amount;
pub mod counters;

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Effect, limits};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub name: String,
    pub matches: LimitMatch,
    /// Empty means one counter for the whole fleet.
    pub per: BTreeSet<LimitKey>,
    pub bound: LimitBound,
    pub every: LimitWindow,
    pub on_reach: OnReach,
    pub mode: LimitMode,
    /// In one shard. Keys beyond this number share one counter.
    pub keys_max: u64,
}

/// A call must match all of these lists; an empty list matches every call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitMatch {
    /// Names or patterns; `*` matches any characters.
    pub tools: Vec<String>,
    /// A tool that the configuration does not declare has the effect `once`.
    pub effects: Vec<Effect>,
    /// A tool that the configuration does not declare has no category.
    pub categories: Vec<String>,
    /// Names or patterns; `*` matches any characters.
    pub agents: Vec<String>,
    /// One of these roles is enough.
    pub roles: Vec<String>,
    pub plans: Vec<String>,
}

/// A property of a call. Each value of the property has its own counter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitKey {
    Tenant,
    Agent,
    /// `user_id` or `id` in the turn's `user_context`, or the context itself if it is a text.
    User,
    /// `session_id` or `id` in the turn's `session_data`, or the data itself if it is a text.
    Session,
    /// Calls without a task are not counted.
    Task,
    Tool,
    /// All tools that the configuration does not declare share one counter.
    Category,
    /// A JSON pointer (RFC 6901).
    Argument(String),
}

impl LimitKey {
    /// All keys except `argument:<JSON pointer>`.
    pub const NAMED: [(&'static str, Self); 7] = [
        ("tenant", Self::Tenant),
        ("agent", Self::Agent),
        ("user", Self::User),
        ("session", Self::Session),
        ("task", Self::Task),
        ("tool", Self::Tool),
        ("category", Self::Category),
    ];

    #[must_use]
    pub const fn is_of_tenant(&self) -> bool {
        match self {
            Self::Tenant | Self::Agent | Self::User | Self::Session | Self::Task | Self::Argument(_) => true,
            Self::Tool | Self::Category => false,
        }
    }

    #[must_use]
    pub const fn is_of_calls(&self) -> bool {
        match self {
            Self::Tool | Self::Category | Self::Argument(_) => true,
            Self::Tenant | Self::Agent | Self::User | Self::Session | Self::Task => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitBound {
    Calls(u64),
    /// Calls that run at the same time. A call holds its permit until the end of its slice, including retries.
    Concurrent(u64),
    /// Percentage of the workers' slots.
    Part(u64),
    /// While calls wait, tenants get slots in proportion to their weights.
    Share(u64),
    Sum {
        /// A JSON pointer (RFC 6901).
        argument: String,
        /// In millionths ([`amount`]).
        max: u64,
    },
    /// Tokens of requests and responses. Only requests to models debit the counter.
    Tokens(u64),
    /// Millionths of the currency. Only requests to models debit the counter.
    Money(u64),
}

impl LimitBound {
    /// Calls, tokens, millionths, a percentage of the slots, or a weight.
    #[must_use]
    pub const fn max(&self) -> u64 {
        match self {
            Self::Calls(max)
            | Self::Concurrent(max)
            | Self::Part(max)
            | Self::Share(max)
            | Self::Tokens(max)
            | Self::Money(max)
            | Self::Sum { max, .. } => *max,
        }
    }

    #[must_use]
    pub const fn fixed_max(&self) -> Option<u64> {
        if self.is_of_slots() { None } else { Some(self.max()) }
    }

    #[must_use]
    pub const fn is_of_slots(&self) -> bool {
        matches!(self, Self::Part(_) | Self::Share(_))
    }

    #[must_use]
    pub const fn holds_permits(&self) -> bool {
        matches!(self, Self::Concurrent(_) | Self::Part(_) | Self::Share(_))
    }

    #[must_use]
    pub const fn is_of_models(&self) -> bool {
        matches!(self, Self::Tokens(_) | Self::Money(_))
    }

    #[must_use]
    pub const fn is_of_amounts(&self) -> bool {
        matches!(self, Self::Sum { .. } | Self::Money(_))
    }

    #[must_use]
    pub fn with_max(&self, max: u64) -> Self {
        match self {
            Self::Calls(_) => Self::Calls(max),
            Self::Concurrent(_) => Self::Concurrent(max),
            Self::Part(_) => Self::Part(max),
            Self::Share(_) => Self::Share(max),
            Self::Tokens(_) => Self::Tokens(max),
            Self::Money(_) => Self::Money(max),
            Self::Sum { argument, .. } => Self::Sum { argument: argument.clone(), max },
        }
    }

    #[must_use]
    pub fn parse_max(&self, text: &str) -> Option<u64> {
        match self {
            Self::Sum { .. } | Self::Money(_) => amount::parse(text),
            Self::Tokens(_) => text.parse().ok().filter(|tokens| *tokens <= amount::AMOUNT_MAX),
            Self::Calls(_) => text.parse::<u32>().ok().map(u64::from),
            Self::Concurrent(_) => text.parse::<u32>().ok().filter(|permits| *permits > 0).map(u64::from),
            Self::Part(_) => parse_percent(text),
            Self::Share(_) => text.parse::<u64>().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight)),
        }
    }

    #[must_use]
    pub fn max_words(&self) -> String {
        match self {
            Self::Calls(_) => "a number of calls".into(),
            Self::Concurrent(_) => "a number of calls, 1 at least".into(),
            Self::Part(_) => "a part of the slots, from 1% to 100%".into(),
            Self::Share(_) => format!("a weight, from 1 to {WEIGHT_MAX}"),
            Self::Tokens(_) => "a number of tokens".into(),
            Self::Sum { .. } | Self::Money(_) => {
                let most = amount::show(amount::AMOUNT_MAX);
                format!("an amount up to {most}, with at most six digits behind the point")
            }
        }
    }
}

pub const WEIGHT_MAX: u64 = 1_000;

/// From `1%` to `100%`.
#[must_use]
pub fn parse_percent(text: &str) -> Option<u64> {
    let number = text.strip_suffix('%')?.parse().ok()?;
    (1..=100).contains(&number).then_some(number)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitWindow {
    Tick,
    /// Length (ms). Windows of different counters start at different times, so that not all waiting calls wake at once.
    Period(i64),
    /// Length (ms). Each amount counts for this length and up to an eighth longer.
    Rolling(i64),
    /// A day in the tenant's time zone. Counters without a tenant use the fleet's time zone.
    Day,
    Task,
    /// No time window: a call returns its permit when its slice ends.
    Concurrency,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnReach {
    #[default]
    Wait,
    /// Each call gets the result `limit_reached`.
    Reject,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitMode {
    #[default]
    Enforce,
    /// The limit stops no calls, but reports calls that would have waited or been rejected.
    Shadow,
}

impl Limit {
    #[must_use]
    pub fn is_of_tenants(&self) -> bool {
        self.per.iter().any(LimitKey::is_of_tenant)
    }

    /// If the counter belongs to no tenant, the shards divide the maximum.
    #[must_use]
    pub fn share(&self, shard: u32, shards: u32) -> u64 {
        let max = self.bound.max();
        let shards = u64::from(shards.max(1));
        if self.is_of_tenants() { max } else { max / shards + u64::from(u64::from(shard) < max % shards) }
    }

    /// At least one. If the counter belongs to no tenant, the shards divide the permits.
    #[must_use]
    pub fn permits_of(&self, percent: u64, slots: u64, shards: u32) -> u64 {
        let permits = slots.saturating_mul(percent) / 100;
        let permits = if self.is_of_tenants() { permits } else { permits / u64::from(shards.max(1)) };
        permits.max(1)
    }

    /// `None` if the length is not fixed. A task's counter is kept longer than any task can last.
    #[must_use]
    pub const fn period_ms(&self, tick_ms: i64) -> Option<i64> {
        match self.every {
            LimitWindow::Tick => Some(tick_ms),
            LimitWindow::Period(ms) | LimitWindow::Rolling(ms) => Some(ms),
            LimitWindow::Task => Some(2 * limits::DEADLINE_MS_MAX),
            LimitWindow::Day | LimitWindow::Concurrency => None,
        }
    }
}

impl fmt::Display for Limit {
    /// For example `5 calls per user in 1h`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bound {
            LimitBound::Calls(1) => write!(f, "1 call")?,
            LimitBound::Calls(max) => write!(f, "{max} calls")?,
            LimitBound::Concurrent(1) => write!(f, "1 call at once")?,
            LimitBound::Concurrent(max) => write!(f, "{max} calls at once")?,
            LimitBound::Part(percent) => write!(f, "{percent}% of the slots at once")?,
            LimitBound::Share(1) => write!(f, "a share of the slots")?,
            LimitBound::Share(weight) => write!(f, "a share of the slots with weight {weight}")?,
            LimitBound::Sum { argument, max } => write!(f, "{} of {argument}", amount::show(*max))?,
            LimitBound::Tokens(1) => write!(f, "1 token of models")?,
            LimitBound::Tokens(max) => write!(f, "{max} tokens of models")?,
            LimitBound::Money(max) => write!(f, "{} for models", amount::show(*max))?,
        }
        let mut keys = self.per.iter().filter(|key| **key != LimitKey::Task || self.every != LimitWindow::Task);
        if let Some(first) = keys.next() {
            write!(f, " per {first}")?;
            keys.try_for_each(|key| write!(f, " and {key}"))?;
        }
        match self.every {
            LimitWindow::Tick => f.write_str(" in a tick"),
            LimitWindow::Period(ms) => write!(f, " in {}", period(ms)),
            LimitWindow::Rolling(ms) => write!(f, " in any {}", period(ms)),
            LimitWindow::Day => f.write_str(" in a day"),
            LimitWindow::Task => f.write_str(" in a task"),
            LimitWindow::Concurrency => Ok(()),
        }
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant => f.write_str("tenant"),
            Self::Agent => f.write_str("agent"),
            Self::User => f.write_str("user"),
            Self::Session => f.write_str("session"),
            Self::Task => f.write_str("task"),
            Self::Tool => f.write_str("tool"),
            Self::Category => f.write_str("category"),
            Self::Argument(pointer) => f.write_str(pointer),
        }
    }
}

fn period(ms: i64) -> String {
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let whole = units.into_iter().find(|(_, length)| ms > 0 && ms % length == 0);
    whole.map_or_else(|| format!("{ms}ms"), |(unit, length)| format!("{}{unit}", ms / length))
}

#[must_use]
pub fn fits(pattern: &str, name: &str) -> bool {
    let Some((start, more)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut rest) = name.strip_prefix(start) else { return false };
    let (inner, end) = more.rsplit_once('*').unwrap_or(("", more));
    for part in inner.split('*') {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(end)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn named_limit_keys_match_the_accepted_words() {
        let refused = serde_json::from_str::<LimitKey>(r#""?""#).unwrap_err().to_string();
        let words: Vec<&str> = refused.split('`').skip(3).step_by(2).filter(|word| *word != "argument").collect();
        assert_eq!(words, LimitKey::NAMED.map(|(word, _)| word));
    }

    #[test]
    fn a_star_matches_any_characters() {
        for (pattern, name) in [
            ("*", ""),
            ("send_*", "send_"),
            ("send_*", "send_mail"),
            ("*_mail", "send_mail"),
            ("s*_*l", "send_mail"),
            ("a*b*c", "aXbYbc"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("send", "send_mail"), ("send_*", "resend_"), ("*_mail", "mail"), ("a*a", "a"), ("a*b*c", "acb")]
        {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_limit_displays_as_a_short_phrase() {
        let limit = Limit {
            name: "x".into(),
            matches: LimitMatch::default(),
            per: BTreeSet::from([LimitKey::User, LimitKey::Tool]),
            bound: LimitBound::Calls(5),
            every: LimitWindow::Period(3_600_000),
            on_reach: OnReach::Wait,
            mode: LimitMode::Enforce,
            keys_max: 9,
        };
        assert_eq!(limit.to_string(), "5 calls per user and tool in 1h");
        let limit = Limit { every: LimitWindow::Rolling(3_600_000), ..limit };
        assert_eq!(limit.to_string(), "5 calls per user and tool in any 1h");
        let sum = LimitBound::Sum { argument: "/amount".into(), max: 500_500_000 };
        let limit = Limit { bound: sum, per: BTreeSet::from([LimitKey::Task]), every: LimitWindow::Task, ..limit };
        assert_eq!(limit.to_string(), "500.5 of /amount in a task");
        let per = BTreeSet::from([LimitKey::Tool]);
        let limit = Limit { bound: LimitBound::Concurrent(3), per, every: LimitWindow::Concurrency, ..limit };
        assert_eq!(limit.to_string(), "3 calls at once per tool");
        let part = Limit { bound: LimitBound::Part(25), ..limit.clone() };
        assert_eq!(part.to_string(), "25% of the slots at once per tool");
        let per = BTreeSet::from([LimitKey::Tenant]);
        let share = Limit { bound: LimitBound::Share(3), per: per.clone(), ..limit.clone() };
        assert_eq!(share.to_string(), "a share of the slots with weight 3 per tenant");
        let tokens =
            Limit { bound: LimitBound::Tokens(200_000), per: per.clone(), every: LimitWindow::Day, ..limit.clone() };
        assert_eq!(tokens.to_string(), "200000 tokens of models per tenant in a day");
        let money = Limit { bound: LimitBound::Money(500_000), per, every: LimitWindow::Task, ..limit };
        assert_eq!(money.to_string(), "0.5 for models per tenant in a task");
    }

    #[test]
    fn shards_divide_a_limit_that_spans_tenants() {
        let per = |keys: &[LimitKey]| Limit {
            name: "x".into(),
            matches: LimitMatch::default(),
            per: keys.iter().cloned().collect(),
            bound: LimitBound::Calls(10),
            every: LimitWindow::Day,
            on_reach: OnReach::Wait,
            mode: LimitMode::Enforce,
            keys_max: 9,
        };
        let shares = |limit: &Limit| (0..4).map(|shard| limit.share(shard, 4)).collect::<Vec<_>>();
        assert_eq!(shares(&per(&[LimitKey::Tool])), [3, 3, 2, 2]);
        assert_eq!(shares(&per(&[LimitKey::Tool, LimitKey::User])), [10; 4]);
    }
}
