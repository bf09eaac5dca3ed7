//! Compiles the text of a condition. Constructs that the rule language lacks are rejected when the configuration is
//! read.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, SelectExpr, operators};
use cel::parser::{Expression, PrattParser};
use regex::RegexBuilder;
use tickfleet_model::limits::{RULE_BYTES_MAX, RULE_DEPTH_MAX, RULE_NODES_MAX, RULE_QUANTIFIERS_MAX};
use tickfleet_model::number::Number;
use tickfleet_model::suggest;

use crate::evaluate::{Comparison, Literal, Node, Pattern, Quantifier, Sum, TextTest};
use crate::facts::Variable;
use crate::names::{self, UnknownName};

/// Sizes of a compiled program, in KiB. The index of the smallest sufficient size is the pattern's cost: steps of work
/// for each byte of text.
const PATTERN_KIB: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const CONDITION: &str = "a condition in CEL, such as `args.amount <= 500`";
const FUNCTIONS: &str =
    "has, size, startsWith, endsWith, contains, matches, lowerAscii, double, all, exists, exists_one";

/// The error sentence consists of the text, `found` and `expected`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    /// A verb phrase, for example `names the unknown …`.
    pub found: String,
    pub expected: String,
}

impl RuleError {
    pub(crate) fn because(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { found: found.into(), expected: expected.into() }
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; expected {}", self.found, self.expected)
    }
}

pub(crate) fn condition(text: &str) -> Result<Node, RuleError> {
    let node = expression(text)?;
    let never = match &node {
        Node::Literal(Literal::Bool(_)) => None,
        Node::Literal(_) | Node::List(_) | Node::Sum(..) | Node::Size(_) | Node::Lower(_) | Node::ToNumber(_) => {
            Some(())
        }
        Node::Negate(_) => Some(()),
        _ => None,
    };
    match never {
        Some(()) => Err(RuleError::because("gives a value", "a condition such as `args.amount <= 500`")),
        None => Ok(node),
    }
}

pub(crate) fn expression(text: &str) -> Result<Node, RuleError> {
    if text.len() > RULE_BYTES_MAX {
        return Err(RuleError::because(format!("has {} bytes", text.len()), format!("at most {RULE_BYTES_MAX}")));
    }
    let depth = RULE_DEPTH_MAX;
    // The third-party parser may panic on hostile text.
    let parsed = catch_unwind(AssertUnwindSafe(|| PrattParser::new().max_recursion_depth(depth).parse(text)));
    let Ok(parsed) = parsed else { return Err(RuleError::because("crashes the CEL parser", CONDITION)) };
    let parsed = parsed.map_err(|errors| match errors.errors.first() {
        Some(first) if first.msg.contains("recursion limit") => too_deep(),
        Some(first) => RuleError::because(
            format!(
                "is not CEL at line {}, column {}: {}",
                first.pos.0.max(1),
                first.pos.1.max(1),
                one_line(&first.msg)
            ),
            CONDITION,
        ),
        None => RuleError::because("is not CEL", CONDITION),
    })?;
    let node = Compiler::default().node(&parsed)?;
    match names::unknown_in_context(&node) {
        Some(UnknownName { name, there, .. }) => Err(unknown_of(&name, there.iter().map(String::as_str))),
        None => Ok(node),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn too_deep() -> RuleError {
    RuleError::because("is nested too deeply", format!("at most {RULE_DEPTH_MAX} levels"))
}

#[derive(Default)]
struct Compiler {
    nodes: usize,
    depth: u16,
    locals: Vec<String>,
}

type CompileResult = Result<Node, RuleError>;

impl Compiler {
    fn node(&mut self, of: &Expression) -> CompileResult {
        self.nodes += 1;
        self.depth += 1;
        if self.nodes > RULE_NODES_MAX {
            return Err(RuleError::because("has too many parts", format!("at most {RULE_NODES_MAX}")));
        }
        if self.depth > RULE_DEPTH_MAX {
            return Err(too_deep());
        }
        let node = match &of.expr {
            Expr::Literal(literal) => self::literal(literal).map(Node::Literal),
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(loops) => self.quantified(loops),
            Expr::List(list) if list.optional_indices.is_empty() => {
                list.elements.iter().map(|item| self.node(item)).collect::<Result<_, _>>().map(Node::List)
            }
            Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => {
                Err(RuleError::because("makes an object", "lists at most"))
            }
            Expr::Unspecified => Err(RuleError::because("has an empty part", CONDITION)),
        };
        self.depth -= 1;
        node
    }

    fn boxed(&mut self, of: &Expression) -> Result<Box<Node>, RuleError> {
        self.node(of).map(Box::new)
    }

    fn sides(&mut self, one: &Expression, other: &Expression) -> Result<Box<[Node; 2]>, RuleError> {
        Ok(Box::new([self.node(one)?, self.node(other)?]))
    }

    fn name(&self, name: &str) -> CompileResult {
        // If several variables have this name, the innermost counts, as in CEL.
        if let Some(number) = self.locals.iter().rposition(|local| local == name) {
            return Ok(Node::Local(number));
        }
        match Variable::find(name) {
            Some(known) => Ok(Node::Variable(known)),
            None => Err(unknown(name)),
        }
    }

    fn select(&mut self, select: &SelectExpr) -> CompileResult {
        if let Expr::Ident(group) = &select.operand.expr
            && !self.locals.contains(group)
            && Variable::is_group(group)
        {
            let name = format!("{group}.{}", select.field);
            let known = Variable::find(&name).ok_or_else(|| unknown(&name))?;
            return Ok(if select.test { Node::HasVariable(known) } else { Node::Variable(known) });
        }
        let of = self.boxed(&select.operand)?;
        Ok(if select.test { Node::Has(of, select.field.clone()) } else { Node::Member(of, select.field.clone()) })
    }

    fn call(&mut self, call: &CallExpr) -> CompileResult {
        let name = call.func_name.as_str();
        match (&call.target, call.args.as_slice()) {
            (None, [one]) => self.unary(name, one),
            (Some(target), []) => match name {
                "size" => Ok(Node::Size(self.boxed(target)?)),
                "lowerAscii" => Ok(Node::Lower(self.boxed(target)?)),
                _ => Err(not_a_function(name)),
            },
            (Some(target), [one]) => self.method(name, target, one),
            (None, [one, other]) => self.binary(name, one, other),
            (None, [condition, yes, no]) if name == operators::CONDITIONAL => {
                Ok(Node::If(Box::new([self.node(condition)?, self.node(yes)?, self.node(no)?])))
            }
            _ => Err(not_a_function(name)),
        }
    }

    fn unary(&mut self, name: &str, of: &Expression) -> CompileResult {
        Ok(match name {
            operators::LOGICAL_NOT => Node::Not(self.boxed(of)?),
            operators::NEGATE => Node::Negate(self.boxed(of)?),
            "size" => Node::Size(self.boxed(of)?),
            "double" => Node::ToNumber(self.boxed(of)?),
            _ => return Err(not_a_function(name)),
        })
    }

    fn method(&mut self, name: &str, of: &Expression, argument: &Expression) -> CompileResult {
        let test =
            [TextTest::StartsWith, TextTest::EndsWith, TextTest::Contains].into_iter().find(|t| t.word() == name);
        match test {
            Some(test) => Ok(Node::Text(test, self.sides(of, argument)?)),
            None if name == "matches" => {
                let Node::Literal(Literal::Text(pattern)) = self.node(argument)? else {
                    return Err(RuleError::because("passes a computed pattern to `matches`", "a pattern as a text"));
                };
                Ok(Node::Matches(self.boxed(of)?, self::pattern(&pattern)?))
            }
            None => Err(not_a_function(name)),
        }
    }

    fn binary(&mut self, name: &str, one: &Expression, other: &Expression) -> CompileResult {
        if name == operators::INDEX {
            return Ok(Node::Item(self.boxed(one)?, self.boxed(other)?));
        }
        if name == operators::IN {
            return Ok(Node::In(self.boxed(one)?, self.boxed(other)?));
        }
        if [operators::DIVIDE, operators::MODULO].contains(&name) {
            return Err(RuleError::because(
                "divides",
                "a product on the other side, such as `2 * args.part <= args.whole`",
            ));
        }
        let sides = self.sides(one, other)?;
        Ok(match name {
            operators::LOGICAL_AND => Node::Both { decisive: false, sides },
            operators::LOGICAL_OR => Node::Both { decisive: true, sides },
            operators::EQUALS => Node::Equal { negated: false, sides },
            operators::NOT_EQUALS => Node::Equal { negated: true, sides },
            operators::LESS => Node::Compare(Comparison::Less, sides),
            operators::LESS_EQUALS => Node::Compare(Comparison::AtMost, sides),
            operators::GREATER => Node::Compare(Comparison::More, sides),
            operators::GREATER_EQUALS => Node::Compare(Comparison::AtLeast, sides),
            operators::ADD => Node::Sum(Sum::Plus, sides),
            operators::SUBSTRACT => Node::Sum(Sum::Minus, sides),
            operators::MULTIPLY => Node::Sum(Sum::Times, sides),
            _ => return Err(not_a_function(name)),
        })
    }

    /// The parser expands `all`, `exists` and `exists_one` to loops. `map` and `filter` are rejected, because their
    /// cost grows with the square of the length.
    fn quantified(&mut self, loops: &ComprehensionExpr) -> CompileResult {
        let step = match &loops.loop_step.expr {
            Expr::Call(call) => (call.func_name.as_str(), call.args.as_slice()),
            _ => ("", [].as_slice()),
        };
        let (quantifier, body) = match (&loops.accu_init.expr, step) {
            (Expr::Literal(_), (operators::LOGICAL_AND, [_, body])) => (Quantifier::All, body),
            (Expr::Literal(_), (operators::LOGICAL_OR, [_, body])) => (Quantifier::Exists, body),
            (Expr::Literal(_), (operators::CONDITIONAL, [body, ..])) => (Quantifier::ExistsOne, body),
            _ => return Err(RuleError::because("uses map or filter", "all, exists or exists_one")),
        };
        let items = self.node(&loops.iter_range)?;
        if self.locals.len() >= RULE_QUANTIFIERS_MAX {
            return Err(RuleError::because(
                "nests all, exists or exists_one",
                format!("at most {RULE_QUANTIFIERS_MAX} levels"),
            ));
        }
        self.locals.push(loops.iter_var.clone());
        let body = self.node(body);
        self.locals.pop();
        Ok(Node::Quantified(quantifier, Box::new([items, body?])))
    }
}

fn literal(literal: &LiteralValue) -> Result<Literal, RuleError> {
    let number = |number: Option<Number>| {
        number
            .map(Literal::Number)
            .ok_or_else(|| RuleError::because("has a number that is too large", "at most 38 digits"))
    };
    match literal {
        LiteralValue::Null => Ok(Literal::Null),
        LiteralValue::Boolean(is) => Ok(Literal::Bool(*is.inner())),
        LiteralValue::Int(int) => number(Number::parse(&int.inner().to_string())),
        LiteralValue::UInt(int) => number(Number::parse(&int.inner().to_string())),
        LiteralValue::Double(double) => number(Number::from_double(*double.inner())),
        LiteralValue::String(text) => Ok(Literal::Text(text.inner().to_owned())),
        LiteralValue::Bytes(_) => Err(RuleError::because("has bytes, which JSON lacks", "a text")),
    }
}

fn pattern(text: &str) -> Result<Pattern, RuleError> {
    let mut last = None;
    for kib in PATTERN_KIB {
        let mut builder = RegexBuilder::new(text);
        match builder.size_limit(kib * 1024).dfa_size_limit(256 * 1024).build() {
            Ok(regex) => return Ok(Pattern { regex, cost: kib }),
            Err(regex::Error::CompiledTooBig(_)) => last = Some("its program is too large".to_owned()),
            Err(error) => {
                last = error.to_string().lines().last().map(|line| line.trim_start_matches("error: ").to_owned());
                break;
            }
        }
    }
    Err(RuleError::because(format!("has an invalid pattern ({})", last.unwrap_or_default()), "a regular expression"))
}

fn unknown(name: &str) -> RuleError {
    unknown_of(name, Variable::ALL.iter().map(|known| known.name()))
}

fn unknown_of<'a>(name: &str, there: impl Iterator<Item = &'a str>) -> RuleError {
    let names: Vec<&str> = there.collect();
    let meant = suggest::closest(name, names.iter().copied())
        .map(|meant| format!(" (did you mean `{meant}`?)"))
        .unwrap_or_default();
    RuleError::because(format!("names the unknown `{name}`{meant}"), format!("one of {}", names.join(", ")))
}

fn not_a_function(name: &str) -> RuleError {
    let name = operators::find_operator(name).unwrap_or(name);
    RuleError::because(
        format!("calls the unknown `{name}`, or passes operands that it does not take"),
        format!("one of {FUNCTIONS}"),
    )
}
