//! Converts security schemes into references to secrets.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::schema::Document;

#[derive(Default)]
pub(super) struct ImportedCredentials {
    pub(super) headers: BTreeMap<String, String>,
    pub(super) query: BTreeMap<String, String>,
    pub(super) oauth2: Option<Value>,
    pub(super) secrets: BTreeMap<String, Value>,
    pub(super) notes: Vec<String>,
}

pub(super) struct SecretNaming {
    pub(super) prefix: String,
    pub(super) per_tenant: bool,
}

impl SecretNaming {
    fn secret(&self, scheme: &str, what: &str) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        // The document chooses the names of its schemes. Without a prefix, a scheme name could match a variable that
        // the worker uses for another purpose, such as `REDIS_URL`. A variable name must not begin with a digit.
        let prefix = if self.prefix.is_empty() { "IMPORTED_" } else { &self.prefix };
        let name: String = format!("{prefix}{scheme}{what}").chars().map(plain).collect();
        if name.starts_with(|c: char| c.is_ascii_digit()) { format!("S_{name}") } else { name }
    }

    fn reference(&self, name: &str) -> Value {
        let tenant = if self.per_tenant { "_{tenant}" } else { "" };
        json!({ "env": format!("{name}{tenant}") })
    }
}

/// Takes the first alternative that tools can use. The error is the reason why tools cannot use the first alternative.
pub(super) fn signing(
    document: &Document,
    operation: &Value,
    naming: &SecretNaming,
) -> Result<ImportedCredentials, String> {
    let wanted = operation.get("security").or_else(|| document.root.get("security")).and_then(Value::as_array);
    let Some(ways) = wanted.filter(|ways| !ways.is_empty()) else { return Ok(ImportedCredentials::default()) };
    let mut why = None;
    for way in ways {
        match together(document, way, naming) {
            Ok(signing) => return Ok(signing),
            Err(reason) => why = why.or(Some(reason)),
        }
    }
    Err(why.unwrap_or_default())
}

/// A request needs all schemes of one alternative.
fn together(document: &Document, way: &Value, naming: &SecretNaming) -> Result<ImportedCredentials, String> {
    let mut signing = ImportedCredentials::default();
    for (name, scopes) in way.as_object().into_iter().flatten() {
        let scheme = document.root.pointer("/components/securitySchemes").and_then(|schemes| schemes.get(name));
        let scheme = document.follow(scheme.ok_or_else(|| format!("the security scheme {name} is not declared"))?)?;
        signing.add(name, scheme, scopes, naming)?;
    }
    let authorization = signing.headers.keys().any(|header| header.eq_ignore_ascii_case("authorization"));
    if authorization && signing.oauth2.is_some() {
        return Err("two security schemes need the header Authorization".to_owned());
    }
    Ok(signing)
}

impl ImportedCredentials {
    fn add(&mut self, name: &str, scheme: &Value, scopes: &Value, naming: &SecretNaming) -> Result<(), String> {
        let text = |key: &str| scheme.get(key).and_then(Value::as_str).unwrap_or_default();
        let http = text("scheme").to_ascii_lowercase();
        match (text("type"), text("in"), http.as_str()) {
            ("apiKey", place, _) => {
                let value = self.secret(name, "", naming);
                let key = text("name").to_owned();
                match place {
                    "header" => drop(self.headers.insert(key, value)),
                    "query" => drop(self.query.insert(key, value)),
                    "cookie" => drop(self.headers.insert("Cookie".to_owned(), format!("{key}={value}"))),
                    odd => return Err(format!("the security scheme {name} is in {odd:?}")),
                }
            }
            ("http", _, "bearer") => {
                let value = self.secret(name, "", naming);
                self.headers.insert("Authorization".to_owned(), format!("Bearer {value}"));
            }
            ("http", _, "basic") => {
                let value = self.secret(name, "_BASE64", naming);
                self.notes.push(format!("{value} is the base64 of user:password"));
                self.headers.insert("Authorization".to_owned(), format!("Basic {value}"));
            }
            ("oauth2", ..) => self.oauth2(name, scheme, scopes, naming)?,
            (kind, ..) => {
                let kind = format!("{kind} {http}");
                return Err(format!("tools cannot use the security scheme {name} ({})", kind.trim()));
            }
        }
        Ok(())
    }

    fn oauth2(&mut self, name: &str, scheme: &Value, scopes: &Value, naming: &SecretNaming) -> Result<(), String> {
        let flow = |flow: &str| scheme.get("flows").and_then(|flows| flows.get(flow));
        let (grant, flow) = match (flow("clientCredentials"), flow("authorizationCode")) {
            (Some(flow), _) => ("client_credentials", flow),
            (None, Some(flow)) => ("refresh_token", flow),
            _ => return Err(format!("the security scheme {name} has no OAuth 2 flow that works without a user")),
        };
        let url = |key: &str| flow.get(key).and_then(Value::as_str);
        let token_url = if grant == "refresh_token" { url("refreshUrl").or(url("tokenUrl")) } else { url("tokenUrl") };
        let token_url = token_url.filter(|url| url.starts_with("https://") || url.starts_with("http://"));
        let token_url = token_url.ok_or_else(|| format!("the security scheme {name} has no absolute tokenUrl"))?;
        let mut oauth2 = json!({
            "grant": grant,
            "token_url": token_url,
            "client_id": self.secret(name, "_CLIENT_ID", naming),
            "client_secret": self.secret(name, "_CLIENT_SECRET", naming),
        });
        if grant == "refresh_token" {
            oauth2["refresh_token"] = self.secret(name, "_REFRESH_TOKEN", naming).into();
        }
        let scopes: Vec<&str> = scopes.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        // Only this grant requests scopes: a refresh token already has the scopes to which its owner agreed.
        if !scopes.is_empty() && grant == "client_credentials" {
            oauth2["scope"] = scopes.join(" ").into();
        }
        if self.oauth2.replace(oauth2).is_some() {
            return Err("two security schemes sign in with OAuth 2".to_owned());
        }
        Ok(())
    }

    fn secret(&mut self, scheme: &str, what: &str, naming: &SecretNaming) -> String {
        let name = naming.secret(scheme, what);
        let reference = naming.reference(&name);
        let text = format!("${{{name}}}");
        self.secrets.insert(name, reference);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imported_secret_names_are_prefixed_to_avoid_collisions() {
        let named =
            |prefix: &str, scheme: &str| SecretNaming { prefix: prefix.into(), per_tenant: false }.secret(scheme, "");
        assert_eq!(named("", "REDIS_URL"), "IMPORTED_REDIS_URL");
        assert_eq!(named("", "aws secret/access key"), "IMPORTED_AWS_SECRET_ACCESS_KEY");
        assert_eq!(named("shop_", "key"), "SHOP_KEY");
        assert_eq!(named("1_", "key"), "S_1_KEY");
    }
}
