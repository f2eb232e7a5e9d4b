//! JSON by hand, for answers that are made hundreds of thousands of times a second and must look as the protocol
//! has them: field order, numbers and nulls included.

use std::io::Write;

use serde::Serialize;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends `text` as a JSON string, quotes included.
pub fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut from = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(bytes.get(from..at).unwrap_or_default());
        from = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
        }
    }
    out.extend_from_slice(bytes.get(from..).unwrap_or_default());
    out.push(b'"');
}

/// Appends `,"name":`, the beginning of a further member of an object.
pub fn member(out: &mut Vec<u8>, name: &str) {
    out.push(b',');
    string(out, name);
    out.push(b':');
}

/// Appends a value that need not be made fast. Values are structs, lists and texts, so this cannot fail.
pub fn value(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}

/// Appends a list, each element by `write`.
pub fn list<T>(out: &mut Vec<u8>, items: impl IntoIterator<Item = T>, write: impl Fn(&mut Vec<u8>, T)) {
    out.push(b'[');
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

/// Appends a whole number.
pub fn integer(out: &mut Vec<u8>, value: impl Into<i128>) {
    let _ = write!(out, "{}", value.into()); // Writing to a vector cannot fail.
}

/// Appends an unsigned number; the fast form for times and counters.
pub fn unsigned(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends `true` or `false`.
pub fn boolean(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

/// Appends a number as Java prints a `double`: `1.0`, `0.5`, `1.0E7`, `1.0E-4`. What is no number becomes `0.0`.
pub fn double(out: &mut Vec<u8>, value: f64) {
    if value == 1.0 {
        out.extend_from_slice(b"1.0"); // Nearly every weight.
        return;
    }
    if !value.is_finite() {
        out.extend_from_slice(b"0.0");
        return;
    }
    let size = value.abs();
    if size == 0.0 || (1e-3..1e7).contains(&size) {
        let start = out.len();
        let _ = write!(out, "{value}");
        if !out.get(start..).unwrap_or_default().contains(&b'.') {
            out.extend_from_slice(b".0");
        }
        return;
    }
    // Rust writes `1e7` where Java writes `1.0E7`.
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    out.extend_from_slice(mantissa.as_bytes());
    if !mantissa.contains('.') {
        out.extend_from_slice(b".0");
    }
    out.push(b'E');
    out.extend_from_slice(exponent.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap_or_default()
    }

    #[test]
    fn strings_come_back_through_a_parser() {
        for raw in [
            "",
            "a\"b\\c",
            "l1\nl2\r\t\u{8}\u{1f}",
            "说明 😀 \u{7f}",
            "\u{2028}/",
        ] {
            let json = text(|out| string(out, raw));
            assert_eq!(
                serde_json::from_str::<String>(&json).ok().as_deref(),
                Some(raw),
                "{json}"
            );
        }
    }

    #[test]
    fn doubles_look_as_javas() {
        for (value, expected) in [
            (1.0, "1.0"),
            (0.0, "0.0"),
            (5.5, "5.5"),
            (0.001, "0.001"),
            (1000.0, "1000.0"),
            (10000.0, "10000.0"),
            (-1.0, "-1.0"),
            (1e7, "1.0E7"),
            (1.5e300, "1.5E300"),
            (0.0001, "1.0E-4"),
            (f64::NAN, "0.0"),
        ] {
            let json = text(|out| double(out, value));
            assert_eq!(json, expected);
            assert!(serde_json::from_str::<f64>(&json).is_ok(), "{json}");
        }
    }

    #[test]
    fn numbers_are_plain_digits() {
        assert_eq!(text(|out| unsigned(out, 0)), "0");
        assert_eq!(text(|out| unsigned(out, u64::MAX)), u64::MAX.to_string());
        assert_eq!(text(|out| integer(out, -401)), "-401");
    }
}
