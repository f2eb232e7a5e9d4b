//! Small faults put into a right answer, to prove that the comparison sees each.

use serde_json::{Value, json};

use crate::case::Case;
use crate::compare::{compare, is_within};

/// Answers that differ from `answer` in one place each, with the pointer of that place: every scalar changed, every
/// field dropped, a field added to every object, an element added to and taken from every array. Volatile places are
/// left alone.
pub(crate) fn mutations(case: &Case, answer: &Value) -> Vec<(String, Value)> {
    let mut places = Vec::new();
    walk(answer, String::new(), &mut places);
    let mut found = Vec::new();
    for place in places {
        // The outermost object is ours, not the server's.
        if place.is_empty() || case.volatile.iter().any(|volatile| is_within(&place, volatile)) {
            continue;
        }
        for changed in changes(&place, answer) {
            found.push((place.clone(), changed));
        }
    }
    found
}

/// Asserts that each mutation of the answer is seen; gives their number.
///
/// # Errors
/// The place of a fault that was not seen.
pub(crate) fn check(case: &Case, answer: &Value) -> Result<usize, String> {
    let all = mutations(case, answer);
    for (place, mutated) in &all {
        if compare(case, mutated).mismatches.is_empty() {
            return Err(format!(
                "{}: a fault at {place} is not seen: {mutated}",
                case.name
            ));
        }
    }
    Ok(all.len())
}

fn walk(value: &Value, at: String, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                walk(
                    value,
                    format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")),
                    out,
                );
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                walk(item, format!("{at}/{i}"), out);
            }
        }
        _ => {}
    }
    out.push(at);
}

fn changes(place: &str, answer: &Value) -> Vec<Value> {
    let mut out = Vec::new();
    let mut with = |change: &dyn Fn(&mut Value)| {
        let mut copy = answer.clone();
        if let Some(value) = copy.pointer_mut(place) {
            change(value);
            out.push(copy);
        }
    };
    match answer.pointer(place) {
        // Messages are numbered: one more has the next number.
        Some(Value::Object(fields)) if place == "/received" => {
            let next = fields.len().to_string();
            with(&|value| value[&next] = json!("added by a mutation"));
        }
        Some(Value::Object(_)) => with(&|value| value["added by a mutation"] = json!(1)),
        Some(Value::Array(_)) => with(&|value| push(value, json!("added by a mutation"))),
        Some(Value::String(text)) => with(&|value| *value = json!(format!("{text}."))),
        Some(Value::Bool(was)) => with(&|value| *value = json!(!was)),
        Some(Value::Null) => with(&|value| *value = json!("not null")),
        Some(Value::Number(number)) => {
            let next = number
                .as_i64()
                .map_or_else(|| json!(number.as_f64().unwrap_or(0.0) + 1.0), |n| json!(n + 1));
            with(&|value| *value = next.clone());
            if let Some(fraction) = number.as_f64().filter(|f| f.fract() == 0.0 && number.is_f64()) {
                with(&|value| *value = json!(fraction as i64));
            }
        }
        None => {}
    }
    if let Some((parent, key)) = place.rsplit_once('/') {
        let mut copy = answer.clone();
        match copy.pointer_mut(parent) {
            Some(Value::Object(fields)) => {
                fields.remove(&key.replace("~1", "/").replace("~0", "~"));
            }
            Some(Value::Array(items)) => {
                if let Some(i) = key.parse().ok().filter(|i| *i < items.len()) {
                    items.remove(i);
                }
            }
            _ => {}
        }
        out.push(copy);
    }
    out
}

fn push(array: &mut Value, item: Value) {
    if let Value::Array(items) = array {
        items.push(item);
    }
}
