//! Writes the content of result messages. All dialects share this code.

use std::borrow::Cow;

use super::super::content::{ContentBlock, content_blocks, content_text};
use super::super::cut::cut_output;
use super::super::json::unescape;
use super::super::write::Object;
use tickfleet_model::{CallResult, limits};

pub(super) const IN_ONE_USER_MESSAGE: (&str, &str) = (r#"[{"role":"user","content":["#, "]}]");

pub(super) fn id_of(result: &CallResult) -> &str {
    result.tool_call_id.as_deref().unwrap_or(&result.call)
}

pub(super) fn push_text_part(object: &mut Object, text: &str) {
    object.text("type", "text");
    object.text("text", text);
}

/// Notes follow in parentheses. For example, a model must know that a repeated call did not run again.
pub(super) fn content(result: &CallResult) -> Cow<'_, str> {
    let text = output_or_error(result);
    match notes(result) {
        None => text,
        Some(notes) => Cow::Owned(format!("{text}\n({notes})")),
    }
}

/// Notes are the last block. `None` if the result is only text.
pub(super) fn parts(result: &CallResult) -> Option<Vec<ContentBlock>> {
    let mut blocks = content_blocks(result)?;
    blocks.extend(notes(result).map(|text| ContentBlock::Text { text: format!("({text})") }));
    Some(blocks)
}

pub(super) fn list_of(parts: &[ContentBlock], push: impl Fn(&mut Object, &ContentBlock)) -> String {
    let written = parts.iter().map(|part| {
        let mut object = Object::new(64);
        push(&mut object, part);
        object.end()
    });
    format!("[{}]", written.collect::<Vec<_>>().join(","))
}

pub(super) fn notes(result: &CallResult) -> Option<String> {
    let narrowed = result.approval.as_ref().and_then(|approval| {
        let given = approval.arguments.as_ref()?;
        let by = approval.by.join(" and ");
        let given = cut_output(given.get(), limits::ERROR_BYTES_MAX);
        Some(format!("{by} approved this call with other arguments. It ran with these arguments: {given}."))
    });
    let repeated = result
        .repeats
        .as_ref()
        .map(|call| format!("This call did not run again: its outcome is that of the equal call {call}."));
    let cached = result.cached.as_ref().map(|cached| {
        let seconds = cached.age_ms / 1_000;
        format!("This is the answer of an equal call from {seconds} s ago; the tool was not called again.")
    });
    let all: Vec<String> = [narrowed, repeated, cached, result.note.clone()].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(" "))
}

fn output_or_error(result: &CallResult) -> Cow<'_, str> {
    if let Some(error) = &result.error {
        return match &error.details {
            None => Cow::Borrowed(&error.message),
            Some(details) => {
                let details = details.to_string();
                Cow::Owned(format!("{}\n{}", error.message, cut_output(&details, limits::ERROR_BYTES_MAX)))
            }
        };
    }
    if let Some(blocks) = content_blocks(result) {
        return Cow::Owned(content_text(&blocks));
    }
    let json = result.output.as_ref().map_or("null", |output| output.get());
    let inner = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).and_then(unescape);
    inner.unwrap_or(Cow::Borrowed(json))
}
