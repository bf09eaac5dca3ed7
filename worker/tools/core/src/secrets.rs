//! Secrets: read for each use, sent only in requests, and removed from every response.

mod encodings;
mod escapes;
mod matcher;

use std::collections::BTreeMap;
use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use tickfleet_config::tools::{SecretRef, TENANT};
use tickfleet_model::TenantId;

use self::matcher::SecretMatcher;
use super::Environment;
use super::percent;

const REDACTED: &str = "[REDACTED]";
/// A larger file counts as unreadable.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The secrets of one request.
#[derive(Default)]
pub struct Secrets {
    named: BTreeMap<String, SecretString>,
    /// Templates cannot use this token, but it is removed from responses.
    token: Option<SecretString>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.named.keys()).finish()
    }
}

impl Secrets {
    /// Reads every secret again, because a mounted file may have changed. The error names the first missing secret.
    pub async fn resolve(
        references: &BTreeMap<String, SecretRef>,
        environment: &Environment,
        tenant: Option<&TenantId>,
    ) -> Result<Self, String> {
        let mut named = BTreeMap::new();
        for (name, reference) in references {
            let value = match reference {
                SecretRef::Env(variable) => {
                    for_tenant(variable, tenant, in_variable).and_then(|variable| environment.get(&variable))
                }
                SecretRef::File(path) => match for_tenant(path, tenant, in_path) {
                    Some(path) => read(&path).await,
                    None => None,
                },
            };
            let value = value.filter(|v| !v.is_empty()).ok_or_else(|| name.clone())?;
            named.insert(name.clone(), SecretString::from(value));
        }
        Ok(Self { named, token: None })
    }

    /// Makes secrets with the given values, for tests.
    #[must_use]
    pub fn of<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let named = secrets.into_iter().map(|(name, value)| (name.to_owned(), SecretString::from(value)));
        Self { named: named.collect(), token: None }
    }

    /// Returns these secrets with an access token that is also removed from responses.
    pub fn with_token(&self, token: &SecretString) -> Self {
        Self { named: self.named.clone(), token: Some(token.clone()) }
    }

    /// Returns the value of a secret.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.named.get(name).map(ExposeSecret::expose_secret)
    }

    /// Replaces every secret in `text`, in each encoding that a service might use.
    pub fn scrub(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        let mut copied = 0;
        for (start, end) in SecretMatcher::of(self.values()).found(text) {
            clean.push_str(&text[copied..start]);
            clean.push_str(REDACTED);
            copied = end;
        }
        clean.push_str(&text[copied..]);
        clean
    }

    fn values(&self) -> impl Iterator<Item = &str> {
        self.named.values().chain(&self.token).map(ExposeSecret::expose_secret)
    }

    /// Replaces every `${NAME}` in `template`. Unknown names stay, but loading the configuration rejects them.
    #[must_use]
    pub fn fill(&self, template: &str) -> String {
        let mut filled = String::with_capacity(template.len());
        let mut rest = template;
        while let Some((before, reference, after)) =
            rest.split_once("${").and_then(|(b, r)| r.split_once('}').map(|(name, a)| (b, name, a)))
        {
            filled.push_str(before);
            match self.get(reference) {
                Some(value) => filled.push_str(value),
                None => filled.push_str(&format!("${{{reference}}}")),
            }
            rest = after;
        }
        filled + rest
    }

    /// True if `text` contains a secret in any encoding.
    pub fn found_in(&self, text: &str) -> bool {
        !SecretMatcher::of(self.values()).found(text).is_empty()
    }
}

/// `None` if the reference contains `{tenant}` but `tenant` is `None`.
fn for_tenant(reference: &str, tenant: Option<&TenantId>, encoded: fn(&TenantId) -> String) -> Option<String> {
    match tenant {
        Some(tenant) => Some(reference.replace(TENANT, &encoded(tenant))),
        None => (!reference.contains(TENANT)).then(|| reference.to_owned()),
    }
}

/// `atlas-ux` becomes `atlas_2Dux`. Even `_` is encoded, so that no two tenants share a variable.
fn in_variable(tenant: &TenantId) -> String {
    percent::percent_encoded(tenant.as_str(), "").chars().fold(String::new(), |mut name, c| {
        match c {
            // Percent-encoding leaves these characters unchanged.
            '-' | '.' | '_' | '~' => name.push_str(&format!("_{:02X}", u32::from(c))),
            '%' => name.push('_'),
            plain => name.push(plain),
        }
        name
    })
}

/// A leading `.` (a hidden file, or the parent folder) becomes `%2E`.
fn in_path(tenant: &TenantId) -> String {
    let name = percent::percent_encoded(tenant.as_str(), "");
    name.strip_prefix('.').map(|rest| format!("%2E{rest}")).unwrap_or(name)
}

/// Drops the final line breaks. `None` if the file is too large or is not text.
async fn read(path: &str) -> Option<String> {
    let size = tokio::fs::metadata(path).await.ok().filter(std::fs::Metadata::is_file)?.len();
    if size > FILE_BYTES_MAX {
        return None;
    }
    let text = tokio::fs::read_to_string(path).await.ok()?;
    Some(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_secret_reference_is_filled_once_and_not_recursively() {
        let secrets = Secrets::of([("A", "${B}"), ("B", "two")]);
        assert_eq!(secrets.fill("Bearer ${A}, ${B}; ${C} ${"), "Bearer ${B}, two; ${C} ${");
        assert_eq!(secrets.scrub("token ${B}!"), "token [REDACTED]!");
    }

    #[test]
    fn an_echoed_secret_is_redacted_in_every_encoding() {
        let secrets = Secrets::of([("TOKEN", "12:ab/c+\"d")]);
        for echo in ["12:ab/c+\"d", "12%3Aab%2Fc%2B%22d", "12:ab/c+\\\"d", "12:ab\\/c+\\\"d", "12:ab%2Fc+%22d"] {
            assert_eq!(secrets.scrub(&format!("<{echo}>")), "<[REDACTED]>", "{echo}");
            assert!(secrets.found_in(echo));
        }
        for echo in ["12:ab\\u002Fc\\u002b\\u0022d", "\\u0031\\u0032:ab/c+\\\"d", "12:ab\\/c\\u002B\\\"\\u0064"] {
            assert_eq!(secrets.scrub(&format!("é\\n{echo}\\u00e9")), "é\\n[REDACTED]\\u00e9", "{echo}");
        }
        for echo in [
            // Base64 of `kim:12:ab/c+"d`, then Base64 of the same text with `x` and with `xx` in front of it.
            "a2ltOjEyOmFiL2MrImQ=",
            "eGtpbToxMjphYi9jKyJk",
            "eHhraW06MTI6YWIvYysiZA==",
            // Base64url of the percent-encoded form.
            "MTIlM0FhYiUyRmMlMkIlMjJk",
            "31323a61622f632b2264",
            "31323A61622F632B2264",
            "12%3aab%2fc%2b%22d",
            "12:ab/c+&quot;d",
            "12&#58;ab&#x2f;c&plus;&#34;d",
            "12:ab\\u002fc+\\\\\\\"d",
        ] {
            let clean = secrets.scrub(echo);
            assert!(clean.contains("[REDACTED]") && clean.len() <= "[REDACTED]".len() + 11, "{echo}: {clean}");
            assert!(secrets.found_in(echo), "{echo}");
        }
        assert_eq!(secrets.scrub("12:ab\\u002Fc+ \\ud83d\\ude00 \\u12"), "12:ab\\u002Fc+ \\ud83d\\ude00 \\u12");
        assert_eq!(format!("{secrets:?}"), r#"{"TOKEN"}"#);
    }

    #[tokio::test]
    async fn a_secret_file_is_read_on_each_use_and_an_empty_one_is_missing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_string_lossy().into_owned();
        let references = BTreeMap::from([("KEY".to_owned(), SecretRef::File(path.clone()))]);
        let environment = Environment::of([]);
        let acme = TenantId::new("acme").unwrap();
        let resolve = || Secrets::resolve(&references, &environment, Some(&acme));
        assert_eq!(resolve().await.unwrap_err(), "KEY", "an empty file is no secret");
        std::fs::write(&path, "first\n").unwrap();
        assert_eq!(resolve().await.unwrap().get("KEY"), Some("first"));
        std::fs::write(&path, "second\r\n").unwrap();
        assert_eq!(resolve().await.unwrap().get("KEY"), Some("second"));
    }

    #[tokio::test]
    async fn each_tenant_gets_only_its_own_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::fs::write(folder.path().join("key-acme"), "file of acme").unwrap();
        std::fs::write(folder.path().join("outside"), "not theirs").unwrap();
        let references = BTreeMap::from([
            ("ENV".to_owned(), SecretRef::Env(format!("KEY_{TENANT}"))),
            ("FILE".to_owned(), SecretRef::File(format!("{path}/key-{TENANT}"))),
        ]);
        let environment = Environment::of([("KEY_acme", "env of acme"), ("KEY_atlas_2Dux", "with a dash")]);
        let resolve = async |tenant: &str, references: &BTreeMap<String, SecretRef>| {
            let tenant = TenantId::new(tenant).unwrap();
            Secrets::resolve(references, &environment, Some(&tenant)).await
        };
        let acme = resolve("acme", &references).await.unwrap();
        assert_eq!((acme.get("ENV"), acme.get("FILE")), (Some("env of acme"), Some("file of acme")));
        assert!(Secrets::resolve(&references, &environment, None).await.is_err(), "without a tenant there is none");
        assert_eq!(resolve("other", &references).await.unwrap_err(), "ENV", "there is no default");
        let env = BTreeMap::from([references.first_key_value().map(|(k, v)| (k.clone(), v.clone())).unwrap()]);
        assert_eq!(resolve("atlas-ux", &env).await.unwrap().get("ENV"), Some("with a dash"));
        assert!(resolve("atlas_2Dux", &env).await.is_err(), "a tenant named like another's variable");
        let above = BTreeMap::from([("A".to_owned(), SecretRef::File(format!("{path}/inner/{TENANT}/outside")))]);
        assert!(resolve("..", &above).await.is_err(), "a tenant does not climb");
        for (tenant, variable, file) in
            [("a.b", "a_2Eb", "a.b"), ("a_2Eb", "a_5F2Eb", "a_2Eb"), ("..", "_2E_2E", "%2E.")]
        {
            let tenant = TenantId::new(tenant).unwrap();
            assert_eq!((in_variable(&tenant).as_str(), in_path(&tenant).as_str()), (variable, file));
        }
    }
}
