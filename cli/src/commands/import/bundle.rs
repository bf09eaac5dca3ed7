//! Combines an OpenAPI document that is spread over several files. Only files in the document's folder are read, and
//! nothing is fetched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{DOCUMENT_BYTES_MAX, parse};

/// This member of the document contains the other files.
pub(super) const FILES: &str = "x-tickfleet-files";
/// Marks a reference that cannot be followed. The reason comes after the mark.
pub(super) const UNREAD: char = '!';
/// The document itself does not count.
const FILES_MAX: usize = 500;

#[derive(Default)]
pub(crate) struct Bundle {
    pub(crate) root: Value,
    /// In the order of the member [`FILES`].
    pub(super) files: Vec<String>,
}

impl From<Value> for Bundle {
    fn from(root: Value) -> Self {
        Self { root, files: Vec::new() }
    }
}

struct BundleReader {
    document: PathBuf,
    folder: PathBuf,
    /// Indexes among the other files, by path.
    known: BTreeMap<PathBuf, usize>,
    contents: Vec<Value>,
    bytes: u64,
}

pub(super) fn bundled(mut root: Value, file: &Path) -> Bundle {
    let Ok(document) = file.canonicalize() else { return root.into() };
    let folder = document.parent().map(Path::to_owned).unwrap_or_default();
    let mut reader =
        BundleReader { folder: folder.clone(), document, known: BTreeMap::new(), contents: Vec::new(), bytes: 0 };
    let mut from = folder.clone();
    reader.rewrite(&mut root, None, &from);
    let mut next = 0;
    // Each file is read only once, so circular references between files do not cause an endless loop.
    while next < reader.contents.len() {
        let mut content = std::mem::take(&mut reader.contents[next]);
        if let Some((path, _)) = reader.known.iter().find(|(_, place)| **place == next) {
            from = path.parent().map(Path::to_owned).unwrap_or_default();
        }
        reader.rewrite(&mut content, Some(next), &from);
        reader.contents[next] = content;
        next += 1;
    }
    let mut files = vec![String::new(); reader.contents.len()];
    for (path, place) in &reader.known {
        files[*place] = path.strip_prefix(&folder).unwrap_or(path).display().to_string();
    }
    if let Value::Object(members) = &mut root {
        members.insert(FILES.to_owned(), json!(reader.contents));
    }
    Bundle { root, files }
}

impl BundleReader {
    fn rewrite(&mut self, value: &mut Value, place: Option<usize>, from: &Path) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.rewrite(item, place, from)),
            Value::Object(members) => {
                for (name, member) in members {
                    match member {
                        Value::String(reference) if name == "$ref" => {
                            *reference = match self.local(reference, place, from) {
                                Ok(local) => local,
                                Err(reason) => format!("{UNREAD}{reference} {reason}"),
                            };
                        }
                        member => self.rewrite(member, place, from),
                    }
                }
            }
            _ => {}
        }
    }

    fn local(&mut self, reference: &str, place: Option<usize>, from: &Path) -> Result<String, String> {
        let (file, pointer) = reference.split_once('#').unwrap_or((reference, ""));
        let place = match file {
            "" => place,
            file if file.contains("://") || file.starts_with("//") => {
                return Err("is on the network; only files beside the document are read".to_owned());
            }
            file => self.place(&from.join(file))?,
        };
        Ok(place.map_or_else(|| format!("#{pointer}"), |place| format!("#/{FILES}/{place}{pointer}")))
    }

    /// Returns the index among the other files; `None` for the document itself.
    fn place(&mut self, path: &Path) -> Result<Option<usize>, String> {
        let path = path.canonicalize().map_err(|error| format!("cannot be read: {error}"))?;
        if path == self.document {
            return Ok(None);
        }
        if !path.starts_with(&self.folder) {
            return Err("is outside the document's folder, and is not read".to_owned());
        }
        if let Some(place) = self.known.get(&path) {
            return Ok(Some(*place));
        }
        if self.contents.len() >= FILES_MAX {
            return Err(format!("is not read: the document has more than {FILES_MAX} files"));
        }
        let metadata = std::fs::metadata(&path).map_err(|error| format!("cannot be read: {error}"))?;
        if !metadata.is_file() {
            return Err("is not a file".to_owned());
        }
        self.bytes = self.bytes.saturating_add(metadata.len());
        if self.bytes > DOCUMENT_BYTES_MAX {
            return Err(format!("is not read: the document's files have more than {} MiB", DOCUMENT_BYTES_MAX >> 20));
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot be read: {error}"))?;
        let content = parse(&text).map_err(|error| format!("cannot be read: {error}"))?;
        let place = self.contents.len();
        self.contents.push(content);
        self.known.insert(path, place);
        Ok(Some(place))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;

    use super::super::{Import, Report, ToolBuilder, imported};
    use super::*;

    const DOCUMENT: &str = r##"
openapi: 3.0.0
info: {title: D, version: "1"}
servers: [{url: "https://api.example.com"}]
paths:
  /v2/machines:
    delete: {$ref: resources/delete_by_tag.yml}
    post: {$ref: resources/missing.yml}
    patch: {$ref: "https://api.example.com/patch.yml"}
    put: {$ref: ../outside.yml}
  /v2/machines/{id}:
    get: {$ref: "resources/get.yml"}
    delete: {$ref: resources/loop.yml}
  /v2/images: {$ref: "paths.yml#/images"}
  /v2/keys: {$ref: "paths.yml#/none"}
  /v2/sizes:
    parameters: [{$ref: "paths.yml#/none"}]
    delete: {operationId: deleteSizes}
    get: nothing
  /v2/tags: {get: {operationId: tags, parameters: {name: tag}}}
  /v2/bad:
    get: {operationId: bad, parameters: [{name: q, in: query, schema: {$ref: "none.yml"}}]}
    delete: {operationId: worse, parameters: [{name: filter, in: query, schema: {type: object}}]}
  /v2/beside:
    $ref: "paths.yml#/images"
    parameters: [{name: dry, in: query, schema: {type: boolean}}]
  /v2/fine: {get: {operationId: fine}}
"##;

    fn report(document: &str, files: &[(&str, &str)]) -> Report {
        // The HTTP clients of tools need the crypto provider.
        tickfleet_outbound::install_crypto_provider();
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("api");
        std::fs::create_dir_all(inner.join("resources/shared")).unwrap();
        std::fs::write(folder.path().join("outside.yml"), "operationId: outside").unwrap();
        for (name, content) in files {
            std::fs::write(inner.join(name), content).unwrap();
        }
        let file = inner.join("openapi.yaml");
        std::fs::write(&file, document).unwrap();
        let bundle = bundled(parse(document).unwrap(), &file);
        imported(bundle, &Import::default(), &BTreeSet::new(), &ToolBuilder::new()).unwrap()
    }

    #[test]
    fn operations_in_other_files_are_complete_or_skipped_with_a_reason() {
        let report = report(
            DOCUMENT,
            &[
                (
                    "resources/delete_by_tag.yml",
                    "operationId: deleteByTag\nparameters: [{$ref: 'shared/tag.yml#/tag'}]\n",
                ),
                (
                    "resources/shared/tag.yml",
                    "tag: {name: tag, in: query, required: true, schema: {$ref: '#/schema'}}\nschema: {type: string, maxLength: 9}\n",
                ),
                (
                    "resources/get.yml",
                    "operationId: getMachine\nparameters: [{name: id, in: path, required: true, schema: {type: integer}}]\n",
                ),
                ("resources/loop.yml", "$ref: loop.yml"),
                (
                    "paths.yml",
                    "images: {get: {operationId: images, parameters: [{$ref: 'openapi.yaml#/none'}, {name: q, in: query, schema: {type: string}}]}}\n",
                ),
            ],
        );
        let arguments = |tool: &str| report.tools[tool]["input_schema"].clone();
        let tools: Vec<&String> = report.tools.keys().collect();
        assert_eq!(tools, ["deleteByTag", "fine", "getMachine"], "{:#?}", report.left_out);
        assert_eq!(arguments("deleteByTag")["properties"], json!({"tag": {"type": "string", "maxLength": 9}}));
        assert_eq!(arguments("deleteByTag")["required"], json!(["tag"]));
        assert_eq!(arguments("getMachine")["required"], json!(["id"]));
        let left_out: BTreeMap<&str, &str> =
            report.left_out.iter().map(|(name, why)| (name.as_str(), why.as_str())).collect();
        for (name, why) in [
            ("POST /v2/machines", "resources/missing.yml cannot be read"),
            ("PATCH /v2/machines", "is on the network"),
            ("PUT /v2/machines", "outside the document's folder"),
            ("DELETE /v2/machines/{id}", "is circular"),
            ("GET /v2/images (images)", "#/none points to nothing"),
            ("/v2/keys", "paths.yml#/none points to nothing"),
            ("DELETE /v2/sizes (deleteSizes)", "paths.yml#/none points to nothing"),
            ("GET /v2/sizes", "is not an object"),
            ("GET /v2/tags (tags)", "parameters are not a list"),
            ("GET /v2/bad (bad)", "none.yml cannot be read"),
            ("DELETE /v2/bad (worse)", "query parameter filter is an object"),
            ("/v2/beside", "beside its reference"),
        ] {
            assert!(left_out.get(name).is_some_and(|got| got.contains(why)), "{name}: {left_out:#?}");
        }
        assert_eq!(left_out.len(), 12, "{left_out:#?}");
    }
}
