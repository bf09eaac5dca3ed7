//! Amounts that limits sum: exact decimals, in millionths.

use serde_json::Value;

const UNIT: u64 = 1_000_000;
const DIGITS: usize = 6;
/// In millionths. Up to this number, a double represents integers exactly.
pub const AMOUNT_MAX: u64 = 1 << 53;

/// Returns millionths if the text is a plain decimal with at most six decimal places, up to [`AMOUNT_MAX`].
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let part = part.trim_end_matches('0');
    if !digits(whole) || !(part.is_empty() || digits(part)) || part.len() > DIGITS {
        return None;
    }
    let part: u64 = format!("{part:0<DIGITS$}").parse().ok()?;
    let amount = whole.parse::<u64>().ok()?.checked_mul(UNIT)?.checked_add(part)?;
    (amount <= AMOUNT_MAX).then_some(amount)
}

/// Returns millionths if the value is a number or a text that [`parse`] accepts.
#[must_use]
pub fn of(value: &Value) -> Option<u64> {
    match value {
        // The shortest text that parses as the same double. Up to 15 digits, this text equals the number as written.
        Value::Number(number) => match number.as_u64() {
            Some(whole) => parse(&whole.to_string()),
            None => parse(&number.as_f64()?.to_string()),
        },
        Value::String(text) => parse(text),
        _ => None,
    }
}

#[must_use]
pub fn show(amount: u64) -> String {
    let text = format!("{}.{:06}", amount / UNIT, amount % UNIT);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn decimals_are_exact() {
        let sum = (0..10).filter_map(|_| of(&json!(0.1))).sum::<u64>();
        assert_eq!(Some(sum), of(&json!(1)));
        for (value, shown) in
            [(json!(700), "700"), (json!("12.50"), "12.5"), (json!(0.000_001), "0.000001"), (json!(5.0), "5")]
        {
            assert_eq!(of(&value).map(show).as_deref(), Some(shown), "{value}");
        }
    }

    #[test]
    fn invalid_amounts_parse_to_none() {
        let odd = [
            json!(-1),
            json!("1e3"),
            json!(1e-7),
            json!(1e300),
            json!(""),
            json!("."),
            json!("1,5"),
            json!(null),
            json!([1]),
        ];
        for value in odd {
            assert_eq!(of(&value), None, "{value}");
        }
    }
}
