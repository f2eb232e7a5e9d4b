//! Pushes of lists, over gRPC and as datagrams: which of them count.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::case::Case;
use crate::compare::recorded_among;

/// The list in a push, if the message is one.
fn list(message: &Value) -> Option<&Value> {
    message
        .pointer("/body/serviceInfo")
        .or_else(|| message.pointer("/json/data"))
}

/// Drops pushes that were not recorded and that a later one of the same list supersedes: how many come of changes in
/// a row is a matter of time (Nacos merges what happens within 500 ms).
pub(crate) fn without_superseded(case: &Case, messages: Vec<Value>) -> Vec<Value> {
    let identity = |message: &Value| {
        let list = list(message)?;
        let fields = ["groupName", "name", "clusters"].map(|field| list[field].clone());
        Some((message["to"].clone(), fields))
    };
    let is_recorded = recorded_among(case, &messages);
    let is_superseded = |i: usize, message: &Value| {
        identity(message).is_some_and(|it| {
            messages
                .iter()
                .skip(i + 1)
                .any(|later| identity(later).as_ref() == Some(&it))
        })
    };
    let kept = messages
        .iter()
        .enumerate()
        .filter(|(i, m)| is_recorded.contains(i) || !is_superseded(*i, m));
    kept.map(|(_, message)| message.clone()).collect()
}

/// Where it is open how many pushes come, the last one shows the last state.
///
/// # Errors
/// It does not, or none came.
pub(crate) fn check_last(case: &Case, answer: &Value) -> Result<()> {
    let hosts = |answer: &Value| {
        let messages = answer["received"].as_object()?;
        let last = messages.get(&messages.len().checked_sub(1)?.to_string())?;
        let mut hosts = list(last)?["hosts"].as_array()?.clone();
        hosts.sort_by_key(Value::to_string);
        Some(hosts)
    };
    ensure!(hosts(answer).is_some(), "no push: {answer}");
    ensure!(
        hosts(answer) == hosts(&case.answer),
        "the last push shows another state: {answer}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::case::Call;

    #[test]
    fn only_what_was_not_recorded_and_is_superseded_is_dropped() {
        let push = |name: &str, hosts: u8| {
            let info = json!({"name": name, "groupName": "g", "clusters": "", "hosts": hosts});
            json!({"type": "NotifySubscriberRequest", "body": {"serviceInfo": info}})
        };
        let case = Case {
            name: "case".into(),
            call: Call::Http,
            request: Value::Null,
            answer: json!({"received": {"0": push("a", 1)}}),
            volatile: Vec::new(),
            unordered: Vec::new(),
            wait: Duration::ZERO,
        };
        let kept = |messages: &[Value]| without_superseded(&case, messages.to_vec());
        assert_eq!(kept(&[push("a", 0), push("a", 1)]), [push("a", 1)]);
        assert_eq!(kept(&[push("a", 1), push("a", 1)]), [push("a", 1)]);
        assert_eq!(kept(&[push("b", 0), push("a", 1)]), [push("b", 0), push("a", 1)]);
        assert_eq!(kept(&[push("a", 1), push("a", 2)]), [push("a", 1), push("a", 2)]);
        let reset = json!({"type": "ConnectResetRequest", "body": {}});
        assert_eq!(kept(&[reset.clone(), push("a", 1)]), [reset, push("a", 1)]);
        let datagram =
            |to: &str, hosts: u8| json!({"to": to, "json": {"data": {"name": "a", "hosts": hosts}}});
        let both = [datagram("A", 0), datagram("B", 1)];
        assert_eq!(kept(&both), both);
        assert_eq!(kept(&[datagram("A", 0), datagram("A", 1)]), [datagram("A", 1)]);
    }
}
