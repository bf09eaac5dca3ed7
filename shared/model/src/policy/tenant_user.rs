use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A user with only a name is serialized as a plain text, which older builds can also read.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct TenantUser {
    /// Unique within the tenant.
    pub name: String,
    /// Only lists show the roles.
    pub roles: BTreeSet<String>,
    /// Personal data: only callers who may list the tenant's users see the address.
    pub email: Option<String>,
    /// For example `active`, `invited` or `away`.
    pub status: Option<String>,
}

impl TenantUser {
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

impl fmt::Debug for TenantUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Debug output goes to logs, which must not contain email addresses.
        f.debug_struct("TenantUser").field("name", &self.name).field("roles", &self.roles).finish_non_exhaustive()
    }
}

impl From<String> for TenantUser {
    fn from(name: String) -> Self {
        Self::named(name)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Name(String),
    Whole {
        name: String,
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        roles: BTreeSet<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        email: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<String>,
    },
}

impl From<Written> for TenantUser {
    fn from(written: Written) -> Self {
        match written {
            Written::Name(name) => Self::named(name),
            Written::Whole { name, roles, email, status } => Self { name, roles, email, status },
        }
    }
}

impl From<TenantUser> for Written {
    fn from(user: TenantUser) -> Self {
        let TenantUser { name, roles, email, status } = user;
        if roles.is_empty() && email.is_none() && status.is_none() {
            Self::Name(name)
        } else {
            Self::Whole { name, roles, email, status }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_name_only_user_serializes_as_a_string_and_debug_hides_emails() {
        let plain: TenantUser = serde_json::from_str(r#""owner""#).unwrap();
        assert_eq!(serde_json::to_string(&plain).unwrap(), r#""owner""#);
        let text = r#"{"name":"Ada","roles":["owner"],"email":"ada@example.com","status":"invited"}"#;
        let whole: TenantUser = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&whole).unwrap(), text);
        assert!(!format!("{whole:?}").contains("ada@example.com"));
    }
}
