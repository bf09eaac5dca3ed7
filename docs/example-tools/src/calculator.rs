//! `calculator`: arithmetic with its own parser, without execution of code.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet::{Effect, ToolError, TypedTool};

const CHARS_MAX: usize = 256;
/// The depth counts nested brackets and signs.
const DEPTH_MAX: usize = 32;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Sum {
    /// Numbers, + - * / and brackets, such as (2 + 3.5) * 4. At most 256 characters.
    #[schemars(length(min = 1, max = CHARS_MAX))]
    expression: String,
}

#[derive(Serialize, JsonSchema)]
struct Value {
    /// The value of the expression.
    value: f64,
}

pub fn calculator() -> TypedTool {
    let description = "Works out an arithmetic expression of numbers, + - * / and brackets.";
    TypedTool::new("calculator", description, Effect::Read, |_, sum: Sum| async move {
        match evaluate(&sum.expression) {
            Ok(value) => Ok(Value { value }),
            Err(why) => Err(ToolError::InvalidArguments(format!("The expression cannot be worked out: {why}."))),
        }
    })
    .category("examples")
}

pub fn evaluate(text: &str) -> Result<f64, String> {
    if text.len() > CHARS_MAX {
        return Err(format!("it is longer than {CHARS_MAX} characters"));
    }
    let mut parser = Parser { text: text.as_bytes(), at: 0 };
    let value = parser.sum(0)?;
    match parser.next() {
        None if value.is_finite() => Ok(value),
        None => Err("it comes to no number".into()),
        Some(_) => Err(parser.unexpected()),
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn takes(&mut self, wanted: u8) -> bool {
        let found = self.next() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn unexpected(&mut self) -> String {
        match self.next() {
            Some(byte) => format!("{:?} at position {} does not belong there", char::from(byte), self.at + 1),
            None => "it ends too early".into(),
        }
    }

    fn sum(&mut self, depth: usize) -> Result<f64, String> {
        let mut value = self.product(depth)?;
        loop {
            if self.takes(b'+') {
                value += self.product(depth)?;
            } else if self.takes(b'-') {
                value -= self.product(depth)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self, depth: usize) -> Result<f64, String> {
        let mut value = self.factor(depth)?;
        loop {
            if self.takes(b'*') {
                value *= self.factor(depth)?;
            } else if self.takes(b'/') {
                match self.factor(depth)? {
                    0.0 => return Err("nothing is divided by zero".into()),
                    divisor => value /= divisor,
                }
            } else {
                return Ok(value);
            }
        }
    }

    fn factor(&mut self, depth: usize) -> Result<f64, String> {
        if depth > DEPTH_MAX {
            return Err(format!("it nests deeper than {DEPTH_MAX}"));
        }
        if self.takes(b'-') {
            return Ok(-self.factor(depth + 1)?);
        }
        if self.takes(b'(') {
            let value = self.sum(depth + 1)?;
            return if self.takes(b')') { Ok(value) } else { Err(self.unexpected()) };
        }
        self.number()
    }

    fn number(&mut self) -> Result<f64, String> {
        self.next();
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
        let number = rest.get(..length).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        let number = number.ok_or_else(|| self.unexpected())?;
        self.at += length;
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_follows_the_usual_precedence() {
        for (text, value) in
            [("2 + 3 * 4", 14.0), ("(2+3)*4", 20.0), ("-(1.5 - 4) / 2", 1.25), ("--2", 2.0), ("8/4/2", 1.0)]
        {
            assert_eq!(evaluate(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn invalid_or_excessive_expressions_are_rejected() {
        let deep = format!("{}1{}", "(".repeat(60), ")".repeat(60));
        let long = "1+".repeat(200);
        let huge = ["9".repeat(200), "9".repeat(50)].join("*");
        for text in
            ["", "1 +", "2 2", "1/0", "1..2", "__import__('os')", "2 ** 3", "1e999", ")", &deep, &long, &"-".repeat(99)]
        {
            assert!(evaluate(text).is_err(), "{text}");
        }
        assert!(evaluate(&huge).is_ok());
        assert!(evaluate(&vec!["9".repeat(60); 4].join("*")).is_ok_and(f64::is_finite));
    }
}
