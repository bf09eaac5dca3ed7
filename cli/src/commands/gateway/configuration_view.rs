//! The configuration as operators see it.

use serde_json::{Value, json};
use tickfleet_config::{Configuration, PrintedSetting, printed_parts};

const FILE_BYTES_MAX: usize = 256 * 1024;

/// Secrets in the files are already masked. Cuts files that are longer than [`FILE_BYTES_MAX`].
pub(super) fn view(configuration: &Configuration) -> Value {
    let shown = printed_parts(configuration);
    let setting = |PrintedSetting { path, value, origin }: PrintedSetting| {
        let is_default = origin == "default";
        json!({"name": path, "value": value, "origin": origin, "is_default": is_default})
    };
    let file = |(name, text): (String, String)| {
        let cut = text.len().min(FILE_BYTES_MAX);
        // A character has at most four bytes, so one of these positions is a character boundary.
        let end = (cut.saturating_sub(3)..=cut).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        json!({"name": name, "text": text.get(..end), "bytes": text.len(), "whole": end == text.len()})
    };
    let warnings = configuration
        .warnings
        .iter()
        .map(|found| json!({"place": found.place.to_string(), "field": found.path, "message": found.message}));
    json!({
        "settings": shown.settings.into_iter().map(setting).collect::<Vec<_>>(),
        "files": shown.files.into_iter().map(file).collect::<Vec<_>>(),
        "warnings": warnings.collect::<Vec<_>>(),
        "built_in": configuration.samples(),
    })
}
