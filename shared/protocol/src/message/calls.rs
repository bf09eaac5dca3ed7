//! The calls of a turn, their dialect, and the member that contains them.

use super::super::dialects::{CALLS, cut_off, is_unfinished, members, rules};
use super::super::write::Object;
use super::fields::Fields;
use super::problem::MessageProblem;
use tickfleet_model::{Call, Dialect, RejectionCode, limits};

/// Exactly one member of the turn must contain calls.
pub(crate) fn read_calls(fields: &Fields<'_, '_>) -> Result<(Dialect, Vec<Call>), MessageProblem> {
    let format = format(fields)?;
    let mut present = members().filter_map(|(name, own, _)| Some((name, own, fields.get(name)?)));
    let Some((name, own, held)) = present.next() else {
        return Err(MessageProblem::new(RejectionCode::MissingField, format!("{}; this one has none", one_of())));
    };
    if let Some((other, ..)) = present.next() {
        return Err(MessageProblem::new(
            RejectionCode::InvalidField,
            format!("{}; this one has {name} and {other}", one_of()),
        ));
    }
    let dialect = format.unwrap_or(own);
    let rules = rules(dialect);
    if !rules.takes(name) {
        let given = dialect.as_str();
        let own = own.as_str();
        return Err(fields.invalid("format", &format!("{name} is {own}, not {given}; put {given} calls into calls")));
    }
    let mut calls = rules.read(name, held, fields)?;
    let is_cut = fields.string("stop_reason", limits::NAME_BYTES_MAX)?.is_some_and(|word| is_unfinished(&word));
    // In a plain-text answer, a call with complete JSON is complete even if the answer was cut off.
    if is_cut && !rules.info().in_words && rules.ends_with_call(name, held) {
        calls.last_mut().into_iter().for_each(|call| cut_off(&mut call.arguments));
    }
    // A plain-text answer may have no call, because the client cannot know in advance. In other dialects, the provider
    // reports whether a response contains calls.
    if calls.is_empty() && !rules.info().in_words {
        let what = rules.without_calls();
        return Err(MessageProblem::new(
            RejectionCode::NoCalls,
            format!("{name} {what}: a turn has at least one call"),
        ));
    }
    Ok((dialect, calls))
}

fn one_of() -> String {
    let mut names: Vec<String> = members().map(|(name, _, of)| format!("{name} ({of})")).collect();
    let last = names.pop().unwrap_or_default();
    format!("a turn has exactly one of {} and {last}", names.join(", "))
}

fn format(fields: &Fields<'_, '_>) -> Result<Option<Dialect>, MessageProblem> {
    let Some(text) = fields.string("format", limits::NAME_BYTES_MAX)? else { return Ok(None) };
    let known = || Dialect::ALL.map(Dialect::as_str).join(", ");
    Dialect::parse(&text)
        .map(Some)
        .ok_or_else(|| fields.invalid("format", &format!("{text:?} is not one of {}", known())))
}

pub(crate) fn write_calls(turn: &mut Object, dialect: Dialect, calls: &[Call]) {
    let rules = rules(dialect);
    let own = rules.member().map(|(name, _)| name).filter(|_| !rules.info().in_words);
    if own.is_none() {
        turn.text("format", dialect.as_str());
    }
    let calls: Vec<String> = calls.iter().map(|call| rules.write_call(call)).collect();
    turn.raw(own.unwrap_or(CALLS), &format!("[{}]", calls.join(",")));
}
