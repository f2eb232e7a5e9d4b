//! Questions to nodes on their main ports: what each of them answers about itself alone.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Client, Method, redirect};
use serde::de::DeserializeOwned;

use crate::error::root_cause;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Method; a change is never a `GET`.
    pub method: Method,
    /// Path, which is outside the context path.
    pub path: &'static str,
    /// Parameters.
    pub params: &'a [(&'a str, &'a str)],
}

/// Asks nodes. A clone costs one reference count.
#[derive(Clone, Debug)]
pub struct Asker(Client);

impl Asker {
    /// One that waits this long for an answer.
    ///
    /// # Errors
    /// The client cannot be made.
    pub fn new(limit: Duration) -> Result<Self, reqwest::Error> {
        let client = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .timeout(limit);
        Ok(Asker(client.build()?))
    }

    /// The answer of a node at `host:port` to a call with these parameters.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        address: &str,
        question: &Question<'_>,
    ) -> Result<T, String> {
        let Question { method, path, params } = question;
        let answer = async {
            let url = format!("http://{address}{path}");
            let request = self.0.request(method.clone(), url).query(params);
            request.send().await?.error_for_status()?.bytes().await
        };
        let body = answer.await.map_err(|error| root_cause(&error).to_string())?;
        serde_json::from_slice(&body).map_err(|error| format!("not an answer of a node: {error}"))
    }

    /// The answers of all these nodes to one question, in their order.
    pub async fn ask_all<T: DeserializeOwned>(
        &self,
        addresses: &[impl AsRef<str>],
        question: &Question<'_>,
    ) -> Vec<Result<T, String>> {
        join_all(
            addresses
                .iter()
                .map(|address| self.ask(address.as_ref(), question)),
        )
        .await
    }
}
