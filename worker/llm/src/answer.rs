use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_tools::{DeclarationError, OutputCheck};

use crate::history::History;

/// If the answer's schema has this member, the model loop fills it with the calls that led to the answer.
const AUDITS: &str = "tool_call_audits";
/// Limits a call's result in an entry of [`AUDITS`].
const AUDIT_RESULT_BYTES: usize = 1_000;

pub(crate) struct AnswerForm {
    check: OutputCheck,
    has_audits: bool,
}

#[derive(Serialize)]
struct CallAudit<'a> {
    call: String,
    tool: &'a str,
    success: bool,
    result: &'a str,
}

impl AnswerForm {
    pub(crate) fn compile(schema: &Value) -> Result<Self, DeclarationError> {
        let wrong = |why: String| DeclarationError::Field { field: "llm.answer_schema".into(), why };
        let check = OutputCheck::compile(schema).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { check, has_audits: schema.pointer(&format!("/properties/{AUDITS}")).is_some() })
    }

    /// Fills in [`AUDITS`] if the schema has this member. The error is a message for the model.
    pub(crate) async fn read(&self, text: &str, task: &str, history: &History) -> Result<Box<RawValue>, String> {
        let mut object = match serde_json::from_str::<Value>(bare(text)) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err("It is JSON, but not an object.".to_owned()),
            Err(error) => return Err(format!("It is not a JSON object: {error}.")),
        };
        if self.has_audits {
            object.insert(AUDITS.to_owned(), audits(task, history));
        }
        let json = to_raw_value(&object).map_err(|error| error.to_string())?;
        match self.check.check_in_time(json.get()).await {
            Ok(()) => Ok(json),
            Err(error) => {
                let problems: Vec<&str> = error.problems.iter().map(|problem| problem.message.as_str()).collect();
                Err(format!("{}.", problems.join("; ")))
            }
        }
    }
}

/// Leaves out [`AUDITS`], which the model loop fills in.
pub(crate) fn schema_for_model(schema: &Value) -> String {
    let mut schema = schema.clone();
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.remove(AUDITS);
    }
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name != AUDITS);
    }
    schema.to_string()
}

pub(crate) fn unfit_message(problem: &str) -> String {
    format!(
        "Your answer does not have the required form. {problem} Give the whole answer again, as one JSON object with nothing around it."
    )
}

/// Removes a code fence, because many models put JSON into a code fence.
fn bare(text: &str) -> &str {
    let text = text.trim();
    let inner = text.strip_prefix("```").and_then(|text| text.strip_suffix("```"));
    inner.map_or(text, |inner| inner.strip_prefix("json").unwrap_or(inner).trim())
}

fn audits(task: &str, history: &History) -> Value {
    let mut audits = Vec::new();
    for (round, (calls, results)) in history.rounds().enumerate() {
        for (position, (call, result)) in calls.iter().zip(results).enumerate() {
            let mut ends = (0..=AUDIT_RESULT_BYTES.min(result.content.len())).rev();
            let end = ends.find(|at| result.content.is_char_boundary(*at)).unwrap_or(0);
            audits.push(CallAudit {
                call: format!("{task}.step-{}/{position}", round + 1),
                tool: &call.tool,
                success: result.ok,
                result: &result.content[..end],
            });
        }
    }
    serde_json::to_value(audits).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_parsed_with_or_without_a_fence_and_errors_are_reported() {
        let schema = json!({"type": "object", "required": ["next", "tool_call_audits"], "additionalProperties": false,
            "properties": {"next": {"type": "string"}, "tool_call_audits": {"type": "array"}}});
        let form = AnswerForm::compile(&schema).unwrap_or_else(|error| panic!("{error}"));
        let read = async |text: &str| form.read(text, "job-1", &History::default()).await.map(|json| json.to_string());
        let fits = r#"{"next":"go","tool_call_audits":[]}"#;
        assert_eq!(read(r#"{"next":"go"}"#).await.unwrap(), fits);
        assert_eq!(read("```json\n{\"next\":\"go\"}\n```").await.unwrap(), fits);
        assert!(read("Go on.").await.unwrap_err().contains("not a JSON object"));
        assert!(read("[1]").await.unwrap_err().contains("not an object"));
        assert!(read(r#"{"next":7}"#).await.unwrap_err().contains("next"));
        assert!(!schema_for_model(&schema).contains(AUDITS));
    }
}
