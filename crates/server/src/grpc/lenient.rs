//! JSON as clients in many languages send it, read as leniently as the servers they were written for do.
//!
//! Numbers may come as text and text as numbers, `null` stands for the default of a number, unknown fields are
//! skipped, a field that comes twice counts by its last value.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use rollcall_core::Metadata;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use smol_str::SmolStr;

use crate::error::GrpcFailure;
use crate::json;

/// Reads a body.
///
/// # Errors
/// The failure that a body which is no fitting JSON object gets.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, GrpcFailure> {
    if body.trim_ascii() == b"null" {
        return Err(GrpcFailure::null_body());
    }
    serde_json::from_slice(body).map_err(|_| GrpcFailure::undecodable())
}

/// A text, or nothing for `null`. Numbers and booleans are read as their text.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Text<'a>(pub Option<Cow<'a, str>>);

impl Text<'_> {
    /// The text, empty when there is none.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

/// A whole number of Java's `int`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Int(pub i32);

/// A finite number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Double(pub f64);

/// A truth value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bool(pub bool);

/// Text pairs; a pair whose value is `null` is dropped with what its key had before, `null` itself stands for none.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Pairs(pub Vec<(SmolStr, SmolStr)>);

impl Pairs {
    /// As metadata.
    pub fn into_metadata(self) -> Metadata {
        Metadata::from_pairs(self.0)
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .rev()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }
}

/// Whether a field holds anything but `null`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Present(pub bool);

/// A key of an object, borrowed where it can be.
#[derive(Deserialize)]
pub struct Key<'a>(#[serde(borrow)] pub Cow<'a, str>);

struct Scalar<T>(PhantomData<T>);

/// What a scalar in JSON can become. Each method gives `None` where the value does not fit.
trait FromScalar<'a>: Sized {
    const EXPECTED: &'static str;
    fn null() -> Self;
    fn text(text: Cow<'a, str>) -> Option<Self>;
    fn integer(value: i64) -> Option<Self>;
    fn float(value: f64) -> Option<Self>;
    fn boolean(value: bool) -> Option<Self>;
}

impl<'a, T: FromScalar<'a>> Visitor<'a> for Scalar<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        Ok(T::null())
    }

    fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<T, E> {
        T::text(Cow::Borrowed(text)).ok_or_else(|| E::custom("text does not fit"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::text(Cow::Owned(text.to_owned())).ok_or_else(|| E::custom("text does not fit"))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<T, E> {
        T::boolean(value).ok_or_else(|| E::custom("boolean does not fit"))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        T::integer(value).ok_or_else(|| E::custom("number does not fit"))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        let fitting = match i64::try_from(value) {
            Ok(value) => T::integer(value),
            Err(_) => T::float(value as f64),
        };
        fitting.ok_or_else(|| E::custom("number does not fit"))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        T::float(value).ok_or_else(|| E::custom("number does not fit"))
    }
}

macro_rules! deserialize_scalar {
    ($($kind:ty),*) => {$(
        impl<'de: 'a, 'a> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Scalar::<$kind>(PhantomData))
            }
        }
    )*};
}

impl<'a> FromScalar<'a> for Text<'a> {
    const EXPECTED: &'static str = "a text";
    fn null() -> Self {
        Text(None)
    }
    fn text(text: Cow<'a, str>) -> Option<Self> {
        Some(Text(Some(text)))
    }
    fn integer(value: i64) -> Option<Self> {
        Some(Text(Some(Cow::Owned(value.to_string()))))
    }
    fn float(value: f64) -> Option<Self> {
        let mut text = Vec::new();
        json::double(&mut text, value);
        Some(Text(Some(Cow::Owned(String::from_utf8(text).ok()?))))
    }
    fn boolean(value: bool) -> Option<Self> {
        Some(Text(Some(Cow::Borrowed(if value { "true" } else { "false" }))))
    }
}

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar::<Text<'de>>(PhantomData))
    }
}

impl<'a> FromScalar<'a> for Int {
    const EXPECTED: &'static str = "a whole number";
    fn null() -> Self {
        Int(0)
    }
    fn text(text: Cow<'a, str>) -> Option<Self> {
        let text = text.trim();
        if text.is_empty() {
            Some(Int(0))
        } else {
            text.parse().ok().map(Int)
        }
    }
    fn integer(value: i64) -> Option<Self> {
        i32::try_from(value).ok().map(Int)
    }
    fn float(value: f64) -> Option<Self> {
        Self::integer(value as i64) // Cut towards zero; what is out of range stays out of range.
    }
    fn boolean(_: bool) -> Option<Self> {
        None
    }
}

impl<'a> FromScalar<'a> for Double {
    const EXPECTED: &'static str = "a number";
    fn null() -> Self {
        Double(0.0)
    }
    fn text(text: Cow<'a, str>) -> Option<Self> {
        let text = text.trim();
        if text.is_empty() {
            return Some(Double(0.0));
        }
        text.parse()
            .ok()
            .filter(|value: &f64| value.is_finite())
            .map(Double)
    }
    fn integer(value: i64) -> Option<Self> {
        Some(Double(value as f64))
    }
    fn float(value: f64) -> Option<Self> {
        Some(Double(value)).filter(|value| value.0.is_finite())
    }
    fn boolean(_: bool) -> Option<Self> {
        None
    }
}

impl<'a> FromScalar<'a> for Bool {
    const EXPECTED: &'static str = "a truth value";
    fn null() -> Self {
        Bool(false)
    }
    fn text(text: Cow<'a, str>) -> Option<Self> {
        match text.trim() {
            "true" | "True" | "TRUE" => Some(Bool(true)),
            "" | "false" | "False" | "FALSE" => Some(Bool(false)),
            _ => None,
        }
    }
    fn integer(value: i64) -> Option<Self> {
        Some(Bool(value != 0))
    }
    fn float(_: f64) -> Option<Self> {
        None
    }
    fn boolean(value: bool) -> Option<Self> {
        Some(Bool(value))
    }
}

deserialize_scalar!(Int, Double, Bool);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }
            fn visit_unit<E: Error>(self) -> Result<Pairs, E> {
                Ok(Pairs::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    match map.next_value()? {
                        Text(Some(value)) => pairs.push((SmolStr::new(key), SmolStr::new(value))),
                        Text(None) => pairs.retain(|(former, _)| former.as_str() != key),
                    }
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_any(PairsVisitor)
    }
}

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Present(
            Option::<IgnoredAny>::deserialize(deserializer)?.is_some(),
        ))
    }
}

/// Declares an object with named fields, all optional, unknown ones skipped, the last of equal ones winning.
macro_rules! object {
    ($(#[$meta:meta])* $name:ident<$lt:lifetime> { $($(#[$field_meta:meta])* $field:ident ($json:literal): $kind:ty = $default:expr,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        #[allow(unreachable_pub)] // Also used in private modules.
        pub struct $name<$lt> {
            $($(#[$field_meta])* pub $field: $kind,)*
            _life: std::marker::PhantomData<&$lt ()>,
        }

        impl Default for $name<'_> {
            fn default() -> Self {
                $name { $($field: $default,)* _life: std::marker::PhantomData }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name<'de> {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct ObjectVisitor;
                impl<'de> serde::de::Visitor<'de> for ObjectVisitor {
                    type Value = $name<'de>;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name<'de>, A::Error> {
                        #[allow(unused_mut)] // An object without fields.
                        let mut object = $name::default();
                        while let Some($crate::grpc::lenient::Key(key)) = map.next_key()? {
                            match &*key {
                                $($json => object.$field = map.next_value()?,)*
                                _ => { map.next_value::<serde::de::IgnoredAny>()?; }
                            }
                        }
                        Ok(object)
                    }
                }
                deserializer.deserialize_map(ObjectVisitor)
            }
        }
    };
}
pub(crate) use object;

#[cfg(test)]
mod tests {
    use super::*;

    object! {
        /// One of each.
        Sample<'a> {
            text ("text"): Text<'a> = Text(None),
            int ("int"): Int = Int(0),
            double ("double"): Double = Double(1.0),
            is_set ("isSet"): Bool = Bool(true),
            pairs ("pairs"): Pairs = Pairs::default(),
            table ("table"): Present = Present(false),
        }
    }

    fn read(json: &str) -> Option<Sample<'_>> {
        parse(json.as_bytes()).ok()
    }

    #[test]
    fn missing_fields_have_their_defaults_and_unknown_ones_are_skipped() {
        let sample = read(r#"{"zzz":{"a":[1]},"text":"x"}"#).unwrap_or_default();
        assert_eq!(
            (sample.text.as_str(), sample.double.0, sample.is_set.0),
            ("x", 1.0, true)
        );
    }

    #[test]
    fn scalars_may_come_in_each_others_clothes() {
        let sample = read(r#"{"text":8080,"int":"81","double":"2.5","isSet":"false"}"#).unwrap_or_default();
        assert_eq!(sample.text.as_str(), "8080");
        assert_eq!((sample.int.0, sample.double.0, sample.is_set.0), (81, 2.5, false));
        let sample = read(r#"{"text":true,"int":7.9,"double":1,"isSet":1}"#).unwrap_or_default();
        assert_eq!(
            (
                sample.text.as_str(),
                sample.int.0,
                sample.double.0,
                sample.is_set.0
            ),
            ("true", 7, 1.0, true)
        );
    }

    #[test]
    fn null_is_the_default_of_the_language_and_not_of_the_field() {
        let sample = read(r#"{"text":null,"int":null,"double":null,"isSet":null,"pairs":null,"table":null}"#);
        let sample = sample.unwrap_or_default();
        assert_eq!(
            (sample.text, sample.double.0, sample.is_set.0),
            (Text(None), 0.0, false)
        );
        assert!(sample.pairs.0.is_empty() && !sample.table.0);
    }

    #[test]
    fn pairs_take_scalars_and_drop_nulls() {
        let sample = read(r#"{"pairs":{"a":1,"b":null,"c":"d","e":true},"table":{}}"#).unwrap_or_default();
        assert_eq!(sample.pairs.get("a"), Some("1"));
        assert_eq!(
            (sample.pairs.get("b"), sample.pairs.get("e")),
            (None, Some("true"))
        );
        assert!(sample.table.0);
        assert!(read(r#"{"pairs":{"a":{}}}"#).is_none());
    }

    #[test]
    fn a_field_that_comes_twice_counts_by_its_last_value() {
        assert_eq!(read(r#"{"int":1,"int":2}"#).unwrap_or_default().int.0, 2);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for bad in [
            "",
            "[]",
            "zzz",
            "{\"int\":",
            r#"{"int":"abc"}"#,
            r#"{"int":99999999999}"#,
            r#"{"text":{}}"#,
            r#"{"double":"NaN"}"#,
            r#"{"double":1e999}"#,
            r#"{"isSet":"maybe"}"#,
            "{} x",
        ] {
            assert_eq!(
                parse::<Sample<'_>>(bad.as_bytes()).err(),
                Some(GrpcFailure::undecodable()),
                "{bad}"
            );
        }
        assert_eq!(
            parse::<Sample<'_>>(b" null ").err(),
            Some(GrpcFailure::null_body())
        );
        assert!(parse::<Sample<'_>>(b"{\"text\":\"\xff\"}").is_err());
    }
}
