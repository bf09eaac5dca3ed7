//! Reads `http.outcomes`.

use tickfleet_model::Outcome;

use crate::document::reader::Cursor;
use crate::tools::http::values::pointer;
use crate::tools::{AnswerMeaning, OutcomeRule};

pub(crate) fn read(cursor: &Cursor<'_>) -> Vec<OutcomeRule> {
    cursor.items().iter().filter_map(rule).collect()
}

fn rule(cursor: &Cursor<'_>) -> Option<OutcomeRule> {
    let mut s = cursor.section();
    let status = s.optional("status");
    let at = s.optional("at");
    let equals = s.optional("equals");
    let present = s.optional("present");
    if at.is_none() {
        for needs_at in [&equals, &present].into_iter().flatten() {
            needs_at.refuse("`at` beside it: a JSON pointer to the compared value");
        }
    }
    if let (Some(_), Some(present)) = (&equals, &present) {
        present.refuse("one of equals, present");
    }
    if at.is_none() && status.is_none() {
        cursor.refuse("`status`, `at` or both: the rule's condition");
    }
    let rule = OutcomeRule {
        status: status
            .map(|c| c.items().iter().filter_map(|item| item.integer(200, 599)).collect())
            .unwrap_or_default(),
        at: at.and_then(|c| pointer(&c)),
        equals: equals.map(|c| c.node.to_json()),
        present: present.and_then(|c| c.boolean()),
        outcome: s
            .required("outcome")
            .and_then(|c| c.choice(&AnswerMeaning::NAMED))
            .unwrap_or(AnswerMeaning::Ended(Outcome::Permanent)),
        message: s.optional("message").and_then(|c| pointer(&c)),
        retry_after: s.optional("retry_after").and_then(|c| pointer(&c)),
    };
    s.close();
    Some(rule)
}
