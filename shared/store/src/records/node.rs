//! The facts that a consumer says of itself with its heartbeat: `beat.lua` writes them, for those who look on.

/// A scheduler's or worker's account of itself. What it does not say is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeSays {
    /// When it beat last, ms of shard time.
    pub(crate) beat_ms: Option<i64>,
    /// Slots that carry out a slice, and all of them.
    pub(crate) slots: Option<Slots>,
    /// The policy that it decides by: the beginning of the digest.
    pub(crate) policy: Option<String>,
    /// True if it knows that an operator has it take no new work.
    pub(crate) drained: bool,
}

/// A consumer's slots. A scheduler has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slots {
    /// Those that carry out a slice.
    pub busy: usize,
    /// All of them.
    pub all: usize,
}

impl NodeSays {
    /// Reads `<now> <lease> <busy> <slots> <policy>`, and behind it `drained` where it is.
    pub(crate) fn read(said: &str) -> Self {
        let mut words = said.split(' ');
        let (beat, _lease, busy, all, policy) = (words.next(), words.next(), words.next(), words.next(), words.next());
        let size = |word: Option<&str>| word.and_then(|word| word.parse::<usize>().ok());
        let slots = size(busy).zip(size(all)).map(|(busy, all)| Slots { busy, all });
        Self {
            beat_ms: beat.and_then(|beat| beat.parse().ok()),
            slots: slots.filter(|slots| slots.all > 0),
            policy: policy.filter(|policy| !policy.is_empty()).map(String::from),
            drained: words.next() == Some("drained"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_does_not_say_is_none() {
        let whole = NodeSays::read("998000 12000 3 16 0123abcd");
        assert_eq!((whole.beat_ms, whole.slots), (Some(998_000), Some(Slots { busy: 3, all: 16 })));
        assert_eq!(whole.policy.as_deref(), Some("0123abcd"));
        let scheduler = NodeSays::read("998000 12000 0 0 ");
        assert_eq!((scheduler.slots, scheduler.policy), (None, None));
        let drained = NodeSays::read("998000 12000 3 3 0123abcd drained");
        assert_eq!((drained.policy.as_deref(), drained.drained, whole.drained), (Some("0123abcd"), true, false));
        assert_eq!(NodeSays::read(""), NodeSays::default());
    }
}
