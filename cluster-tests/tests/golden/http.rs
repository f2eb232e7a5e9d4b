//! Recorded HTTP requests, sent as recorded.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use cluster_tests::Node;
use reqwest::{Client, Method, redirect};
use serde_json::{Map, Value, json};

/// The console of 3.x has a port of its own; ours is on the main port.
const CONSOLE_PORT: u64 = 8080;

/// Sends recorded requests to the nodes that stand in for the recorded ones.
#[derive(Debug)]
pub(crate) struct Replayer {
    client: Client,
    /// Recorded address of a node -> the address of ours.
    nodes: Vec<(String, String)>,
}

impl Replayer {
    /// The recorded nodes were `127.0.0.1` with the ports 8848, 8858 and 8868.
    ///
    /// # Errors
    /// No HTTP client can be made.
    pub(crate) fn new(nodes: &[Node]) -> Result<Self> {
        let client = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .timeout(Duration::from_secs(30))
            .build()?;
        let recorded = |i: usize| format!("127.0.0.1:{}", 8848 + 10 * i);
        let nodes = nodes
            .iter()
            .enumerate()
            .map(|(i, node)| (recorded(i), node.address()))
            .collect();
        Ok(Replayer { client, nodes })
    }

    /// Sends a request; the answer has the form of the recorded ones, with the recorded addresses in place of ours.
    ///
    /// # Errors
    /// The request is not understood, or there is no answer to it.
    pub(crate) async fn send(&self, request: &Value) -> Result<Value> {
        let method = Method::from_bytes(request["method"].as_str().context("no method")?.as_bytes())?;
        let path = request["path"].as_str().context("no path")?;
        let port = match request["port"].as_u64() {
            None | Some(CONSOLE_PORT) => 8848,
            Some(port) => port,
        };
        let recorded = format!("127.0.0.1:{port}");
        let node = self.nodes.iter().find(|(was, _)| *was == recorded);
        let (_, address) = node.with_context(|| format!("no node stands in for {recorded}"))?;
        let mut query = request["query"].clone();
        // An address that is asked for is that of a node.
        if let Some(asked) = query.get_mut("address") {
            let host = address.split(':').next().unwrap_or_default();
            *asked = json!(asked.as_str().unwrap_or_default().replace("127.0.0.1", host));
        }
        let query = encoded(&query)?;
        let mark = if query.is_empty() { "" } else { "?" };
        let mut builder = self
            .client
            .request(method, format!("http://{address}{path}{mark}{query}"));
        for (name, value) in request["headers"].as_object().into_iter().flatten() {
            builder = builder.header(name, value.as_str().context("a header is not text")?);
        }
        builder = match (&request["form"], &request["body"]) {
            (Value::Null, Value::Null) => builder,
            (form @ Value::Object(_), Value::Null) => builder.body(encoded(form)?),
            (Value::Null, Value::String(text)) => builder.body(text.clone()),
            (Value::Null, body) => builder.body(body.to_string()),
            _ => anyhow::bail!("a form and a body"),
        };
        let response = builder.send().await?;
        let header = |name: &str| {
            let value = response.headers().get(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let (content_type, location) = (header("content-type"), header("location"));
        let authorization = header("authorization");
        let status = response.status().as_u16();
        let text = self.as_recorded(&String::from_utf8_lossy(&response.bytes().await?));
        let is_json = content_type.as_deref().is_some_and(|t| t.contains("json"));
        let parsed = is_json.then(|| serde_json::from_str(&text).ok()).flatten();
        let mut answer = Map::from_iter([
            ("status".to_owned(), json!(status)),
            ("content_type".to_owned(), json!(content_type)),
            (
                "body".to_owned(),
                parsed.map_or(Value::String(text), |value| self.with_ports(value)),
            ),
        ]);
        for (name, value) in [("location", location), ("authorization", authorization)] {
            if let Some(value) = value {
                answer.insert(name.into(), json!(value));
            }
        }
        Ok(json!({ "response": answer }))
    }

    /// Text with the recorded addresses: `host:port` of a node, then its host alone.
    fn as_recorded(&self, text: &str) -> String {
        let host = |address: &str| address.split(':').next().unwrap_or_default().to_owned();
        let mut text = text.to_owned();
        for (recorded, ours) in &self.nodes {
            text = text.replace(ours, recorded);
        }
        for (recorded, ours) in &self.nodes {
            text = text.replace(&host(ours), &host(recorded));
        }
        text
    }

    /// All our nodes have one port, the recorded ones had one each: a `port` beside an `address` follows it.
    fn with_ports(&self, mut value: Value) -> Value {
        match &mut value {
            Value::Object(fields) => {
                let address = fields.get("address").and_then(Value::as_str);
                let port = address
                    .and_then(|a| a.rsplit_once(':'))
                    .and_then(|(_, port)| port.parse::<u16>().ok());
                if let (Some(port), Some(field)) = (port, fields.get_mut("port")) {
                    *field = json!(port);
                }
                for field in fields.values_mut() {
                    *field = self.with_ports(field.take());
                }
            }
            Value::Array(items) => {
                for item in items {
                    *item = self.with_ports(item.take());
                }
            }
            _ => {}
        }
        value
    }
}

/// Parameters, percent-encoded.
fn encoded(parameters: &Value) -> Result<String> {
    let mut out = String::new();
    for (name, value) in parameters.as_object().into_iter().flatten() {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => anyhow::bail!("parameter {name} is {other}"),
        };
        let and = if out.is_empty() { "" } else { "&" };
        write!(out, "{and}{}={}", escape(name), escape(&value))?;
    }
    Ok(out)
}

fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_escaped() {
        let query = json!({"a": "{\"k\": 1}&=", "port": 80});
        assert_eq!(encoded(&query).unwrap(), "a=%7B%22k%22%3A%201%7D%26%3D&port=80");
        assert_eq!(encoded(&Value::Null).unwrap(), "");
    }

    #[test]
    fn addresses_become_the_recorded_ones() {
        let nodes = vec![
            ("127.0.0.1:8848".to_owned(), "127.7.7.1:8848".to_owned()),
            ("127.0.0.1:8858".to_owned(), "127.7.7.2:8848".to_owned()),
        ];
        let replayer = Replayer {
            client: Client::new(),
            nodes,
        };
        let text = r#"{"address":"127.7.7.2:8848","ip":"127.7.7.2","port":8848}"#;
        let value = replayer.with_ports(serde_json::from_str(&replayer.as_recorded(text)).unwrap());
        assert_eq!(
            value,
            json!({"address": "127.0.0.1:8858", "ip": "127.0.0.1", "port": 8858})
        );
    }
}
