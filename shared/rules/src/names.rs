//! Checks the names in a condition against the input schema of its tool and the fields of a tenant's users.
//!
//! A rule with a misspelled name can never be evaluated, or may allow every call if the name is inside `has`.

use std::sync::LazyLock;

use serde_json::{Map, Value as Json, json};
use tickfleet_model::suggest;

use crate::evaluate::{Literal, Node};
use crate::facts::Variable;

/// A schema with more nested references counts as unknown.
const REFERENCES_MAX: usize = 8;
/// With these keywords, a schema can allow names that are not in its `properties`.
const OPENING: [&str; 9] = [
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "patternProperties",
    "dependentSchemas",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];

static USERS: LazyLock<Json> = LazyLock::new(|| {
    let members = json!({"name": {}, "roles": {}, "email": {}, "status": {}});
    json!({"items": {"properties": members, "additionalProperties": false}})
});

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    /// The full name, such as `args.amont`. `[]` means the items of a list.
    pub name: String,
    pub there: Vec<String>,
    /// True if the schema allows no undeclared names (`additionalProperties: false`).
    pub closed: bool,
}

impl UnknownName {
    #[must_use]
    pub fn meant(&self) -> Option<String> {
        suggest::closest(&self.name, self.there.iter().map(String::as_str))
    }
}

/// A name is unknown if no schema declares it. `schemas` has the schemas of all versions of the tool.
pub(crate) fn unknown_arguments(nodes: &[&Node], schemas: &[&Json]) -> Vec<UnknownName> {
    let mut of_each = schemas.iter().map(|schema| check(nodes, Some(schema)));
    let Some(mut unknown) = of_each.next() else { return Vec::new() };
    for others in of_each {
        unknown.retain_mut(|one| {
            let other = others.iter().find(|other| other.name == one.name);
            one.closed &= other.is_some_and(|other| other.closed);
            other.is_some()
        });
    }
    unknown
}

/// Ignores the names of arguments, so an unknown name is wrong for every tool.
pub(crate) fn unknown_in_context(node: &Node) -> Option<UnknownName> {
    check(&[node], None).into_iter().next()
}

fn check(nodes: &[&Node], arguments: Option<&Json>) -> Vec<UnknownName> {
    let mut checker = NameChecker { arguments, locals: Vec::new(), unknown: Vec::new() };
    for node in nodes {
        checker.check(node);
    }
    checker.unknown
}

#[derive(Debug, Clone)]
struct Declared<'a> {
    schema: &'a Json,
    /// The schema's references point into `root`.
    root: &'a Json,
    path: String,
}

struct NameChecker<'a> {
    arguments: Option<&'a Json>,
    /// `None` for an undeclared variable.
    locals: Vec<Option<Declared<'a>>>,
    unknown: Vec<UnknownName>,
}

impl<'a> NameChecker<'a> {
    fn check(&mut self, node: &Node) -> Option<Declared<'a>> {
        match node {
            Node::Variable(Variable::Args) => Some(Declared::of(self.arguments?, "args")),
            Node::Variable(Variable::TenantUsers) => Some(Declared::of(&USERS, "tenant.users")),
            Node::Local(number) => self.locals.get(*number).cloned().flatten(),
            Node::Literal(_) | Node::Variable(_) | Node::HasVariable(_) => None,
            Node::Member(of, name) | Node::Has(of, name) => {
                let of = self.check(of)?;
                self.member(&of, name)
            }
            Node::Item(of, at) => {
                self.check(at);
                let of = self.check(of)?;
                match &**at {
                    Node::Literal(Literal::Text(name)) => self.member(&of, name),
                    _ => of.item(),
                }
            }
            Node::In(one, all) => {
                self.check(one);
                if let (Some(all), Node::Literal(Literal::Text(name))) = (self.check(all), &**one) {
                    self.member(&all, name);
                }
                None
            }
            Node::Quantified(_, parts) => {
                let item = self.check(&parts[0]).and_then(|list| list.item());
                self.locals.push(item);
                self.check(&parts[1]);
                self.locals.pop();
                None
            }
            Node::Not(of)
            | Node::Negate(of)
            | Node::Size(of)
            | Node::Matches(of, _)
            | Node::Lower(of)
            | Node::ToNumber(of) => self.check_all([&**of]),
            Node::Both { sides, .. }
            | Node::Compare(_, sides)
            | Node::Equal { sides, .. }
            | Node::Sum(_, sides)
            | Node::Text(_, sides) => self.check_all(sides.iter()),
            Node::If(parts) => self.check_all(parts.iter()),
            Node::List(items) => self.check_all(items),
        }
    }

    fn check_all<'n>(&mut self, nodes: impl IntoIterator<Item = &'n Node>) -> Option<Declared<'a>> {
        for node in nodes {
            self.check(node);
        }
        None
    }

    fn member(&mut self, of: &Declared<'a>, name: &str) -> Option<Declared<'a>> {
        let schema = of.resolved()?.as_object()?;
        let properties = schema.get("properties").and_then(Json::as_object);
        let path = format!("{}.{name}", of.path);
        if let Some(schema) = properties.and_then(|properties| properties.get(name)) {
            return Some(Declared { schema, path, root: of.root });
        }
        let closed = match schema.get("additionalProperties") {
            Some(Json::Bool(false)) => true,
            Some(_) => return None,
            None => false,
        };
        let declares = closed || properties.is_some_and(|properties| !properties.is_empty());
        let open = OPENING.iter().any(|word| schema.contains_key(*word));
        if declares && !open && !self.unknown.iter().any(|known| known.name == path) {
            let names = properties.into_iter().flat_map(Map::keys);
            let there = names.map(|name| format!("{}.{name}", of.path)).collect();
            self.unknown.push(UnknownName { name: path, there, closed });
        }
        None
    }
}

impl<'a> Declared<'a> {
    fn of(schema: &'a Json, path: &str) -> Self {
        Self { schema, root: schema, path: path.to_owned() }
    }

    fn resolved(&self) -> Option<&'a Json> {
        let mut schema = self.schema;
        for _ in 0..REFERENCES_MAX {
            let Some(to) = schema.get("$ref") else { return Some(schema) };
            schema = self.root.pointer(to.as_str()?.strip_prefix('#')?)?;
        }
        None
    }

    fn item(&self) -> Option<Self> {
        let schema = self.resolved()?.get("items")?;
        Some(Self { schema, root: self.root, path: format!("{}[]", self.path) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    #[test]
    fn names_missing_from_the_input_schema_are_found() {
        let schema = json!({
            "type": "object",
            "properties": {
                "amount": {"type": "number"}, "to": {"$ref": "#/$defs/Person"}, "tags": {"additionalProperties": {}},
                "lines": {"type": "array", "items": {"properties": {"price": {}}, "additionalProperties": false}},
                "either": {"anyOf": [{"properties": {"a": {}}}, {"type": "null"}], "properties": {"b": {}}},
            },
            "$defs": {"Person": {"properties": {"name": {}}}},
            "additionalProperties": false,
        });
        let found = |text: &str| {
            let unknown = crate::unknown_in_condition(text, &[&schema]);
            unknown
                .into_iter()
                .map(|unknown| (unknown.name.clone(), unknown.closed, unknown.meant()))
                .collect::<Vec<_>>()
        };
        let one = |name: &str, closed, meant: Option<&str>| vec![(name.to_owned(), closed, meant.map(str::to_owned))];
        for right in [
            "args.amount <= 500 && args.to.name == 'a'",
            "args.tags.any == 1 && args.either.thing == 1 && args.amount.x == 1",
            "args.lines.all(line, line.price > 1) && args.lines[0].price > 1",
            "user_context.anything == 1 && 'bob' in user_context.contacts",
        ] {
            assert_eq!(found(right), [], "{right}");
        }
        assert_eq!(found("args.amont <= 500 || args.amont > 9"), one("args.amont", true, Some("args.amount")));
        assert_eq!(found("!has(args.amont)"), one("args.amont", true, Some("args.amount")));
        assert_eq!(found("args['amont'] > 1 ? true : false"), one("args.amont", true, Some("args.amount")));
        assert_eq!(found("'amont' in args"), one("args.amont", true, Some("args.amount")));
        assert_eq!(found("args.to.nmae.matches('^a')"), one("args.to.nmae", false, Some("args.to.name")));
        let price = one("args.lines[].prize", true, Some("args.lines[].price"));
        assert_eq!(found("args.lines.exists(line, size(line.prize) > 1)"), price);
        let newer = json!({"properties": {"amont": {}}});
        assert_eq!(crate::unknown_in_condition("args.amont > 1", &[&schema, &newer]), [], "one version has it");
        let open = json!({"properties": {"amount": {}}});
        let both = crate::unknown_in_condition("args.amont > 1", &[&schema, &open]);
        assert_eq!(both.iter().map(|unknown| unknown.closed).collect::<Vec<_>>(), [false]);
        assert_eq!(crate::unknown_in_condition("args.amont > 1", &[]), [], "nothing is known of the tool");
        assert_eq!(crate::unknown_in_message("more than {args.amont}", &[&schema])[0].name, "args.amont");
    }

    #[test]
    fn unknown_context_names_are_rejected_with_suggestions() {
        let refused = |text: &str| crate::compile::condition(text).unwrap_err().to_string();
        let name = "names the unknown `agent.nmae` (did you mean `agent.name`?); expected one of args, agent.name";
        assert!(refused("agent.nmae == 'kelly'").starts_with(name));
        assert_eq!(
            refused("tenant.users.exists(user, user.emial == args.to)"),
            "names the unknown `tenant.users[].emial` (did you mean `tenant.users[].email`?); expected one of \
             tenant.users[].name, tenant.users[].roles, tenant.users[].email, tenant.users[].status"
        );
    }
}
