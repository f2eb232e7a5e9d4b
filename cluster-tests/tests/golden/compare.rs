//! Compares an answer with the recorded one.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::case::Case;

/// Stands for "there is nothing here", in a list of differences and in an array with a hole.
pub(crate) const ABSENT: &str = "<absent>";

/// One place where two answers differ. `None` means that there is nothing at the place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mismatch {
    /// Pointer into the answer.
    pub(crate) pointer: String,
    /// What was recorded.
    pub(crate) recorded: Option<Value>,
    /// What this server says.
    pub(crate) ours: Option<Value>,
}

/// An answer laid beside the recorded one.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    /// This server's answer, arrays without order in the order of the recording, and messages beyond it under `extra`.
    pub(crate) ours: Value,
    /// Where it differs.
    pub(crate) mismatches: Vec<Mismatch>,
}

/// Compares this server's answer with the recorded one of the case. Numbers are equal if value and kind agree: `1` and
/// `1.0` differ, as they do on the wire.
pub(crate) fn compare(case: &Case, ours: &Value) -> Comparison {
    let ours = match received(&case.answer) {
        Some(_) if !is_volatile(case, "/received") => lay_messages(case, ours),
        _ => ours.clone(),
    };
    let ours = lay_arrays(case, "", &case.answer, &ours);
    let mut mismatches = Vec::new();
    differences(case, "", Some(&case.answer), Some(&ours), &mut mismatches);
    Comparison { ours, mismatches }
}

/// True when `pointer` is `place` or inside of it.
pub(crate) fn is_within(pointer: &str, place: &str) -> bool {
    pointer
        .strip_prefix(place)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Positions of those among our messages that agree with a recorded one, in order.
pub(crate) fn recorded_among(case: &Case, messages: &[Value]) -> BTreeSet<usize> {
    let recorded = received(&case.answer).unwrap_or_default();
    pair_messages(case, &recorded, messages)
        .into_iter()
        .map(|(_, ours)| ours)
        .collect()
}

/// True when all recorded messages of a stream case are among these, in order.
pub(crate) fn has_all_messages(case: &Case, messages: &[Value]) -> bool {
    received(&case.answer).is_some_and(|recorded| recorded_among(case, messages).len() == recorded.len())
}

fn is_volatile(case: &Case, pointer: &str) -> bool {
    case.volatile.iter().any(|place| is_within(pointer, place))
}

fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn differences(
    case: &Case,
    at: &str,
    recorded: Option<&Value>,
    ours: Option<&Value>,
    out: &mut Vec<Mismatch>,
) {
    if is_volatile(case, at) {
        return;
    }
    match (recorded, ours) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                differences(
                    case,
                    &format!("{at}/{}", escape(key)),
                    a.get(key),
                    b.get(key),
                    out,
                );
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for i in 0..a.len().max(b.len()) {
                differences(case, &format!("{at}/{i}"), a.get(i), b.get(i), out);
            }
        }
        (a, b) if a == b => {}
        (a, b) => out.push(Mismatch {
            pointer: at.to_owned(),
            recorded: a.cloned(),
            ours: b.cloned(),
        }),
    }
}

fn agree(case: &Case, at: &str, recorded: &Value, ours: &Value) -> bool {
    let laid = lay_arrays(case, at, recorded, ours);
    let mut found = Vec::new();
    differences(case, at, Some(recorded), Some(&laid), &mut found);
    found.is_empty()
}

/// Our answer with each array without order put in the order of the recording: equal elements first, the rest in turn.
fn lay_arrays(case: &Case, at: &str, recorded: &Value, ours: &Value) -> Value {
    match (recorded, ours) {
        (Value::Object(a), Value::Object(b)) => {
            let laid = b.iter().map(|(key, value)| {
                let value = a.get(key).map_or_else(
                    || value.clone(),
                    |recorded| lay_arrays(case, &format!("{at}/{}", escape(key)), recorded, value),
                );
                (key.clone(), value)
            });
            Value::Object(laid.collect::<Map<_, _>>())
        }
        (Value::Array(a), Value::Array(b)) => {
            let mut rest: Vec<&Value> = b.iter().collect();
            let order: Vec<Option<&Value>> = if case.unordered.iter().any(|place| place == at) {
                let exact = a.iter().enumerate().map(|(i, recorded)| {
                    let place = format!("{at}/{i}");
                    let found = rest.iter().position(|ours| agree(case, &place, recorded, ours));
                    found.map(|position| rest.remove(position))
                });
                exact.collect()
            } else {
                vec![None; a.len()]
            };
            // Holes are filled with what is left over; a hole that stays is shown as one.
            let hole = Value::from(ABSENT);
            let mut rest = rest.into_iter();
            let n_laid = order.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            let mut laid: Vec<&Value> = Vec::new();
            for (i, found) in order.into_iter().enumerate() {
                match found.or_else(|| rest.next()) {
                    Some(ours) => laid.push(ours),
                    None if i < n_laid => laid.push(&hole),
                    None => break,
                }
            }
            laid.extend(rest);
            let laid = laid.into_iter().enumerate().map(|(i, ours)| match a.get(i) {
                Some(recorded) => lay_arrays(case, &format!("{at}/{i}"), recorded, ours),
                None => ours.clone(),
            });
            Value::Array(laid.collect())
        }
        _ => ours.clone(),
    }
}

/// Messages of an answer in order, if it is one of a stream.
fn received(answer: &Value) -> Option<Vec<Value>> {
    let messages = answer.get("received")?.as_object()?;
    Some(
        (0..messages.len())
            .filter_map(|i| messages.get(&i.to_string()).cloned())
            .collect(),
    )
}

/// Longest common subsequence: (recorded, ours) positions of messages that agree.
fn pair_messages(case: &Case, recorded: &[Value], ours: &[Value]) -> Vec<(usize, usize)> {
    let agrees = |i: usize, j: usize| match (recorded.get(i), ours.get(j)) {
        (Some(a), Some(b)) => agree(case, &format!("/received/{i}"), a, b),
        _ => false,
    };
    let (n, m) = (recorded.len(), ours.len());
    let table: Vec<Vec<bool>> = (0..n).map(|i| (0..m).map(|j| agrees(i, j)).collect()).collect();
    let equal = |i: usize, j: usize| table.get(i).and_then(|row| row.get(j)).copied().unwrap_or(false);
    // best[i][j]: the most pairs among the first i recorded and the first j of ours.
    let mut best = vec![vec![0usize; m + 1]; n + 1];
    for i in 1..=n {
        for j in 1..=m {
            best[i][j] = if equal(i - 1, j - 1) {
                best[i - 1][j - 1] + 1
            } else {
                best[i - 1][j].max(best[i][j - 1])
            };
        }
    }
    // From the end, so that of several equal ones the last is paired.
    let (mut i, mut j, mut pairs) = (n, m, Vec::new());
    while i > 0 && j > 0 {
        if equal(i - 1, j - 1) {
            (i, j) = (i - 1, j - 1);
            pairs.push((i, j));
        } else if best[i - 1][j] >= best[i][j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    pairs.reverse();
    pairs
}

/// Our messages at the positions of the recorded ones they agree with; between those in turn; what is left over is
/// `extra`.
fn lay_messages(case: &Case, ours: &Value) -> Value {
    let (Some(recorded), Some(messages)) = (received(&case.answer), received(ours)) else {
        return ours.clone();
    };
    let mut pairs = pair_messages(case, &recorded, &messages);
    pairs.push((recorded.len(), messages.len()));
    let (mut at, mut extra) = (Map::new(), Vec::new());
    let (mut i, mut j) = (0, 0);
    for (next_i, next_j) in pairs {
        while j < next_j {
            if i < next_i {
                at.insert(i.to_string(), messages[j].clone());
                i += 1;
            } else {
                extra.push(messages[j].clone());
            }
            j += 1;
        }
        if let Some(message) = messages.get(next_j) {
            at.insert(next_i.to_string(), message.clone());
        }
        (i, j) = (next_i + 1, next_j + 1);
    }
    let mut answer = ours.as_object().cloned().unwrap_or_default();
    answer.insert("received".into(), Value::Object(at));
    if !extra.is_empty() {
        answer.insert("extra".into(), crate::case::numbered(&extra));
    }
    Value::Object(answer)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::case::{Call, numbered};

    fn case(answer: Value, volatile: &[&str], unordered: &[&str]) -> Case {
        let owned = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
        Case {
            name: "case".into(),
            call: Call::Http,
            request: Value::Null,
            answer,
            volatile: owned(volatile),
            unordered: owned(unordered),
            wait: Duration::ZERO,
        }
    }

    fn places(case: &Case, ours: Value) -> Vec<String> {
        compare(case, &ours)
            .mismatches
            .into_iter()
            .map(|m| m.pointer)
            .collect()
    }

    #[test]
    fn a_whole_number_and_a_fraction_differ() {
        let case = case(json!({"w": 1.0}), &[], &[]);
        assert_eq!(places(&case, json!({"w": 1})), ["/w"]);
        assert!(places(&case, json!({"w": 1.0})).is_empty());
    }

    #[test]
    fn a_field_too_few_and_one_too_many_differ() {
        let case = case(json!({"a": 1, "b": null}), &[], &[]);
        assert_eq!(places(&case, json!({"a": 1})), ["/b"]);
        assert_eq!(places(&case, json!({"a": 1, "b": null, "c/d": 2})), ["/c~1d"]);
    }

    #[test]
    fn volatile_places_are_not_compared_present_or_not() {
        let case = case(json!({"a": {"t": 5}, "ab": 1}), &["/a"], &[]);
        assert!(places(&case, json!({"a": 7, "ab": 1})).is_empty());
        assert!(places(&case, json!({"ab": 1})).is_empty());
        assert_eq!(places(&case, json!({"a": 7, "ab": 2})), ["/ab"]);
    }

    #[test]
    fn an_array_without_order_is_a_set() {
        let case = case(
            json!({"h": [{"i": 1, "t": 5}, {"i": 2, "t": 5}]}),
            &["/h/0/t", "/h/1/t"],
            &["/h"],
        );
        assert!(places(&case, json!({"h": [{"i": 2, "t": 8}, {"i": 1, "t": 9}]})).is_empty());
        assert_eq!(places(&case, json!({"h": [{"i": 2, "t": 8}]})), ["/h/0"]);
        assert_eq!(places(&case, json!({"h": [{"i": 1, "t": 8}]})), ["/h/1"]);
        assert_eq!(places(&case, json!({"h": [{"i": 2}, {"i": 2}]})), ["/h/0/i"]);
    }

    #[test]
    fn an_array_with_order_is_not() {
        let case = case(json!([1, 2]), &[], &[]);
        assert_eq!(places(&case, json!([2, 1])), ["/0", "/1"]);
    }

    #[test]
    fn a_message_too_many_is_extra_and_shifts_nothing() {
        let case = case(
            json!({"received": numbered(&[json!({"m": 1}), json!({"m": 2})])}),
            &[],
            &[],
        );
        let ours = |list: &[Value]| json!({ "received": numbered(list) });
        let (one, two, new) = (json!({"m": 1}), json!({"m": 2}), json!({"m": 0}));
        assert!(places(&case, ours(&[one.clone(), two.clone()])).is_empty());
        assert_eq!(
            places(&case, ours(&[new.clone(), one.clone(), two.clone()])),
            ["/extra"]
        );
        assert_eq!(places(&case, ours(&[one.clone(), new, two.clone()])), ["/extra"]);
        assert_eq!(places(&case, ours(std::slice::from_ref(&two))), ["/received/0"]);
        assert_eq!(places(&case, ours(&[one])), ["/received/1"]);
        assert_eq!(places(&case, ours(&[json!({"m": 7}), two])), ["/received/0/m"]);
    }
}
