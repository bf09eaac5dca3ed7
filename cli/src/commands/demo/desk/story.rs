//! The turns of the third act, in order. Each turn has its expected outcome.

/// The amount of the payment whose response is lost.
pub(super) const LOST: u64 = 300;

pub(super) struct Step {
    pub(super) agent: &'static str,
    /// The agent's action, as the rest of a sentence that begins with the agent's name.
    pub(super) story: &'static str,
    /// The tool and the arguments of each call.
    pub(super) calls: &'static [(&'static str, &'static str)],
    /// The expected outcome of each call.
    pub(super) expected: &'static [&'static str],
    /// The amount that the approver approves; `None` if no approval is needed.
    pub(super) agrees_to: Option<u64>,
}

/// The approver of large payments.
pub(super) const APPROVER: &str = "ann";

const QUOTE: (&str, &str) = ("get_quote", r#"{"item":"paper"}"#);
const KIM: (&str, &str) = ("pay", r#"{"to":"kim","amount":80}"#);
const PARCEL: (&str, &str) = ("find_parcel", r#"{"id":"p-1"}"#);

pub(super) const STEPS: [Step; 10] = [
    Step {
        agent: "tina",
        story: "reads a stranger's mail, and would pay what it asks for",
        calls: &[("read_mail", "{}"), ("pay", r#"{"to":"eve","amount":90}"#)],
        expected: &["ok", "denied"],
        agrees_to: None,
    },
    Step { agent: "atlas", story: "looks at it", calls: &[("review", "{}")], expected: &["ok"], agrees_to: None },
    Step { agent: "tina", story: "asks for a price", calls: &[QUOTE], expected: &["ok"], agrees_to: None },
    Step { agent: "tina", story: "pays it", calls: &[KIM], expected: &["ok"], agrees_to: None },
    Step {
        agent: "tina",
        story: "plans the same payment once more",
        calls: &[KIM],
        expected: &["ok"],
        agrees_to: None,
    },
    Step {
        agent: "tina",
        story: "pays 700, to which ann has to agree: she agrees to 600",
        calls: &[("pay", r#"{"to":"ben","amount":700}"#)],
        expected: &["ok"],
        agrees_to: Some(600),
    },
    Step {
        agent: "tina",
        story: "would pay 9000",
        calls: &[("pay", r#"{"to":"ben","amount":9000}"#)],
        expected: &["denied"],
        agrees_to: None,
    },
    Step {
        agent: "tina",
        story: "pays 300, and the line to the bank goes dead",
        calls: &[("pay", r#"{"to":"zoe","amount":300}"#)],
        expected: &["ok"],
        agrees_to: None,
    },
    Step {
        agent: "tina",
        story: "looks for a parcel again and again",
        calls: &[PARCEL, PARCEL, PARCEL, PARCEL, PARCEL],
        expected: &["ok", "ok", "ok", "ok", "denied"],
        agrees_to: None,
    },
    Step { agent: "tina", story: "asks for the price again", calls: &[QUOTE], expected: &["ok"], agrees_to: None },
];

/// The payments that are expected at the end. Each payment is made once.
pub(super) const PAID: [(&str, u64); 3] = [("kim", 80), ("ben", 600), ("zoe", LOST)];
/// Number of calls that the rule in shadow mode would have stopped: payments of more than 100.
pub(super) const SHADOWED: usize = 2;
/// Number of calls that are decided differently if only half the amount can be paid without approval.
pub(super) const OTHERWISE: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_of_the_story_has_an_end_and_arguments_that_are_json() {
        for step in &STEPS {
            assert_eq!(step.calls.len(), step.expected.len(), "{}", step.story);
            for (_, arguments) in step.calls {
                assert!(serde_json::from_str::<serde_json::Value>(arguments).is_ok(), "{arguments}");
            }
        }
    }
}
