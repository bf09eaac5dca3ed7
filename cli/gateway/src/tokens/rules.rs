//! Rules that map the claims of tokens to permissions. The first matching rule decides. If no rule matches, the token
//! grants nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value};
use tickfleet_model::{AgentId, TenantId};

use crate::verbs::{CredentialKind, Grant, Rate, Role, TenantScope, Verb, is_pattern};

pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;
const AGENTS_MAX: usize = 256;

pub(super) type Claims = Map<String, Value>;

#[derive(Debug, Default)]
pub(super) struct GrantRules {
    rules: Vec<GrantRule>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantRule {
    name: String,
    /// Required values: a text (`*` at its end: any text with that prefix), a number, true or false. If the claim is a
    /// list, one element must match.
    claims: BTreeMap<String, Value>,
    tenant: Option<TenantScope>,
    tenant_claim: Option<String>,
    /// In the format of `agents` in a row of the key file.
    agents: Option<Vec<String>>,
    /// The claim has a text or a list of texts.
    agents_claim: Option<String>,
    role: Option<Role>,
    verbs: Option<BTreeSet<Verb>>,
    approver: Option<String>,
    approver_claim: Option<String>,
    rate: Option<Rate>,
}

enum FieldSource<'a, T> {
    Fixed(&'a T),
    Claim(&'a str),
}

fn one_of<'a, T>(name: &str, given: Option<&'a T>, claim: Option<&'a String>) -> Result<FieldSource<'a, T>, String> {
    match (given, claim) {
        (Some(given), None) => Ok(FieldSource::Fixed(given)),
        (None, Some(claim)) => Ok(FieldSource::Claim(claim)),
        _ => Err(format!("{name} or {name}_claim: expected one of the two")),
    }
}

impl GrantRules {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let rules: Option<Vec<GrantRule>> = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let rules = rules.unwrap_or_default();
        let mut names = BTreeSet::new();
        for rule in &rules {
            rule.check().map_err(|problem| format!("rule {:?}: {problem}", rule.name))?;
            if !names.insert(rule.name.as_str()) {
                return Err(format!("two rules have the name {:?}", rule.name));
            }
        }
        Ok(Self { rules })
    }

    pub(super) const fn len(&self) -> usize {
        self.rules.len()
    }

    /// Fails if no rule matches, or if the matching rule reads a claim that is missing or unusable.
    pub(super) fn grant(&self, id: String, claims: &Claims) -> Result<Grant, String> {
        let rule = self.rules.iter().find(|rule| rule.fits(claims));
        let rule = rule.ok_or("access denied: no rule of the gateway matches the token's claims")?;
        rule.grant(id, claims).map_err(|problem| format!("access denied by rule {:?}: {problem}", rule.name))
    }
}

impl GrantRule {
    /// A rule that could never grant anything makes the whole file invalid.
    fn check(&self) -> Result<(), String> {
        if self.claims.is_empty() {
            return Err("claims: expected at least one; sub: \"*\" matches every user of the issuer".into());
        }
        let is_plain = |wanted: &Value| match wanted {
            Value::String(text) => is_pattern(text),
            Value::Bool(_) | Value::Number(_) => true,
            _ => false,
        };
        if let Some((claim, _)) = self.claims.iter().find(|(_, wanted)| !is_plain(wanted)) {
            return Err(format!(
                "claims: {claim}: expected a text with at most a * at its end, a number, true or false"
            ));
        }
        // Try the rule with a usable value in each claim that the rule reads.
        let some = || Value::String("x".into());
        let named = [&self.tenant_claim, &self.agents_claim, &self.approver_claim];
        let claims = named.into_iter().flatten().map(|claim| (claim.clone(), some())).collect();
        self.grant("x".into(), &claims).map(|_| ())
    }

    fn fits(&self, claims: &Claims) -> bool {
        self.claims.iter().all(|(name, wanted)| claim(claims, name).is_some_and(|found| fits(wanted, found)))
    }

    fn grant(&self, id: String, claims: &Claims) -> Result<Grant, String> {
        let tenant = match one_of("tenant", self.tenant.as_ref(), self.tenant_claim.as_ref())? {
            FieldSource::Fixed(tenant) => tenant.clone(),
            // A claim names one tenant: only the file can grant all tenants.
            FieldSource::Claim(name) => {
                TenantScope::One(TenantId::new(text(claims, name)?).map_err(|error| error.to_string())?)
            }
        };
        let verbs = match (self.role, &self.verbs) {
            (Some(role), None) => role.verbs(),
            (None, Some(verbs)) => verbs.clone(),
            _ => return Err("role or verbs: expected one of the two".into()),
        };
        let agents = match (&self.agents, &self.agents_claim) {
            (None, None) if self.role.is_some() => vec!["*".into()],
            (agents, claim) => match one_of("agents", agents.as_ref(), claim.as_ref())? {
                FieldSource::Fixed(agents) => agents.clone(),
                FieldSource::Claim(name) => agents_in(claims, name)?,
            },
        };
        let approver = match (&self.approver, &self.approver_claim) {
            (None, None) => None,
            (approver, claim) => match one_of("approver", approver.as_ref(), claim.as_ref())? {
                FieldSource::Fixed(approver) => Some(approver.clone()),
                FieldSource::Claim(name) => Some(text(claims, name)?.to_owned()),
            },
        };
        let grant = Grant {
            id,
            credential: CredentialKind::Token,
            tenant,
            agents,
            verbs,
            approver,
            rate: self.rate,
            expires: None,
        };
        grant.check().map(|()| grant)
    }
}

/// If no claim has the name, its dotted parts select members of nested objects: `realm_access.roles`.
pub(super) fn claim<'a>(claims: &'a Claims, name: &str) -> Option<&'a Value> {
    claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        claims.get(first)?.as_object().and_then(|within| claim(within, rest))
    })
}

fn fits(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::String(wanted), Value::String(found)) => match wanted.strip_suffix('*') {
            Some(beginning) => !found.is_empty() && found.starts_with(beginning),
            None => wanted == found,
        },
        (wanted, Value::Array(found)) => found.iter().any(|one| !one.is_array() && fits(wanted, one)),
        (wanted, found) => wanted == found,
    }
}

pub(super) fn text<'a>(claims: &'a Claims, name: &str) -> Result<&'a str, String> {
    let found = claim(claims, name).and_then(Value::as_str).filter(|text| !text.is_empty());
    found.ok_or_else(|| format!("the claim {name:?}: expected a text"))
}

/// Accepts names only, no patterns.
fn agents_in(claims: &Claims, name: &str) -> Result<Vec<String>, String> {
    let expected = || format!("the claim {name:?}: expected an agent, or 1 to {AGENTS_MAX} of them");
    let found = match claim(claims, name) {
        Some(Value::Array(found)) => found.as_slice(),
        Some(found) => std::slice::from_ref(found),
        None => &[],
    };
    if found.is_empty() || found.len() > AGENTS_MAX {
        return Err(expected());
    }
    let one = |agent: &Value| AgentId::new(agent.as_str()?).ok().map(|agent| agent.to_string());
    found.iter().map(one).collect::<Option<_>>().ok_or_else(expected)
}
