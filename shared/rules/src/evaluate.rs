//! Evaluates conditions for one call, under a bound on the work. It never panics, and every error denies the call.

use std::borrow::Cow;
use std::cmp::Ordering;

use regex::Regex;
use tickfleet_model::limits::RULE_PATTERN_TEXT_BYTES_MAX;
use tickfleet_model::number::Number;

use crate::facts::{Facts, Variable};
use crate::value::Value;
use crate::work::{Problem, Work};

#[derive(Debug, Clone)]
pub(crate) enum Node {
    Literal(Literal),
    Variable(Variable),
    /// The number of the variable's quantifier. The outermost quantifier has number 0.
    Local(usize),
    Member(Box<Node>, String),
    Has(Box<Node>, String),
    HasVariable(Variable),
    Item(Box<Node>, Box<Node>),
    Not(Box<Node>),
    Negate(Box<Node>),
    /// `&&` if `decisive` is false, `||` if it is true. A side with this value decides, even if the other side is an
    /// error.
    Both {
        decisive: bool,
        sides: Box<[Node; 2]>,
    },
    If(Box<[Node; 3]>),
    Compare(Comparison, Box<[Node; 2]>),
    Equal {
        negated: bool,
        sides: Box<[Node; 2]>,
    },
    In(Box<Node>, Box<Node>),
    Sum(Sum, Box<[Node; 2]>),
    List(Vec<Node>),
    Size(Box<Node>),
    Text(TextTest, Box<[Node; 2]>),
    Matches(Box<Node>, Pattern),
    Lower(Box<Node>),
    ToNumber(Box<Node>),
    Quantified(Quantifier, Box<[Node; 2]>),
}

#[derive(Debug, Clone)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Comparison {
    Less,
    AtMost,
    More,
    AtLeast,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Sum {
    Plus,
    Minus,
    Times,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum TextTest {
    StartsWith,
    EndsWith,
    Contains,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantifier {
    All,
    Exists,
    ExistsOne,
}

#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    pub(crate) regex: Regex,
    /// Steps of work for each byte of text. The matcher sometimes visits the whole program for each byte.
    pub(crate) cost: usize,
}

pub(crate) struct Evaluation<'a> {
    facts: &'a Facts<'a>,
    pub(crate) work: Work,
    locals: Vec<Value<'a>>,
    /// The first level is parsed only once, because nearly every condition reads it.
    arguments: Option<Value<'a>>,
}

type EvalResult<'a> = Result<Value<'a>, Problem>;

fn cannot<T>(why: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Cannot(why.into()))
}

impl<'a> Evaluation<'a> {
    pub(crate) const fn of(facts: &'a Facts<'a>) -> Self {
        Self { facts, work: Work::full(), locals: Vec::new(), arguments: None }
    }

    pub(crate) fn holds(&mut self, node: &'a Node) -> Result<bool, Problem> {
        // A condition that ended with an error may have left its variables in the list.
        self.locals.clear();
        match self.value(node)? {
            Value::Bool(holds) => Ok(holds),
            other => cannot(format!("it gives {}, not true or false", other.kind())),
        }
    }

    /// Parses the first level of the value.
    pub(crate) fn value(&mut self, node: &'a Node) -> EvalResult<'a> {
        self.work.spend(1)?;
        match node {
            Node::Literal(literal) => Ok(literal.value()),
            Node::Variable(Variable::Args) => self.arguments(),
            Node::Variable(known) => known.value(self.facts).opened(&mut self.work),
            Node::Local(number) => self.local(*number),
            Node::Member(of, name) => self.member(of, name),
            Node::Has(of, name) => {
                let of = self.value(of)?;
                Ok(Value::Bool(of.member(name, &mut self.work)?.is_some()))
            }
            Node::HasVariable(known) => Ok(Value::Bool(known.is_there(self.facts))),
            Node::Item(of, at) => self.item(of, at),
            Node::Not(node) => Ok(Value::Bool(!self.boolean(node, "!")?)),
            Node::Negate(node) => Ok(Value::Number(self.number(node, "-")?.negated())),
            Node::Both { decisive, sides } => self.both(*decisive, sides),
            Node::If(parts) => {
                let [condition, yes, no] = &**parts;
                if self.boolean(condition, "?:")? { self.value(yes) } else { self.value(no) }
            }
            Node::Compare(how, sides) => self.compare(*how, sides),
            Node::Equal { negated, sides } => {
                let one = self.value(&sides[0])?;
                let other = self.value(&sides[1])?;
                Ok(Value::Bool(one.equals(other, &mut self.work)? != *negated))
            }
            Node::In(one, all) => self.within(one, all),
            Node::Sum(how, sides) => self.sum(*how, sides),
            Node::List(items) => {
                let items: Result<Vec<_>, _> = items.iter().map(|item| self.value(item)).collect();
                Ok(Value::List(items?.into()))
            }
            Node::Size(of) => self.size(of),
            Node::Text(test, sides) => self.test_text(*test, sides),
            Node::Matches(text, pattern) => self.matches(text, pattern),
            Node::Lower(text) => {
                let text = self.text(text, "lowerAscii")?;
                self.work.spend_bytes(text.len())?;
                Ok(Value::Text(Cow::Owned(text.to_ascii_lowercase())))
            }
            Node::ToNumber(node) => self.double(node),
            Node::Quantified(quantifier, parts) => self.quantified(*quantifier, parts),
        }
    }

    fn arguments(&mut self) -> EvalResult<'a> {
        if self.arguments.is_none() {
            self.arguments = Some(Value::Json(self.facts.arguments).opened(&mut self.work)?);
        }
        Ok(self.arguments.clone().unwrap_or(Value::Null))
    }

    fn local(&mut self, number: usize) -> EvalResult<'a> {
        let Some(value) = self.locals.get(number) else { return cannot("a variable has no value") };
        if let Value::Text(Cow::Owned(text)) = value {
            self.work.spend_bytes(text.len())?;
        }
        Ok(value.clone())
    }

    fn member(&mut self, of: &'a Node, name: &str) -> EvalResult<'a> {
        let value = self.value(of)?;
        match value.member(name, &mut self.work)? {
            Some(member) => member.opened(&mut self.work),
            None => cannot(format!("there is no `{}`", of.path_to(name))),
        }
    }

    fn item(&mut self, of: &'a Node, at: &'a Node) -> EvalResult<'a> {
        let of = self.value(of)?;
        let at = self.value(at)?;
        let found = match (&of, &at) {
            (Value::List(items), Value::Number(at)) => at.as_index().and_then(|at| items.get(at)).cloned(),
            (Value::Map(_), Value::Text(name)) => of.member(name, &mut self.work)?,
            _ => return cannot(format!("{} cannot be indexed with {}", of.kind(), at.kind())),
        };
        match found {
            Some(item) => item.opened(&mut self.work),
            None => cannot("there is no such item"),
        }
    }

    fn boolean(&mut self, node: &'a Node, of: &str) -> Result<bool, Problem> {
        match self.value(node)? {
            Value::Bool(is) => Ok(is),
            other => cannot(format!("`{of}` is for true and false, not for {}", other.kind())),
        }
    }

    fn number(&mut self, node: &'a Node, of: &str) -> Result<Number, Problem> {
        match self.value(node)? {
            Value::Number(number) => Ok(number),
            other => cannot(format!("`{of}` is for numbers, not for {}", other.kind())),
        }
    }

    fn text(&mut self, node: &'a Node, of: &str) -> Result<Cow<'a, str>, Problem> {
        match self.value(node)? {
            Value::Text(text) => Ok(text),
            other => cannot(format!("`{of}` is for texts, not for {}", other.kind())),
        }
    }

    fn both(&mut self, decisive: bool, sides: &'a [Node; 2]) -> EvalResult<'a> {
        let of = if decisive { "||" } else { "&&" };
        let locals = self.locals.len();
        let first = self.boolean(&sides[0], of);
        if first == Ok(decisive) || first == Err(Problem::TooMuch) {
            return first.map(Value::Bool);
        }
        self.locals.truncate(locals);
        let second = self.boolean(&sides[1], of)?;
        if second == decisive { Ok(Value::Bool(decisive)) } else { first.map(|_| Value::Bool(second)) }
    }

    fn compare(&mut self, how: Comparison, sides: &'a [Node; 2]) -> EvalResult<'a> {
        let order = match (self.value(&sides[0])?, self.value(&sides[1])?) {
            (Value::Number(one), Value::Number(other)) => one.cmp(&other),
            (Value::Text(one), Value::Text(other)) => {
                self.work.spend_bytes(one.len().min(other.len()))?;
                one.cmp(&other)
            }
            (one, other) => return cannot(format!("{} and {} cannot be compared", one.kind(), other.kind())),
        };
        Ok(Value::Bool(match how {
            Comparison::Less => order == Ordering::Less,
            Comparison::AtMost => order != Ordering::Greater,
            Comparison::More => order == Ordering::Greater,
            Comparison::AtLeast => order != Ordering::Less,
        }))
    }

    fn within(&mut self, one: &'a Node, all: &'a Node) -> EvalResult<'a> {
        let one = self.value(one)?;
        // Most lists are literals in the rule, so do not build a list for each call.
        if let Node::List(nodes) = all
            && nodes.iter().all(|node| matches!(node, Node::Literal(_)))
        {
            for node in nodes {
                if let Node::Literal(literal) = node
                    && one.clone().equals(literal.value(), &mut self.work)?
                {
                    return Ok(Value::Bool(true));
                }
            }
            return Ok(Value::Bool(false));
        }
        let all = self.value(all)?;
        match (&all, &one) {
            (Value::List(items), _) => {
                for item in items.iter() {
                    if one.clone().equals(item.clone(), &mut self.work)? {
                        return Ok(Value::Bool(true));
                    }
                }
                Ok(Value::Bool(false))
            }
            (Value::Map(_), Value::Text(name)) => Ok(Value::Bool(all.member(name, &mut self.work)?.is_some())),
            _ => cannot(format!("`in` looks for {} in {}", one.kind(), all.kind())),
        }
    }

    fn sum(&mut self, how: Sum, sides: &'a [Node; 2]) -> EvalResult<'a> {
        let (word, reckon): (_, fn(Number, Number) -> Option<Number>) = match how {
            Sum::Plus => ("+", Number::plus),
            Sum::Minus => ("-", Number::minus),
            Sum::Times => ("*", Number::times),
        };
        let one = self.number(&sides[0], word)?;
        let other = self.number(&sides[1], word)?;
        match reckon(one, other) {
            Some(number) => Ok(Value::Number(number)),
            None => cannot(format!("`{word}` gives a number with more than 38 digits")),
        }
    }

    fn size(&mut self, of: &'a Node) -> EvalResult<'a> {
        let size = match self.value(of)? {
            Value::Text(text) => {
                self.work.spend_bytes(text.len())?;
                text.chars().count()
            }
            Value::List(items) => items.len(),
            Value::Map(members) => members.len(),
            other => return cannot(format!("{} has no size", other.kind())),
        };
        Ok(Value::Number(Number::count(size)))
    }

    fn test_text(&mut self, test: TextTest, sides: &'a [Node; 2]) -> EvalResult<'a> {
        let word = test.word();
        let text = self.text(&sides[0], word)?;
        let part = self.text(&sides[1], word)?;
        self.work.spend_bytes(text.len() + part.len())?;
        Ok(Value::Bool(match test {
            TextTest::StartsWith => text.starts_with(&*part),
            TextTest::EndsWith => text.ends_with(&*part),
            TextTest::Contains => text.contains(&*part),
        }))
    }

    fn matches(&mut self, text: &'a Node, pattern: &Pattern) -> EvalResult<'a> {
        let text = self.text(text, "matches")?;
        if text.len() > RULE_PATTERN_TEXT_BYTES_MAX {
            return cannot(format!("`matches` is for texts of at most {RULE_PATTERN_TEXT_BYTES_MAX} bytes"));
        }
        self.work.spend((1 + text.len()).saturating_mul(pattern.cost))?;
        Ok(Value::Bool(pattern.regex.is_match(&text)))
    }

    fn double(&mut self, node: &'a Node) -> EvalResult<'a> {
        match self.value(node)? {
            Value::Text(text) => {
                self.work.spend_bytes(text.len())?;
                match Number::parse(&text) {
                    Some(number) => Ok(Value::Number(number)),
                    None => cannot("`double` is for texts that are a number"),
                }
            }
            number @ Value::Number(_) => Ok(number),
            other => cannot(format!("`double` is for numbers and texts, not for {}", other.kind())),
        }
    }

    /// As in CEL, an item that decides the result has precedence over an error of another item.
    fn quantified(&mut self, quantifier: Quantifier, parts: &'a [Node; 2]) -> EvalResult<'a> {
        let items: Vec<Value<'a>> = match self.value(&parts[0])? {
            Value::List(items) => items.to_vec(),
            Value::Map(members) => members.iter().map(|(key, _)| Value::Text(key.clone())).collect(),
            other => return cannot(format!("`{}` is for lists, not for {}", quantifier.word(), other.kind())),
        };
        self.work.spend(items.len())?;
        let mut met = 0_usize;
        let mut problem = None;
        let depth = self.locals.len();
        for item in items {
            let item = item.opened(&mut self.work)?;
            self.locals.truncate(depth);
            self.locals.push(item);
            match self.boolean(&parts[1], quantifier.word()) {
                Ok(true) => met += 1,
                Ok(false) if quantifier == Quantifier::All => {
                    self.locals.truncate(depth);
                    return Ok(Value::Bool(false));
                }
                Ok(false) => {}
                Err(Problem::TooMuch) => return Err(Problem::TooMuch),
                Err(first) => problem = problem.or(Some(first)),
            }
            if met > 0 && quantifier == Quantifier::Exists {
                self.locals.truncate(depth);
                return Ok(Value::Bool(true));
            }
        }
        self.locals.truncate(depth);
        match problem {
            Some(problem) => Err(problem),
            None => Ok(Value::Bool(match quantifier {
                Quantifier::All => true,
                Quantifier::Exists => false,
                Quantifier::ExistsOne => met == 1,
            })),
        }
    }
}

impl Node {
    /// For example `args.amount`. Omits nodes without a name, and all nodes before them.
    fn path_to(&self, name: &str) -> String {
        match self {
            Self::Variable(known) => format!("{}.{name}", known.name()),
            Self::Member(of, own) => format!("{}.{name}", of.path_to(own)),
            _ => name.to_owned(),
        }
    }
}

impl Literal {
    pub(crate) fn value(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Bool(is) => Value::Bool(*is),
            Self::Number(number) => Value::Number(*number),
            Self::Text(text) => Value::text(text),
        }
    }
}

impl TextTest {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::StartsWith => "startsWith",
            Self::EndsWith => "endsWith",
            Self::Contains => "contains",
        }
    }
}

impl Quantifier {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Exists => "exists",
            Self::ExistsOne => "exists_one",
        }
    }
}
