//! What a token grants: rules about its claims, in a file. The first rule whose claims all fit decides; where none fits,
//! nothing is granted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value};
use tickfleet_model::{AgentId, TenantId};

use crate::verbs::{Grant, Held, Rate, Role, Verb, Whose, is_pattern};

/// Bytes of the file.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;
/// Agents that a claim names.
const AGENTS_MAX: usize = 256;

/// The claims of a token that is good.
pub(super) type Claims = Map<String, Value>;

/// The rules of a file, in its order.
#[derive(Debug, Default)]
pub(super) struct Rules {
    rules: Vec<Rule>,
}

/// One rule: whom it is for, and what they may.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// For people and messages.
    name: String,
    /// Claims and what each must be: a text, with a * at the end for all that begin so; a number; true or false. Of a list
    /// of texts, one must fit.
    claims: BTreeMap<String, Value>,
    /// The tenant, or `*`.
    tenant: Option<Whose>,
    /// The claim that names the tenant.
    tenant_claim: Option<String>,
    /// Agents as a key's row has them.
    agents: Option<Vec<String>>,
    /// The claim that names agents: a text or a list of texts.
    agents_claim: Option<String>,
    /// What it may do, as a role of operators.
    role: Option<Role>,
    /// What it may do, verb by verb.
    verbs: Option<BTreeSet<Verb>>,
    /// The approver that decides.
    approver: Option<String>,
    /// The claim that names the approver.
    approver_claim: Option<String>,
    /// How many requests each of those may send through one gateway whom such tokens name.
    rate: Option<Rate>,
}

/// One of two fields: what is given, or the claim that it is taken from.
enum From<'a, T> {
    Given(&'a T),
    Claim(&'a str),
}

/// # Errors
/// Both are there, or none is.
fn one_of<'a, T>(name: &str, given: Option<&'a T>, claim: Option<&'a String>) -> Result<From<'a, T>, String> {
    match (given, claim) {
        (Some(given), None) => Ok(From::Given(given)),
        (None, Some(claim)) => Ok(From::Claim(claim)),
        _ => Err(format!("{name} or {name}_claim: expected one of the two")),
    }
}

impl Rules {
    /// Reads the text of a file, YAML: a list of rules.
    ///
    /// # Errors
    /// What is wrong with it, with the line where that is known.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let rules: Option<Vec<Rule>> = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
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

    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.rules.len()
    }

    /// What these claims grant to whom they name `id`, but for when that ends.
    ///
    /// # Errors
    /// No rule fits, or the one that does takes something from a claim that is not there or says nothing of use.
    pub(super) fn grant(&self, id: String, claims: &Claims) -> Result<Grant, String> {
        let rule = self.rules.iter().find(|rule| rule.fits(claims));
        let rule = rule.ok_or("access denied: no rule of the gateway matches the token's claims")?;
        rule.grant(id, claims).map_err(|problem| format!("access denied by rule {:?}: {problem}", rule.name))
    }
}

impl Rule {
    /// A rule that could never grant anything, or that says more than it means, is refused with the file.
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
        // As if each claim that something is taken from said something of use.
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
            From::Given(tenant) => tenant.clone(),
            // Never all of them: that is for the file to say.
            From::Claim(name) => Whose::One(TenantId::new(text(claims, name)?).map_err(|error| error.to_string())?),
        };
        let verbs = match (self.role, &self.verbs) {
            (Some(role), None) => role.verbs(),
            (None, Some(verbs)) => verbs.clone(),
            _ => return Err("role or verbs: expected one of the two".into()),
        };
        let agents = match (&self.agents, &self.agents_claim) {
            // What operators look at and do is not divided by agents.
            (None, None) if self.role.is_some() => vec!["*".into()],
            (agents, claim) => match one_of("agents", agents.as_ref(), claim.as_ref())? {
                From::Given(agents) => agents.clone(),
                From::Claim(name) => agents_in(claims, name)?,
            },
        };
        let approver = match (&self.approver, &self.approver_claim) {
            (None, None) => None,
            (approver, claim) => match one_of("approver", approver.as_ref(), claim.as_ref())? {
                From::Given(approver) => Some(approver.clone()),
                From::Claim(name) => Some(text(claims, name)?.to_owned()),
            },
        };
        let grant = Grant { id, held: Held::Token, tenant, agents, verbs, approver, rate: self.rate, expires: None };
        grant.check().map(|()| grant)
    }
}

/// A claim by its name; a name that is none leads into objects, part by part: `realm_access.roles`.
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

/// The text that a claim is.
pub(super) fn text<'a>(claims: &'a Claims, name: &str) -> Result<&'a str, String> {
    let found = claim(claims, name).and_then(Value::as_str).filter(|text| !text.is_empty());
    found.ok_or_else(|| format!("the claim {name:?}: expected a text"))
}

/// The agents that a claim names: each as it is called, none by a pattern.
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
