//! The contents of messages about results: what dialects tell alike.

use std::borrow::Cow;

use super::super::cut::cut_output;
use super::super::json::unescape;
use super::super::write::Object;
use tickfleet_model::{CallResult, limits};

/// One message of the user around all results.
pub(super) const IN_ONE_USER_MESSAGE: (&str, &str) = (r#"[{"role":"user","content":["#, "]}]");

/// The id that a result is told under: the provider's, or our own where it gave none.
pub(super) fn id_of(result: &CallResult) -> &str {
    result.tool_call_id.as_deref().unwrap_or(&result.call)
}

/// The members of a part of text.
pub(super) fn push_text_part(object: &mut Object, text: &str) {
    object.text("type", "text");
    object.text("text", text);
}

/// The text that a model reads: the text of a string output, the JSON of any other, or the error; and what is to be said
/// beside it: a model that repeats itself has to know that nothing happened now.
pub(super) fn content(result: &CallResult) -> Cow<'_, str> {
    let text = said(result);
    match beside(result) {
        None => text,
        Some(beside) => Cow::Owned(format!("{text}\n({beside})")),
    }
}

/// What a model is told beside a result: of arguments that people changed; of a call that was not carried out, for an equal one had been made before; of an
/// answer that is not of now; and what the fleet has to say.
pub(super) fn beside(result: &CallResult) -> Option<String> {
    let narrowed = result.approval.as_ref().and_then(|approval| {
        let (given, by) = (approval.arguments.as_ref()?, approval.by.join(" and "));
        let given = cut_output(given.get(), limits::ERROR_BYTES_MAX);
        Some(format!("{by} approved this call with other arguments, and it was made with these: {given}."))
    });
    let repeated = result
        .repeats
        .as_ref()
        .map(|call| format!("An equal call had been made before, {call}. This is its outcome; it did not run again."));
    let cached = result.cached.as_ref().map(|cached| {
        let seconds = cached.age_ms / 1_000;
        format!("This is the answer that an equal call got {seconds} s ago; it was not asked for again.")
    });
    let said: Vec<String> = [narrowed, repeated, cached, result.note.clone()].into_iter().flatten().collect();
    (!said.is_empty()).then(|| said.join(" "))
}

/// What the result itself says.
fn said(result: &CallResult) -> Cow<'_, str> {
    if let Some(error) = &result.error {
        return match &error.details {
            None => Cow::Borrowed(&error.message),
            Some(details) => {
                let details = details.to_string();
                Cow::Owned(format!("{}\n{}", error.message, cut_output(&details, limits::ERROR_BYTES_MAX)))
            }
        };
    }
    let json = result.output.as_ref().map_or("null", |output| output.get());
    let inner = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).and_then(unescape);
    inner.unwrap_or(Cow::Borrowed(json))
}
