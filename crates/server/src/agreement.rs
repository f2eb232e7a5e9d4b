//! Whether the nodes of a cluster hold the same, and if not, what differs: from the outside, by their HTTP answers.
//!
//! Changes are on their way at any moment. So what differs is looked at again every second, and counts only if it still
//! does when the patience ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use reqwest::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::time::{Instant, sleep, timeout};

use crate::ask::{Asker, Question};

/// How long a difference must last to count, and how long a node may stay silent, for one who waits for the answer.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// Shortest and longest wait for one answer; between them it is half of the patience.
const ANSWER_LIMITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Differences that are listed.
const MAX_LISTED: usize = 1_000;

/// A digest or an id, as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Hex(pub u64);

impl Hex {
    /// Reads hexadecimal digits.
    pub fn read(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(Hex)
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One look at all nodes.
struct Look {
    nodes: Vec<Seen>,
    /// What differs between those that serve.
    found: Found,
    /// Something differs, but a node did not answer what.
    is_unclear: bool,
}

impl Agreement {
    fn of(look: Look) -> Self {
        let nodes = look.nodes;
        let differences: Vec<_> = look.found.into_values().take(MAX_LISTED).collect();
        let verdict = if !differences.is_empty() {
            Verdict::Differ
        } else if !look.is_unclear && !nodes.is_empty() && nodes.iter().all(|node| node.ready) {
            Verdict::Agree
        } else {
            Verdict::Unknown
        };
        Agreement {
            agree: verdict == Verdict::Agree,
            verdict,
            reason: reason(verdict, &nodes, &differences, look.is_unclear),
            nodes,
            differences,
        }
    }
}

/// The verdict in words, with the nodes that are the cause of it.
fn reason(verdict: Verdict, nodes: &[Seen], differences: &[Difference], is_unclear: bool) -> String {
    let names = |is_so: fn(&Seen) -> bool| {
        let names = nodes.iter().filter(|node| is_so(node));
        names.map(|node| node.address.as_str()).collect::<Vec<_>>()
    };
    let serving = names(|node| node.ready);
    let silent = names(|node| node.error.is_some());
    let loading = names(|node| !node.ready && node.error.is_none());
    let mut parts = vec![match (verdict, serving.as_slice()) {
        (Verdict::Agree, _) => "all nodes agree".to_owned(),
        (Verdict::Differ, _) => "the nodes do not agree".to_owned(),
        (Verdict::Unknown, _) if is_unclear => {
            "not known: something differs, and a node did not say what".to_owned()
        }
        (Verdict::Unknown, []) => "not known: no node serves".to_owned(),
        (Verdict::Unknown, [only]) => format!("not known: only {only} serves"),
        (Verdict::Unknown, _) => "not known: the nodes that serve agree, and not all do".to_owned(),
    }];
    if !differences.is_empty() && differences.iter().all(|difference| difference.changing) {
        parts.push("clients change all that differs meanwhile".to_owned());
    }
    if !silent.is_empty() {
        parts.push(format!("no answer from {}", silent.join(", ")));
    }
    if !loading.is_empty() {
        parts.push(format!("loading or leaving: {}", loading.join(", ")));
    }
    parts.join("; ")
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            let state = match (&node.error, node.ready) {
                (Some(error), _) => error,
                (None, true) => "serves",
                (None, false) => "is loading or leaving, not compared",
            };
            writeln!(f, "{}: {state}", node.address)?;
        }
        for difference in &self.differences {
            let Difference {
                subject,
                origin,
                changing,
                digests,
            } = difference;
            let changing = if *changing { ", changing" } else { "" };
            write!(f, "differs{changing}: {subject}, written by {origin}:")?;
            for (node, digest) in digests {
                write!(f, " {node}={digest}")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "{}", self.reason)
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Hex::read(&text).ok_or_else(|| serde::de::Error::custom("no hexadecimal number"))
    }
}

/// What `/rollcall/digests` answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Digests {
    /// The node serves.
    pub ready: bool,
    /// Who has written rows that it holds.
    pub origins: Vec<Origin>,
}

/// Who has written rows, and what they amount to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// Its id.
    pub id: Hex,
    /// Its advertised address, or its id for one that is no member any more.
    pub member: String,
    /// One number over all its rows.
    pub digest: Hex,
}

/// Whether nodes hold the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every node was asked, serves, and holds the same.
    Agree,
    /// Nodes that serve hold something else.
    Differ,
    /// Nothing differs that could be compared, and some node was not there to be.
    Unknown,
}

/// What a comparison found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Agreement {
    /// It is proven that all nodes hold the same: the verdict is [`Verdict::Agree`].
    pub agree: bool,
    /// Whether they hold the same, or that nobody can say.
    pub verdict: Verdict,
    /// The verdict for people, with the nodes that did not answer or do not serve.
    pub reason: String,
    /// Every node that was asked.
    pub nodes: Vec<Seen>,
    /// What differs between those that serve, a bounded number.
    pub differences: Vec<Difference>,
}

/// A node that was asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Seen {
    /// Address that it was asked at.
    pub address: String,
    /// It answered that it serves; the others are not compared.
    pub ready: bool,
    /// Why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Rows of one writer about one service, namespace or switch that are not the same everywhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// What they are about.
    pub subject: String,
    /// The member that wrote them.
    pub origin: String,
    /// They changed while they were compared: clients are at work.
    pub changing: bool,
    /// What they amount to at each node; 0 where there are none.
    pub digests: BTreeMap<String, Hex>,
}

/// Differing rows: the id of their writer and what they are about.
type Key = (Hex, String);
type Found = BTreeMap<Key, Difference>;

/// Compares the nodes at these addresses (`host:port` of the main port) until they agree, at most for `patience` and the
/// wait for the last answers. All nodes are asked at the same time.
pub async fn compare(addresses: &[String], patience: Duration) -> Agreement {
    let until = Instant::now() + patience;
    let limit = (patience / 2).clamp(ANSWER_LIMITS.0, ANSWER_LIMITS.1);
    let asker = match Asker::new(limit) {
        Ok(asker) => asker,
        Err(error) => return Agreement::of(Look::without(addresses, &error)),
    };
    let mut lasting: Option<Found> = None;
    loop {
        let mut look = look(&asker, addresses, limit).await;
        if let Some(former) = lasting.take() {
            look.found.retain(|key, now| match former.get(key) {
                Some(then) => {
                    now.changing = then.changing || then.digests != now.digests;
                    true
                }
                None => false,
            });
        }
        let is_settled =
            look.found.is_empty() && !look.is_unclear && look.nodes.iter().all(|node| node.error.is_none());
        if is_settled || Instant::now() + PAUSE > until {
            return Agreement::of(look);
        }
        // What a node did not answer may still differ.
        lasting = (!look.is_unclear).then_some(look.found);
        sleep(PAUSE).await;
    }
}

impl Look {
    /// No node could be asked.
    fn without(addresses: &[String], error: &reqwest::Error) -> Self {
        let nodes = addresses.iter().map(|address| Seen {
            address: address.clone(),
            ready: false,
            error: Some(error.to_string()),
        });
        Look {
            nodes: nodes.collect(),
            found: Found::new(),
            is_unclear: false,
        }
    }
}

/// The question what rows amount to at a node.
fn digests<'a>(params: &'a [(&'a str, &'a str)]) -> Question<'a> {
    Question {
        method: Method::GET,
        path: "/rollcall/digests",
        params,
    }
}

/// Who answers, and what differs between those that serve; to find out what may take as long as an answer.
async fn look(asker: &Asker, addresses: &[String], limit: Duration) -> Look {
    let answers = asker.ask_all::<Digests>(addresses, &digests(&[])).await;
    let mut serving: Vec<(&str, Vec<Origin>)> = Vec::new();
    let mut nodes = Vec::new();
    for (address, answer) in addresses.iter().zip(answers) {
        let (ready, error) = match answer {
            Ok(digests) => {
                if digests.ready {
                    serving.push((address, digests.origins));
                }
                (digests.ready, None)
            }
            Err(error) => (false, Some(error)),
        };
        nodes.push(Seen {
            address: address.clone(),
            ready,
            error,
        });
    }
    let found = timeout(limit, differences(asker, &serving)).await;
    let (found, is_unclear) = found.unwrap_or((Found::new(), true));
    Look {
        nodes,
        found,
        is_unclear,
    }
}

/// What differs between nodes, and whether one of them did not answer what.
async fn differences(asker: &Asker, serving: &[(&str, Vec<Origin>)]) -> (Found, bool) {
    let at: Vec<&str> = serving.iter().map(|(address, _)| *address).collect();
    let (mut found, mut is_unclear) = (Found::new(), false);
    for (id, member) in differing(serving) {
        let text = id.to_string();
        let Some(buckets) = all::<Vec<Hex>>(asker, &at, &[("origin", &text)]).await else {
            is_unclear = true;
            continue;
        };
        for bucket in differing_places(&buckets) {
            let query = [("origin", text.as_str()), ("bucket", &bucket.to_string())];
            let Some(subjects) = all::<BTreeMap<String, Hex>>(asker, &at, &query).await else {
                is_unclear = true;
                continue;
            };
            for subject in differing_names(&subjects) {
                let digest = |(at, of): (&&str, &BTreeMap<String, Hex>)| {
                    ((*at).to_owned(), of.get(subject).copied().unwrap_or(Hex(0)))
                };
                let difference = Difference {
                    subject: subject.clone(),
                    origin: member.clone(),
                    changing: false,
                    digests: at.iter().zip(&subjects).map(digest).collect(),
                };
                found.insert((id, subject.clone()), difference);
            }
        }
    }
    (found, is_unclear)
}

/// The answers of all nodes to one question, if all have one.
async fn all<T: DeserializeOwned>(asker: &Asker, at: &[&str], query: &[(&str, &str)]) -> Option<Vec<T>> {
    let answers = asker.ask_all(at, &digests(query)).await;
    answers.into_iter().collect::<Result<_, _>>().ok()
}

/// The writers whose rows do not amount to the same at all nodes.
fn differing(serving: &[(&str, Vec<Origin>)]) -> BTreeMap<Hex, String> {
    let mut digests: BTreeMap<Hex, (String, Vec<Hex>)> = BTreeMap::new();
    for (_, origins) in serving {
        for origin in origins {
            let (_, all) = digests
                .entry(origin.id)
                .or_insert_with(|| (origin.member.clone(), Vec::new()));
            all.push(origin.digest);
        }
    }
    let differs = |all: &[Hex]| all.len() < serving.len() || all.windows(2).any(|pair| pair[0] != pair[1]);
    let differing = digests.into_iter().filter(|(_, (_, all))| differs(all));
    differing.map(|(id, (member, _))| (id, member)).collect()
}

fn differing_places(lists: &[Vec<Hex>]) -> Vec<usize> {
    let Some((first, others)) = lists.split_first() else {
        return Vec::new();
    };
    let differs = |at: &usize| others.iter().any(|other| other.get(*at) != first.get(*at));
    (0..first.len()).filter(differs).collect()
}

fn differing_names(maps: &[BTreeMap<String, Hex>]) -> Vec<&String> {
    let names: BTreeSet<&String> = maps.iter().flat_map(BTreeMap::keys).collect();
    let differs = |name: &&String| {
        maps.windows(2)
            .any(|pair| pair[0].get(*name) != pair[1].get(*name))
    };
    names.into_iter().filter(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(digests: &[(u64, u64)]) -> Vec<Origin> {
        let origin = |&(id, digest): &(u64, u64)| Origin {
            id: Hex(id),
            member: format!("m{id}"),
            digest: Hex(digest),
        };
        digests.iter().map(origin).collect()
    }

    #[test]
    fn a_writer_differs_whose_rows_amount_to_something_else_or_are_missing_at_a_node() {
        let serving = [
            ("a", origins(&[(1, 5), (2, 6), (3, 7)])),
            ("b", origins(&[(1, 5), (2, 9)])),
        ];
        let ids: Vec<Hex> = differing(&serving).into_keys().collect();
        assert_eq!(ids, [Hex(2), Hex(3)]);
        assert_eq!(
            differing_places(&[vec![Hex(1), Hex(2)], vec![Hex(1), Hex(3)]]),
            [1]
        );
    }

    #[test]
    fn a_name_differs_that_one_node_lacks() {
        let map = |pairs: &[(&str, u64)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), Hex(*v))).collect();
        let maps = [map(&[("x", 1), ("y", 2)]), map(&[("x", 1), ("z", 2)])];
        assert_eq!(differing_names(&maps), ["y", "z"]);
    }

    #[test]
    fn digests_come_back_as_they_were_written() {
        let digests = Digests {
            ready: true,
            origins: origins(&[(u64::MAX, 1)]),
        };
        let text = serde_json::to_string(&digests).unwrap_or_default();
        assert!(text.contains("\"ffffffffffffffff\""), "{text}");
        assert_eq!(serde_json::from_str::<Digests>(&text).ok(), Some(digests));
    }

    fn seen(address: &str, ready: bool, error: Option<&str>) -> Seen {
        Seen {
            address: address.to_owned(),
            ready,
            error: error.map(str::to_owned),
        }
    }

    fn verdict(nodes: &[Seen], is_unclear: bool) -> (Verdict, String) {
        let look = Look {
            nodes: nodes.to_vec(),
            found: Found::new(),
            is_unclear,
        };
        let found = Agreement::of(look);
        assert_eq!(found.agree, found.verdict == Verdict::Agree);
        (found.verdict, found.reason)
    }

    #[test]
    fn what_nobody_could_compare_is_not_known_and_the_nodes_are_named() {
        let (a, b) = (seen("a:1", true, None), seen("b:2", true, None));
        let (silent, loading) = (seen("c:3", false, Some("refused")), seen("d:4", false, None));
        assert_eq!(
            verdict(&[a.clone(), b.clone()], false),
            (Verdict::Agree, "all nodes agree".into())
        );
        for (nodes, text) in [
            (
                vec![a.clone(), b.clone(), silent.clone(), loading.clone()],
                "not known: the nodes that serve agree, and not all do; no answer from c:3; loading or leaving: d:4",
            ),
            (
                vec![a.clone(), silent.clone()],
                "not known: only a:1 serves; no answer from c:3",
            ),
            (
                vec![silent, loading],
                "not known: no node serves; no answer from c:3; loading or leaving: d:4",
            ),
            (Vec::new(), "not known: no node serves"),
        ] {
            assert_eq!(verdict(&nodes, false), (Verdict::Unknown, text.into()));
        }
        assert_eq!(
            verdict(&[a, b], true),
            (
                Verdict::Unknown,
                "not known: something differs, and a node did not say what".into()
            )
        );
    }

    #[test]
    fn what_differs_and_changes_all_the_time_is_told_from_what_stays_apart() {
        let differing = |all_change: &[bool]| {
            let difference = |(at, changing): (usize, &bool)| {
                let subject = format!("s{at}");
                let difference = Difference {
                    subject: subject.clone(),
                    origin: "m".to_owned(),
                    changing: *changing,
                    digests: BTreeMap::new(),
                };
                ((Hex(1), subject), difference)
            };
            Agreement::of(Look {
                nodes: vec![seen("a:1", true, None), seen("b:2", true, None)],
                found: all_change.iter().enumerate().map(difference).collect(),
                is_unclear: false,
            })
        };
        for (all_change, text) in [
            (&[true, false][..], "the nodes do not agree"),
            (
                &[true, true],
                "the nodes do not agree; clients change all that differs meanwhile",
            ),
        ] {
            let found = differing(all_change);
            assert_eq!((found.verdict, found.reason.as_str()), (Verdict::Differ, text));
        }
    }

    #[tokio::test]
    async fn a_node_that_does_not_answer_is_named_and_agrees_with_nobody() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let Ok(closed) = closed else {
            panic!("no port");
        };
        let found = compare(&[closed.to_string()], Duration::ZERO).await;
        assert!(found.nodes[0].error.is_some(), "{found:?}");
        assert!(
            !found.agree && found.reason.ends_with(&closed.to_string()),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn nodes_that_take_connections_and_say_nothing_cost_one_wait_together() {
        let hung: Vec<_> = (0..4)
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let addresses = { hung.iter() }.map(|hung| hung.local_addr().unwrap().to_string());
        let begun = Instant::now();
        let found = compare(&addresses.collect::<Vec<_>>(), PATIENCE).await;
        assert_eq!(found.verdict, Verdict::Unknown, "{found:?}");
        assert!(found.nodes.iter().all(|node| node.error.is_some()), "{found:?}");
        let waited = begun.elapsed();
        assert!(waited < PATIENCE + 2 * ANSWER_LIMITS.0, "{waited:?}");
    }
}
