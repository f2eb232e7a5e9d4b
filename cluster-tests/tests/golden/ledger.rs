//! The list of recorded cases that this server answers otherwise: on purpose (`differences`), or because what they
//! need is not there yet (`later`). Every entry must be needed, and every difference says what the answer is instead.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::case;
use crate::compare::{ABSENT, Comparison, Mismatch, is_within};

/// What may be missing: the kinds of `later`.
const NEEDS: [&str; 2] = ["persistent instances", "users and tokens"];

/// Stands in an entry for a value that cannot be told beforehand.
pub(crate) const ANY: &str = "<any>";

/// Stands for the names of all cases of a file that are not answered as recorded.
const ALL: &str = "<all>";

/// File and name of a case.
pub(crate) type Key = (String, String);

/// What the list says of one case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// Pointer -> what this server answers there.
    pub(crate) ours: BTreeMap<String, Value>,
    /// The capability that the case needs and that is missing.
    pub(crate) later: Option<String>,
}

/// The whole list.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: BTreeMap<Key, Entry>,
    /// Files most of which need a capability that is missing: all their cases that are not answered as recorded and
    /// not listed by name.
    whole: BTreeMap<String, String>,
}

/// How a case came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// As recorded.
    Pass,
    /// Otherwise, as listed.
    Difference,
    /// Otherwise, because something is missing that the list names.
    Later,
}

impl Ledger {
    /// The list in `golden/differences.json`.
    ///
    /// # Errors
    /// It cannot be read, has an entry without a reason, or names the same place twice.
    pub(crate) fn load() -> Result<Self> {
        let path = case::folder().join("differences.json");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ledger::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let list: Value = serde_json::from_str(text)?;
        let mut ledger = Ledger::default();
        for raw in list["differences"].as_array().context("no array `differences`")? {
            let ours = raw["ours"]
                .as_object()
                .with_context(|| format!("no object `ours` in {raw}"))?;
            ensure!(!ours.is_empty(), "nothing in `ours` of {raw}");
            ensure!(
                raw["reason"].as_str().is_some_and(|r| r.len() > 5),
                "no `reason` in {raw}"
            );
            for key in keys(raw)? {
                let entry = ledger.entries.entry(key.clone()).or_default();
                for (pointer, value) in ours {
                    ensure!(pointer.starts_with('/'), "{pointer:?} in {raw} is no pointer");
                    if entry.ours.insert(pointer.clone(), value.clone()).is_some() {
                        bail!("{key:?} has {pointer} twice");
                    }
                }
            }
        }
        for raw in list["later"].as_array().context("no array `later`")? {
            let needs = raw["needs"]
                .as_str()
                .with_context(|| format!("no `needs` in {raw}"))?;
            ensure!(NEEDS.contains(&needs), "{needs:?} in {raw} is none of {NEEDS:?}");
            if raw["cases"] == ALL {
                let file = raw["file"]
                    .as_str()
                    .with_context(|| format!("no `file` in {raw}"))?;
                ledger.whole.insert(file.to_owned(), needs.to_owned());
                continue;
            }
            for key in keys(raw)? {
                let entry = ledger.entries.entry(key.clone()).or_default();
                ensure!(
                    entry.ours.is_empty() && entry.later.is_none(),
                    "{key:?} is listed twice"
                );
                entry.later = Some(needs.to_owned());
            }
        }
        Ok(ledger)
    }

    /// Judges one case.
    ///
    /// # Errors
    /// What is wrong, one line each: a difference that is not listed or not as listed, an entry that is not needed.
    pub(crate) fn judge(&self, key: &Key, comparison: &Comparison) -> Result<Verdict, Vec<String>> {
        let Some(entry) = self.entries.get(key) else {
            return match comparison.mismatches.as_slice() {
                [] => Ok(Verdict::Pass),
                _ if self.is_whole(&key.0) => Ok(Verdict::Later),
                mismatches => Err(mismatches.iter().map(unlisted).collect()),
            };
        };
        let mut wrong = Vec::new();
        if let Some(needs) = entry.later.as_ref().filter(|_| comparison.mismatches.is_empty()) {
            wrong.push(format!(
                "listed as later ({needs}), but it is answered as recorded: take it off the list"
            ));
        }
        for (pointer, expected) in &entry.ours {
            if !comparison.mismatches.iter().any(|m| touches(m, pointer)) {
                wrong.push(format!(
                    "{pointer} is listed as a difference, but it is as recorded: take it off the list"
                ));
            } else if !matches(expected, comparison.ours.pointer(pointer)) {
                let ours = shown(comparison.ours.pointer(pointer));
                wrong.push(format!("{pointer} is to be {expected}, but it is {ours}"));
            }
        }
        if entry.later.is_none() {
            for m in &comparison.mismatches {
                if !entry.ours.keys().any(|pointer| touches(m, pointer)) {
                    wrong.push(unlisted(m));
                }
            }
        }
        match (wrong.is_empty(), &entry.later) {
            (false, _) => Err(wrong),
            (true, Some(_)) => Ok(Verdict::Later),
            (true, None) => Ok(Verdict::Difference),
        }
    }

    /// Entries of cases that do not exist.
    pub(crate) fn unknown(&self, known: &BTreeSet<Key>) -> Vec<Key> {
        self.entries
            .keys()
            .filter(|key| !known.contains(*key))
            .cloned()
            .collect()
    }

    /// The capability that a case needs that is to be answered later.
    pub(crate) fn needs(&self, key: &Key) -> &str {
        let entry = self.entries.get(key).and_then(|entry| entry.later.as_deref());
        let needs = entry.or_else(|| self.whole.get(&key.0).map(String::as_str));
        needs.unwrap_or_default()
    }

    /// True for a file whose cases may all be later.
    pub(crate) fn is_whole(&self, file: &str) -> bool {
        self.whole.contains_key(file)
    }
}

fn unlisted(m: &Mismatch) -> String {
    let (recorded, ours) = (shown(m.recorded.as_ref()), shown(m.ours.as_ref()));
    format!("{} was recorded as {recorded}, but it is {ours}", m.pointer)
}

fn keys(raw: &Value) -> Result<Vec<Key>> {
    let file = raw["file"]
        .as_str()
        .with_context(|| format!("no `file` in {raw}"))?;
    let cases = raw["cases"]
        .as_array()
        .with_context(|| format!("no array `cases` in {raw}"))?;
    ensure!(!cases.is_empty(), "no case in {raw}");
    let key = |name: &Value| name.as_str().map(|name| (file.to_owned(), name.to_owned()));
    cases
        .iter()
        .map(|name| key(name).with_context(|| format!("{name} in {raw} is no name")))
        .collect()
}

/// True when an entry at `pointer` is about this mismatch: one is inside the other.
fn touches(mismatch: &Mismatch, pointer: &str) -> bool {
    is_within(&mismatch.pointer, pointer) || is_within(pointer, &mismatch.pointer)
}

/// Compares what we answer with what an entry says. Fields of objects that the entry does not name may be anything.
fn matches(expected: &Value, ours: Option<&Value>) -> bool {
    match (expected, ours) {
        (Value::String(text), None) => text == ABSENT,
        (_, None) => false,
        (Value::String(text), Some(_)) if text == ANY => true,
        (Value::Object(fields), Some(ours)) => {
            ours.is_object() && fields.iter().all(|(key, value)| matches(value, ours.get(key)))
        }
        (Value::Array(items), Some(Value::Array(ours))) => {
            items.len() == ours.len()
                && items
                    .iter()
                    .zip(ours)
                    .all(|(item, ours)| matches(item, Some(ours)))
        }
        (expected, Some(ours)) => expected == ours,
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ledger(ours: Value) -> Ledger {
        let list = json!({
            "differences": [{"file": "f", "cases": ["d"], "reason": "reasons", "ours": ours}],
            "later": [{"file": "f", "cases": ["l"], "needs": "users and tokens"}],
        });
        Ledger::parse(&list.to_string()).unwrap()
    }

    fn key(name: &str) -> Key {
        ("f".into(), name.into())
    }

    fn comparison(ours: Value, places: &[&str]) -> Comparison {
        let mismatch = |place: &&str| Mismatch {
            pointer: place.to_string(),
            recorded: Some(json!("recorded")),
            ours: ours.pointer(place).cloned(),
        };
        Comparison {
            mismatches: places.iter().map(mismatch).collect(),
            ours,
        }
    }

    #[test]
    fn a_difference_must_be_listed_and_as_listed() {
        let ledger = ledger(json!({"/a": 404}));
        assert_eq!(
            ledger.judge(&key("d"), &comparison(json!({"a": 404}), &["/a"])),
            Ok(Verdict::Difference)
        );
        assert!(
            ledger
                .judge(&key("d"), &comparison(json!({"a": 405}), &["/a"]))
                .is_err()
        );
        assert!(
            ledger
                .judge(&key("d"), &comparison(json!({"a": 404, "b": 1}), &["/a", "/b"]))
                .is_err()
        );
        assert!(
            ledger
                .judge(&key("other"), &comparison(json!({"a": 404}), &["/a"]))
                .is_err()
        );
        assert_eq!(
            ledger.judge(&key("other"), &comparison(json!({}), &[])),
            Ok(Verdict::Pass)
        );
    }

    #[test]
    fn an_entry_that_is_not_needed_is_wrong() {
        let ledger = ledger(json!({"/a": 404}));
        assert!(
            ledger
                .judge(&key("d"), &comparison(json!({"a": 404}), &[]))
                .is_err()
        );
        assert!(ledger.judge(&key("l"), &comparison(json!({}), &[])).is_err());
        assert_eq!(
            ledger.judge(&key("l"), &comparison(json!({"z": 1}), &["/z"])),
            Ok(Verdict::Later)
        );
        assert_eq!(ledger.unknown(&BTreeSet::from([key("d")])), [key("l")]);
    }

    #[test]
    fn an_entry_may_name_part_of_an_object() {
        let ledger = ledger(json!({"/extra": {"0": {"hosts": [], "t": ANY, "gone": ABSENT}}}));
        let ours = |message: Value| comparison(json!({"extra": {"0": message}}), &["/extra"]);
        assert!(
            ledger
                .judge(&key("d"), &ours(json!({"hosts": [], "t": 5, "more": 1})))
                .is_ok()
        );
        assert!(
            ledger
                .judge(&key("d"), &ours(json!({"hosts": [1], "t": 5})))
                .is_err()
        );
        assert!(ledger.judge(&key("d"), &ours(json!({"hosts": []}))).is_err());
        assert!(
            ledger
                .judge(&key("d"), &ours(json!({"hosts": [], "t": 5, "gone": null})))
                .is_err()
        );
    }

    #[test]
    fn a_list_with_a_fault_is_refused() {
        let good = json!({"file": "f", "cases": ["d"], "reason": "reasons", "ours": {"/a": 1}});
        let list = |differences: Value, later: Value| {
            json!({"differences": differences, "later": later}).to_string()
        };
        assert!(Ledger::parse(&list(json!([good]), json!([]))).is_ok());
        assert!(Ledger::parse(&list(json!([good, good]), json!([]))).is_err());
        let also_later = json!([{"file": "f", "cases": ["d"], "needs": "users and tokens"}]);
        assert!(Ledger::parse(&list(json!([good]), also_later)).is_err());
        for field in ["file", "cases", "reason", "ours"] {
            let mut bad = good.clone();
            bad[field] = Value::Null;
            assert!(
                Ledger::parse(&list(json!([bad]), json!([]))).is_err(),
                "without {field}"
            );
        }
    }
}
