//! The console: web pages for operators, over the API in [`operate`](crate::operate). The pages are part of the program
//! and load only from this server.

mod sign_in;

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use crate::Shared;
use crate::problem::Problem;

/// Names, media types and gzipped bytes. `build.rs` writes the list.
const FILES: &[(&str, &str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/console_files.rs"));

const GUARDS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

pub(crate) fn routes() -> Router<Arc<Shared>> {
    let sign_in = get(sign_in::offer).post(sign_in::complete).layer(DefaultBodyLimit::max(sign_in::BODY_BYTES_MAX));
    Router::new()
        .route("/console", get(async || Redirect::permanent("console/")))
        .route("/console/", get(async || file("index.html")))
        .route("/console/sign-in", sign_in)
        .route("/console/{*file}", get(named))
}

async fn named(name: Result<Path<String>, PathRejection>) -> Response {
    name.map_or_else(|_| file("?"), |Path(name)| file(&name))
}

fn file(name: &str) -> Response {
    let Some((_, kind, gzipped)) = FILES.iter().find(|(known, ..)| *known == name) else {
        return Problem::not_found("no such console file").into_response();
    };
    let headers = [(header::CONTENT_TYPE, *kind), (header::CONTENT_ENCODING, "gzip")];
    let mut response = (headers, *gzipped).into_response();
    for (name, value) in GUARDS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_import_only_each_other_and_name_no_external_host() {
        for (name, kind, _) in FILES {
            let text = std::fs::read_to_string(format!("src/console/{name}")).unwrap();
            // Preact is exempt: it contains the namespace URLs of SVG and MathML, and a property that sets HTML.
            let is_foreign = name.starts_with("preact.");
            for word in ["http://", "https://", "innerHTML", "eval(", "document.cookie", "localStorage.setItem(STORED"]
            {
                let is_namespace = *kind == "image/svg+xml" && word == "http://";
                assert!(is_namespace || is_foreign || !text.contains(word), "{name} has {word}");
            }
            assert!(is_foreign || !text.contains("dangerouslySet"), "{name} sets HTML");
            for import in text.split("from \"").skip(1) {
                let wanted = import.split('"').next().unwrap_or_default();
                let own = if name.starts_with("views/") { "views/" } else { "" };
                let file = match wanted.strip_prefix("../") {
                    Some(shared) => shared.to_owned(),
                    None => format!("{own}{}", wanted.trim_start_matches("./")),
                };
                assert!(FILES.iter().any(|(known, ..)| *known == file), "{name} imports {wanted}");
            }
        }
    }

    #[test]
    fn all_files_together_have_at_most_120_kilobytes() {
        let bytes: usize = FILES.iter().map(|(.., gzipped)| gzipped.len()).sum();
        assert!((10_000..=120_000).contains(&bytes), "{bytes}");
    }
}
