//! Numbers as Redis reads and writes them.

use crate::reply::Reply;

/// A whole number, written as Redis would write it: nothing before, between or behind its digits.
pub(crate) fn whole(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !plain {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A whole number that a command was given.
pub(crate) fn int(text: &[u8]) -> Result<i64, Reply> {
    whole(text).ok_or_else(|| Reply::error("ERR value is not an integer or out of range"))
}

/// A number that may have a fraction; none where it is not a number.
pub(crate) fn float(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Writes a number as C's `%.17g` does.
pub(crate) fn write_g17(number: f64, out: &mut Vec<u8>) {
    write_g(number, 17, out);
}

/// Writes a number as C's `%.*g` does, with 14 to 17 digits.
pub(crate) fn write_g(number: f64, digits: usize, out: &mut Vec<u8>) {
    if number.is_nan() {
        return out.extend_from_slice(if number.is_sign_negative() { b"-nan" } else { b"nan" });
    }
    if number.is_infinite() {
        return out.extend_from_slice(if number < 0.0 { b"-inf" } else { b"inf" });
    }
    if number == number.trunc() && number.abs() < 1e14 && !(number == 0.0 && number.is_sign_negative()) {
        return out.extend_from_slice((number as i64).to_string().as_bytes());
    }
    let scientific = format!("{number:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..digits as i32).contains(&exponent) {
        let places = usize::try_from(digits as i32 - 1 - exponent).unwrap_or(0);
        out.extend_from_slice(without_zeros(&format!("{number:.places$}")).as_bytes());
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let text = format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs());
        out.extend_from_slice(text.as_bytes());
    }
}

fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// `%.17g` as text of its own.
pub(crate) fn g17(number: f64) -> Vec<u8> {
    let mut out = Vec::new();
    write_g17(number, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_c_does() {
        let written = |n: f64| String::from_utf8(g17(n)).unwrap();
        for (number, text) in [
            (0.1, "0.10000000000000001"),
            (3.0, "3"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (1e-5, "1.0000000000000001e-05"),
            (0.0001, "0.0001"),
            (f64::INFINITY, "inf"),
            (-0.0, "-0"),
            (1_700_000_000_123.456, "1700000000123.4561"),
        ] {
            assert_eq!(written(number), text);
        }
    }

    #[test]
    fn only_plain_numbers_are_whole() {
        assert_eq!(
            ["0", "-1", "9223372036854775807"].map(|t| whole(t.as_bytes())),
            [Some(0), Some(-1), Some(i64::MAX)]
        );
        for text in ["", "-", "-0", "007", "+1", " 1", "1 ", "1.0", "9223372036854775808"] {
            assert_eq!(whole(text.as_bytes()), None, "{text}");
        }
    }
}
