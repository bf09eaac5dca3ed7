//! What a script is about, read from its arguments as its contract names them, and what was there before it.

use super::Call;
use super::look::{Look, Record};

/// One item of a batch, and what was known of it.
#[derive(Debug, Default)]
pub(super) struct Was {
    /// `<tenant>:<turn>`; behind the colon nothing where no id was given.
    pub(super) name: String,
    /// The fence that its holder goes by, or the inbound entry.
    pub(super) under: String,
    pub(super) digest: String,
    pub(super) inbox: String,
    pub(super) position: i64,
    pub(super) nonce: String,
    pub(super) record: Record,
    /// What the id stood for: its state and digest.
    pub(super) id: Option<String>,
    /// Whether the inbound entry was still to be decided about.
    pub(super) is_open: bool,
    /// Whether somebody held its slice.
    pub(super) is_held: bool,
    /// Whether it was cancelled before it came.
    pub(super) is_marked: bool,
    /// Whether its call stays begun while it is parked: nobody begins it again, it is found out what came of it.
    pub(super) stays_begun: bool,
}

/// The items of a call.
pub(super) fn items(call: &Call, look: &mut Look<'_>) -> Vec<Was> {
    let each = |count: usize| 1..=usize::try_from(call.number(count)).unwrap_or(0).min(2_000);
    let arg = |at: usize| call.arg(at).to_owned();
    match call.verb {
        "begin" => each(3).map(|i| begin(call, i * 6 - 2)).map(|was| recorded(was, look)).collect(),
        "retry" => each(3)
            .map(|i| Was {
                name: format!("{}:{}", arg(i * 10 - 6), arg(i * 10 - 5)),
                under: arg(i * 10 - 4),
                stays_begun: arg(i * 10 + 2) == "1",
                ..Was::default()
            })
            .map(|was| recorded(was, look))
            .collect(),
        "hand_back" => each(2)
            .map(|i| Was { name: arg(i * 4 - 1), under: arg(i * 4), ..Was::default() })
            .map(|was| recorded(was, look))
            .collect(),
        "promote" => each(4)
            .map(|i| Was { name: arg(4 + i), ..Was::default() })
            .map(|was| held(recorded(was, look), look))
            .collect(),
        "settle" => settle(call).into_iter().map(|was| recorded(was, look)).collect(),
        "admit" => admit(call).into_iter().map(|was| inbound(was, look, "turns")).collect(),
        "submit" => each(8)
            .map(|i| i * 5 + 4)
            .map(|at| Was { name: format!("{}:{}", arg(at), arg(at + 1)), ..Was::default() })
            .map(|was| waiting(was, look))
            .collect(),
        "reject" => each(8)
            .map(|i| i * 8 + 1)
            .map(|at| Was { under: arg(at), name: arg(at + 6), digest: arg(at + 7), ..Was::default() })
            .map(|was| inbound(was, look, call.arg(5)))
            .collect(),
        "cancel" => vec![recorded(Was { name: arg(2), ..Was::default() }, look)],
        _ => Vec::new(),
    }
}

fn begin(call: &Call, at: usize) -> Was {
    Was {
        name: call.arg(at).into(),
        under: call.arg(at + 1).into(),
        position: call.number(at + 2),
        nonce: call.arg(at + 3).into(),
        ..Was::default()
    }
}

fn settle(call: &Call) -> Vec<Was> {
    let (mut at, mut items) = (8, Vec::new());
    for _ in 0..call.number(6) {
        items.push(Was { name: call.arg(at + 1).into(), under: call.arg(at + 2).into(), ..Was::default() });
        let results = usize::try_from(call.number(at + 8)).unwrap_or(0);
        // Of a whole turn, its reply is rendered, and only the audit of each call comes behind it.
        at += if call.arg(at + 7).is_empty() { 15 + 3 * results } else { 9 + results };
    }
    items
}

/// Where the turns of an admission begin among its arguments: their count.
fn turns_at(call: &Call) -> usize {
    // Behind the policies, whether logs say what turns debited.
    let rows_at = 12 + 7 * usize::try_from(call.number(10)).unwrap_or(0);
    // Rows of limits come before the turns, and the counters that these debit.
    let counters_at = rows_at + 1 + 9 * usize::try_from(call.number(rows_at)).unwrap_or(0);
    counters_at + 1 + 3 * usize::try_from(call.number(counters_at)).unwrap_or(0)
}

fn admit(call: &Call) -> Vec<Was> {
    let (mut at, mut items) = (turns_at(call), Vec::new());
    let count = call.number(at);
    at += 1;
    for _ in 0..count {
        items.push(Was {
            under: call.arg(at).into(),
            name: call.arg(at + 3).into(),
            digest: call.arg(at + 4).into(),
            inbox: format!("{}:{}", call.arg(at + 1), call.arg(at + 9)),
            ..Was::default()
        });
        at += 13 + usize::try_from(call.number(at + 12)).unwrap_or(0);
        // What it debits, in bytes: what is no small number is no text, and stands behind.
        at += 1 + call.arg(at).matches(char::REPLACEMENT_CHARACTER).count();
    }
    items
}

fn recorded(mut was: Was, look: &mut Look<'_>) -> Was {
    was.record = look.record(&was.name);
    was
}

fn held(mut was: Was, look: &mut Look<'_>) -> Was {
    if let (Some(fence), Some(queue)) = (was.record.slice(), &was.record.queue) {
        was.is_held = Look::queues(queue).iter().any(|queue| look.is_held(queue, fence));
    }
    was
}

fn inbound(mut was: Was, look: &mut Look<'_>, stream: &str) -> Was {
    was.id = look.get(&format!("id:{}", was.name));
    was.is_open = look.is_on(stream, &was.under) || look.is_held(stream, &was.under);
    was.is_marked = look.exists(&format!("early:{}", was.name));
    was
}

/// Whether an id stands for something that is somewhere.
fn waiting(mut was: Was, look: &mut Look<'_>) -> Was {
    if was.name.ends_with(':') {
        return was;
    }
    was.id = look.get(&format!("id:{}", was.name));
    let entry = look.fields("queued", &[&was.name]).remove(0);
    let waits = was.id.as_deref().is_some_and(|id| id.starts_with('q'));
    was.is_open = match entry.filter(|_| waits) {
        Some(entry) => look.is_on("turns", &entry) || look.is_held("turns", &entry),
        None => was.id.is_some(),
    };
    was
}
