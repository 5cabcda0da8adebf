//! Numbers and flags of a body as leniently read as vLLM reads them (pydantic's lax mode): `"0.5"` is 0.5, `4.0` is
//! 4, `true` is 1, `"yes"` is true. What would lose something (`4.5` where a whole number belongs) is an error. The
//! one place for this rule.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

use crate::api_error::{ApiError, clip};

/// A whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int(pub i64);

/// A finite number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Float(pub f64);

/// A flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flag(pub bool);

/// 2^63, the first f64 past i64.
const PAST_I64: f64 = 9_223_372_036_854_775_808.0;

fn whole(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && (-PAST_I64..PAST_I64).contains(&value)).then_some(value as i64)
}

/// Whole numbers as text: digits with a sign, and zeros behind a point.
fn whole_text(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = match text.split_once('.') {
        Some((digits, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => digits,
        Some(_) => return None,
        None => text,
    };
    digits.parse().ok()
}

fn flag_text(text: &str) -> Option<bool> {
    let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is(&["true", "t", "yes", "y", "on", "1"]) {
        Some(true)
    } else {
        is(&["false", "f", "no", "n", "off", "0"]).then_some(false)
    }
}

fn wrong<E: Error>(found: impl fmt::Display, expected: &str) -> E {
    E::custom(format_args!("found {found}, expected {expected}"))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", clip(text))
}

impl Int {
    const EXPECTED: &str = "an integer";

    /// The number in a JSON value, under the same rule.
    pub fn of(value: &Value) -> Option<i64> {
        Int::deserialize(value).ok().map(|Int(number)| number)
    }
}

impl Float {
    const EXPECTED: &str = "a finite number";
}

impl Flag {
    const EXPECTED: &str = "true or false";
}

struct IntVisitor;

impl Visitor<'_> for IntVisitor {
    type Value = Int;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Int::EXPECTED)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Int, E> {
        Ok(Int(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Int, E> {
        Ok(Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Int, E> {
        i64::try_from(value)
            .map(Int)
            .map_err(|_| wrong(value, "an integer of 64 bits"))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Int, E> {
        whole(value).map(Int).ok_or_else(|| wrong(value, Int::EXPECTED))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Int, E> {
        whole_text(text)
            .map(Int)
            .ok_or_else(|| wrong(quoted(text), Int::EXPECTED))
    }
}

struct FloatVisitor;

impl Visitor<'_> for FloatVisitor {
    type Value = Float;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Float::EXPECTED)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Float, E> {
        Ok(Float(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Float, E> {
        Ok(Float(value as f64))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Float, E> {
        Ok(Float(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Float, E> {
        Ok(Float(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Float, E> {
        let number = text.trim().parse().ok().filter(|number: &f64| number.is_finite());
        number.map(Float).ok_or_else(|| wrong(quoted(text), Float::EXPECTED))
    }
}

struct FlagVisitor;

impl FlagVisitor {
    fn number<E: Error>(value: f64) -> Result<Flag, E> {
        match value {
            0.0 => Ok(Flag(false)),
            1.0 => Ok(Flag(true)),
            _ => Err(wrong(value, Flag::EXPECTED)),
        }
    }
}

impl Visitor<'_> for FlagVisitor {
    type Value = Flag;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Flag::EXPECTED)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Flag, E> {
        Ok(Flag(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Flag, E> {
        Self::number(value as f64)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Flag, E> {
        Self::number(value as f64)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Flag, E> {
        Self::number(value)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Flag, E> {
        flag_text(text)
            .map(Flag)
            .ok_or_else(|| wrong(quoted(text), Flag::EXPECTED))
    }
}

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntVisitor)
    }
}

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FloatVisitor)
    }
}

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FlagVisitor)
    }
}

/// An integer field inside its range.
///
/// # Errors
/// 400 with value and range.
pub fn ranged(name: &str, value: i64, low: i64, high: i64) -> Result<u32, ApiError> {
    match u32::try_from(value) {
        Ok(number) if (low..=high).contains(&value) => Ok(number),
        _ => Err(ApiError::field(
            name,
            format!("{name} is {value}; it must be between {low} and {high}"),
        )),
    }
}

/// The integers of a list.
pub fn integers(list: &[Int]) -> Vec<i64> {
    list.iter().map(|Int(number)| *number).collect()
}

/// Whether an optional flag was sent and is set.
pub fn is_set(flag: Option<Flag>) -> bool {
    flag.is_some_and(|Flag(set)| set)
}

/// A struct that only an object fills: serde reads a list into any struct, field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<T> {
    /// Its fields.
    pub fields: T,
    /// Whether the object has none at all, not even unknown ones or null.
    pub is_empty: bool,
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        // The map of a JSON value knows its size.
        let is_empty = map.size_hint() == Some(0);
        let fields = T::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Object { fields, is_empty })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ObjectVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn numbers_are_read_as_pydantic_reads_them() {
        for (sent, read) in [
            (json!(4), 4),
            (json!(4.0), 4),
            (json!("4"), 4),
            (json!(" -4 "), -4),
            (json!("4.00"), 4),
            (json!(true), 1),
            (json!(false), 0),
            (json!(1e3), 1000),
        ] {
            assert_eq!(
                from_value::<Int>(sent.clone()).expect("an integer"),
                Int(read),
                "{sent}"
            );
        }
        for wrong in [
            json!(4.5),
            json!("4.5"),
            json!("four"),
            json!(""),
            json!("4."),
            json!([4]),
            json!({}),
            json!(null),
            json!(1e19),
            json!(u64::MAX),
        ] {
            from_value::<Int>(wrong.clone()).expect_err(&wrong.to_string());
        }
        for (sent, read) in [
            (json!(0.5), 0.5),
            (json!("0.5"), 0.5),
            (json!("1e-2"), 0.01),
            (json!(2), 2.0),
            (json!(true), 1.0),
        ] {
            assert_eq!(
                from_value::<Float>(sent.clone()).expect("a number"),
                Float(read),
                "{sent}"
            );
        }
        for wrong in [
            json!("hot"),
            json!("nan"),
            json!("inf"),
            json!("1e999"),
            json!([]),
            json!(""),
        ] {
            from_value::<Float>(wrong.clone()).expect_err(&wrong.to_string());
        }
    }

    #[test]
    fn flags_are_read_as_pydantic_reads_them() {
        for sent in [
            json!(true),
            json!(1),
            json!(1.0),
            json!("true"),
            json!("YES"),
            json!("on"),
        ] {
            assert_eq!(from_value::<Flag>(sent.clone()).expect("a flag"), Flag(true), "{sent}");
        }
        for sent in [json!(false), json!(0), json!("off"), json!("f"), json!("0")] {
            assert_eq!(from_value::<Flag>(sent.clone()).expect("a flag"), Flag(false), "{sent}");
        }
        for wrong in [json!(2), json!("perhaps"), json!(""), json!(0.5), json!([])] {
            from_value::<Flag>(wrong.clone()).expect_err(&wrong.to_string());
        }
    }

    #[test]
    fn an_error_shows_the_beginning_of_a_long_text_only() {
        let error = from_value::<Int>(json!("x".repeat(10_000))).expect_err("no number");
        assert!(error.to_string().len() < 500, "{} bytes", error.to_string().len());
    }
}
