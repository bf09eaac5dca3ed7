//! Changes that approvers make to arguments. The changes are checked against the tool's schema, because a wrong value
//! would use up the approval.

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_client::approvals::narrowed_call;
use tickfleet_client::{Approval, ApprovalError, Client};
use tickfleet_model::approval::NarrowedValues;
use tickfleet_tools::ArgumentCheck;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArgumentChange {
    pointer: String,
    value: String,
}

impl ArgumentChange {
    /// Takes `amount=400`, or `/lines/0=400` with a JSON pointer.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let expected = || "expected an argument and its value, such as amount=400 or /lines/0=400".to_owned();
        let (name, value) = text.split_once('=').ok_or_else(expected)?;
        let (name, value) = (name.trim(), value.trim());
        if matches!(name, "" | "/") || value.is_empty() {
            return Err(expected());
        }
        let pointer = if name.starts_with('/') {
            name.to_owned()
        } else {
            format!("/{}", name.replace('~', "~0").replace('/', "~1"))
        };
        Ok(Self { pointer, value: value.to_owned() })
    }

    /// The value becomes a text if it is not JSON, or if the argument's current value is a text.
    fn to_json(&self, arguments: &Value) -> serde_json::Result<(String, Box<RawValue>)> {
        let is_text_now = arguments.pointer(&self.pointer).is_some_and(Value::is_string);
        let value = match serde_json::from_str::<Box<RawValue>>(&self.value) {
            Ok(json) if !is_text_now || json.get().starts_with('"') => json,
            _ => to_raw_value(&self.value)?,
        };
        Ok((self.pointer.clone(), value))
    }
}

pub(super) fn values(changes: &[ArgumentChange], approval: &Approval) -> serde_json::Result<NarrowedValues> {
    let arguments = serde_json::from_str(approval.arguments.get()).unwrap_or_default();
    changes.iter().map(|change| change.to_json(&arguments)).collect()
}

/// If the fleet publishes no schema of the tool, only the rules for narrowing apply.
pub(crate) async fn check(client: &Client, approval: &Approval, changes: &NarrowedValues) -> Result<(), ApprovalError> {
    if changes.is_empty() || !approval.arguments_exact {
        return Ok(());
    }
    let call = narrowed_call(client, approval, changes).await?;
    // A schema that cannot be compiled was rejected when its tool was loaded.
    let Some(check) = call.schema.and_then(|schema| ArgumentCheck::compile(&schema).ok()) else { return Ok(()) };
    match check.check_in_time(&call.arguments).await {
        Ok(_) => Ok(()),
        Err(problem) => Err(ApprovalError::Schema(problem.message(&approval.tool))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_names_its_argument_by_name_or_json_pointer() {
        let arguments = json!({"amount": 700, "price": "700.00", "a/b": 1, "lines": [1]});
        for (text, pointer, value) in [
            ("amount=400", "/amount", "400"),
            (" amount = 400 ", "/amount", "400"),
            ("/amount=400", "/amount", "400"),
            ("price=650", "/price", "\"650\""),
            ("price=\"650\"", "/price", "\"650\""),
            ("a/b=0", "/a~1b", "0"),
            ("/lines/0=0", "/lines/0", "0"),
            ("amount=NaN", "/amount", "\"NaN\""),
            ("amount=1,200", "/amount", "\"1,200\""),
            ("note=a=b", "/note", "\"a=b\""),
        ] {
            let (at, json) = ArgumentChange::parse(text).unwrap().to_json(&arguments).unwrap();
            assert_eq!((at.as_str(), json.get()), (pointer, value), "{text}");
        }
        for wrong in ["amount", "=400", "amount=", "/=4", ""] {
            assert!(ArgumentChange::parse(wrong).unwrap_err().contains("amount=400"), "{wrong}");
        }
    }
}
