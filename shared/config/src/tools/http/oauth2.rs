//! Reads `http.oauth2`.

use std::collections::BTreeMap;

use crate::document::reader::Cursor;
use crate::tools::http::values::service_url;
use crate::tools::templates::Templates;
use crate::tools::{ClientAuth, Grant, OAuth2Def};

const GRANTS: [(&str, Grant); 2] =
    [("client_credentials", Grant::ClientCredentials), ("refresh_token", Grant::RefreshToken)];
const CLIENT_AUTHS: [(&str, ClientAuth); 2] = [("basic", ClientAuth::Basic), ("body", ClientAuth::Body)];
/// Other settings define these fields, so `params` must not contain them.
const OWN_FIELDS: [&str; 5] = ["grant_type", "client_id", "client_secret", "refresh_token", "scope"];

pub(crate) fn read(cursor: &Cursor<'_>, templates: &Templates<'_>) -> Option<OAuth2Def> {
    let mut s = cursor.section();
    let grant = s.required("grant").and_then(|c| c.choice(&GRANTS));
    let token_url = s.required("token_url").and_then(|c| service_url(&c).map(str::to_owned));
    let client_id = s.required("client_id").and_then(|c| templates.of_secrets(&c));
    let password = match grant {
        // A client that acts on its own behalf must authenticate.
        Some(Grant::ClientCredentials) => s.required("client_secret"),
        Some(Grant::RefreshToken) | None => s.optional("client_secret"),
    };
    let refresh_token = match grant {
        Some(Grant::RefreshToken) => s.required("refresh_token"),
        Some(Grant::ClientCredentials) | None => s.optional("refresh_token"),
    };
    if let (Some(Grant::ClientCredentials), Some(refresh_token)) = (grant, &refresh_token) {
        refresh_token.refuse("no refresh_token with the grant client_credentials");
    }
    let rest = OAuth2Def {
        grant: grant.unwrap_or(Grant::ClientCredentials),
        token_url: token_url.clone().unwrap_or_default(),
        client_id: client_id.as_ref().map(|(text, _)| text.clone()).unwrap_or_default(),
        client_secret: password.and_then(|c| secret(&c, templates)),
        refresh_token: refresh_token.and_then(|c| secret(&c, templates)),
        scope: s.optional("scope").and_then(|c| templates.of_secrets(&c)).map(|(text, _)| text),
        params: s.optional("params").map(|c| params(&c, templates)).unwrap_or_default(),
        client_auth: s.optional("client_auth").and_then(|c| c.choice(&CLIENT_AUTHS)).unwrap_or_default(),
    };
    s.close();
    (grant.is_some() && token_url.is_some() && client_id.is_some()).then_some(rest)
}

fn secret(cursor: &Cursor<'_>, templates: &Templates<'_>) -> Option<String> {
    let (text, names_one) = templates.of_secrets(cursor)?;
    if !names_one {
        // The text may be the secret itself, so the error does not show it.
        let expected = "a reference such as ${CLIENT_SECRET} to one declared under `secrets`";
        cursor.errors.push(&cursor.node.place, &cursor.path, "a text without a reference", expected);
    }
    Some(text)
}

fn params(cursor: &Cursor<'_>, templates: &Templates<'_>) -> BTreeMap<String, String> {
    let mut params = BTreeMap::new();
    for (name, _, value) in cursor.members() {
        if OWN_FIELDS.contains(&name) {
            value.refuse(format!("a field of oauth2 itself for {name}"));
        }
        params.extend(templates.of_secrets(&value).map(|(text, _)| (name.to_owned(), text)));
    }
    params
}
