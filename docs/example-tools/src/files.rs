//! `write_file`: writes a file in the tenant's workspace.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet::{CallContext, Effect, TypedTool};

use crate::folder::{Folder, on_disk};

const CHARS_MAX: usize = 100_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewFile {
    /// The path in the workspace, such as notes/today.md. Missing folders are created.
    #[schemars(length(min = 1, max = 400))]
    path: String,
    /// The whole text of the file, at most 100000 characters.
    #[schemars(length(max = CHARS_MAX))]
    content: String,
}

#[derive(Serialize, JsonSchema)]
struct Written {
    /// The path of the file.
    path: String,
    /// The size of the file in bytes.
    bytes: usize,
}

/// Writing the same text again changes nothing, so the fleet may retry the tool.
pub fn write_file() -> TypedTool {
    let description = "Writes a text file into the workspace. A file that is there already is replaced.";
    TypedTool::new("write_file", description, Effect::Idempotent, |context: CallContext, file: NewFile| {
        on_disk(move || {
            let draft: String = context.idempotency_key.chars().filter(char::is_ascii_alphanumeric).collect();
            Folder::of(&context, Some("workspace"), true)?.write(&file.path, &file.content, &draft)?;
            Ok(Written { bytes: file.content.len(), path: file.path })
        })
    })
    .category("examples")
}
