//! Exact decimals. With doubles, `0.1 + 0.2 <= 0.3` would be false, and amounts with many digits would be rounded.

use std::cmp::Ordering;
use std::fmt;

/// 128 bits can represent every number of 38 digits.
const DIGITS_MAX: u32 = 38;
/// Bounds decimal places, and zeros before the decimal point. No double needs more.
const SCALE_MAX: i32 = 1_000;

/// `digits` divided by ten to the power of `scale`. `digits` has no trailing zeros, so equal numbers have equal fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    digits: i128,
    scale: i32,
}

impl Number {
    /// Parses a JSON number. `None` with more than 38 digits, or with a scale above 1,000.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (sign, unsigned) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
        let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut digits = 0_i128;
        let mut zeros = 0_u32;
        for digit in whole.bytes().chain(fraction.bytes()) {
            let digit = i128::from(digit.checked_sub(b'0').filter(|digit| *digit <= 9)?);
            if digit == 0 {
                zeros = zeros.saturating_add(1);
            } else {
                let shift = if digits == 0 { 1 } else { power_of_ten(zeros.checked_add(1)?)? };
                digits = digits.checked_mul(shift)?.checked_add(digit)?;
                zeros = 0;
            }
        }
        let places = i32::try_from(fraction.len()).ok()?.checked_sub(i32::try_from(zeros).ok()?)?;
        Self::of(digits.checked_mul(sign)?, places.checked_sub(exponent.parse().ok()?)?)
    }

    /// The shortest decimal form. `None` if the double is infinite or not a number.
    #[must_use]
    pub fn from_double(double: f64) -> Option<Self> {
        Self::parse(&double.to_string())
    }

    #[must_use]
    pub fn count(count: usize) -> Self {
        i128::try_from(count).ok().and_then(|count| Self::of(count, 0)).unwrap_or(Self { digits: 0, scale: 0 })
    }

    fn of(mut digits: i128, mut scale: i32) -> Option<Self> {
        if digits == 0 {
            return Some(Self { digits: 0, scale: 0 });
        }
        while digits % 10 == 0 {
            (digits, scale) = (digits / 10, scale.checked_sub(1)?);
        }
        let fits = scale.abs() <= SCALE_MAX && digits.unsigned_abs().ilog10() < DIGITS_MAX;
        fits.then_some(Self { digits, scale })
    }

    /// `None` if the number is negative, fractional or too large.
    #[must_use]
    pub fn as_index(self) -> Option<usize> {
        let zeros = u32::try_from(self.scale.checked_neg()?).ok()?;
        usize::try_from(self.digits.checked_mul(power_of_ten(zeros)?)?).ok()
    }

    #[must_use]
    pub fn minus(self, other: Self) -> Option<Self> {
        self.plus(other.negated())
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Option<Self> {
        let scale = self.scale.max(other.scale);
        let aligned = |number: Self| {
            let shift = u32::try_from(scale.checked_sub(number.scale)?).ok()?;
            number.digits.checked_mul(if number.digits == 0 { 1 } else { power_of_ten(shift)? })
        };
        Self::of(aligned(self)?.checked_add(aligned(other)?)?, scale)
    }

    #[must_use]
    pub fn times(self, other: Self) -> Option<Self> {
        Self::of(self.digits.checked_mul(other.digits)?, self.scale.checked_add(other.scale)?)
    }

    /// Numbers of 38 digits are far from the limits of `i128`, so the negation cannot overflow.
    #[must_use]
    pub const fn negated(self) -> Self {
        Self { digits: -self.digits, scale: self.scale }
    }

    /// The power of ten of the first digit: 0 for 5, 1 for 50, -1 for 0.5.
    fn magnitude(self) -> i64 {
        i64::from(self.digits.unsigned_abs().ilog10()) - i64::from(self.scale)
    }
}

fn power_of_ten(power: u32) -> Option<i128> {
    10_i128.checked_pow(power)
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        let signs = self.digits.signum().cmp(&other.digits.signum());
        if signs != Ordering::Equal || self.digits == 0 {
            return signs;
        }
        let magnitudes = self.magnitude().cmp(&other.magnitude());
        if magnitudes != Ordering::Equal {
            return if self.digits > 0 { magnitudes } else { magnitudes.reverse() };
        }
        // Both numbers have the same magnitude. The number with the smaller scale gets zeros.
        let shift = |from: i32, to: i32| u32::try_from(i64::from(to) - i64::from(from)).ok().and_then(power_of_ten);
        let mine = self.digits * shift(self.scale, other.scale).unwrap_or(1);
        mine.cmp(&(other.digits * shift(other.scale, self.scale).unwrap_or(1)))
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.digits < 0 { "-" } else { "" };
        let digits = self.digits.unsigned_abs().to_string();
        match usize::try_from(self.scale) {
            Ok(0) => write!(f, "{sign}{digits}"),
            Ok(places) if places <= 40 => {
                let padded = format!("{digits:0>width$}", width = places + 1);
                let (whole, fraction) = padded.split_at(padded.len() - places);
                write!(f, "{sign}{whole}.{fraction}")
            }
            Err(_) if self.scale >= -20 => {
                write!(f, "{sign}{digits}{}", "0".repeat(self.scale.unsigned_abs() as usize))
            }
            _ => write!(f, "{sign}{digits}e{}", -self.scale),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn number(text: &str) -> Number {
        Number::parse(text).unwrap()
    }

    #[test]
    fn numbers_are_exact_decimals_not_doubles() {
        assert_eq!(number("0.1").plus(number("0.2")), Some(number("0.3")));
        assert_eq!(number("500.00"), number("5e2"));
        assert!(number("500.00000000000000001") > number("500"));
        assert!(number("9007199254740993") > number("9007199254740992.5"));
        assert!(number("-1.5") < number("-1") && number("-1") < number("0") && number("0") < number("1e-300"));
        assert!(number("9e15") < number("1e16") && number("-9e15") > number("-1e16"));
        assert_eq!(number("-0"), number("0.00"));
        assert_eq!(number("1.5").times(number("2")), Some(number("3")));
        assert_eq!(number("1").minus(number("0.9")), Some(number("0.1")));
    }

    #[test]
    fn numbers_out_of_range_or_malformed_are_rejected() {
        for text in ["1e1001", "1e-1001", &"9".repeat(39), "1e99999999999", "", "x", "1..2", "0x1", "+1e", "-"] {
            assert!(
                Number::parse(text).is_none_or(|number| number == self::number("0") && !text.contains('9')),
                "{text}"
            );
        }
        let most = number(&"9".repeat(38));
        assert_eq!((most.plus(number("1e-1")), most.times(most)), (None, None));
        assert!(most > number(&format!("-{}", "9".repeat(38))), "the ends compare, too");
    }

    #[test]
    fn numbers_display_as_people_write_them() {
        for text in ["0", "700", "-12.5", "0.001", "123456789.25", "1e300", "5e-45"] {
            assert_eq!(number(text).to_string(), text);
        }
        assert_eq!((number("500.10").to_string(), number("7e2").to_string()), ("500.1".into(), "700".into()));
        assert_eq!(
            (number("12").as_index(), number("1.5").as_index(), number("-1").as_index()),
            (Some(12), None, None)
        );
    }
}
