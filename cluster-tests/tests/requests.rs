//! The forms that a request over HTTP may have, and what comes of those that have none.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::http::{INSTANCE, Params, joined};
use cluster_tests::{Http, Instance, List, Node, Reply, Service, SharedCluster, unique};
use reqwest::Method;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

static CLUSTER: SharedCluster = SharedCluster::of(3);

const NOBODY: [&str; 0] = [];

/// Where instances are written, of each generation.
const INSTANCES: [&str; 4] = [
    INSTANCE,
    "/nacos/v2/ns/instance",
    "/nacos/v3/client/ns/instance",
    "/nacos/v3/admin/ns/instance",
];

const BEAT: &str = "/nacos/v1/ns/instance/beat";

fn params(pairs: &[(&str, &str)]) -> Params {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// A form or query as text.
fn encoded(params: &Params) -> String {
    let escape = |text: &str| -> String {
        text.bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
                _ => format!("%{byte:02X}"),
            })
            .collect()
    };
    let pairs = params.iter().map(|(k, v)| format!("{}={}", escape(k), escape(v)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Sends the bytes of a request and reads the answer to the end of the connection.
async fn raw(node: &Node, request: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect(node.http_address()).await?;
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    timeout(Duration::from_secs(5), stream.read_to_end(&mut answer))
        .await
        .context("no end of the answer")??;
    Ok(String::from_utf8(answer)?)
}

/// Whether an answer means success in its generation: `ok`, or a result with code 0.
fn is_done(reply: &Reply) -> bool {
    let result = || serde_json::from_str::<Value>(&reply.text).is_ok_and(|body| body["code"] == 0);
    reply.status == 200 && (reply.text == "ok" || result())
}

/// KF-013: the first registration of an address nobody knows succeeds through each generation, at a node that is not
/// the owner, and is listed there at once.
#[tokio::test]
async fn kf_013_a_first_registration_through_each_generation_is_listed_at_once() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    for (port, path) in (1..).zip(INSTANCES) {
        let service = cluster.service_owned_by(1, "generation").await?;
        let instance = Instance::at("10.14.0.13", port).patient();
        let reply = http
            .form(Method::POST, path, &joined(&service, instance.to_params()))
            .await?;
        ensure!(is_done(&reply), "{path}: {reply:?}");
        http.list(&service).await?.expect_only(&instance)?;
    }
    Ok(())
}

/// KF-014: an update of what is not there is refused by each generation, and nothing of it is kept.
#[tokio::test]
async fn kf_014_updates_and_patches_of_unknown_instances_are_refused_in_each_generation() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let calls = [
        (Method::PUT, INSTANCE, None),
        (Method::PATCH, INSTANCE, None),
        (Method::PUT, "/nacos/v2/ns/instance", Some(20004)),
        (Method::PATCH, "/nacos/v2/ns/instance", Some(20004)),
        (Method::PUT, "/nacos/v3/admin/ns/instance", Some(20004)),
        (Method::PUT, "/nacos/v3/admin/ns/instance/partial", Some(20004)),
    ];
    for (method, path, code) in calls {
        let (known, unknown) = (Service::unique("known"), Service::unique("unknown"));
        http.register(&known, &Instance::at("192.0.2.51", 1000).patient())
            .await?
            .ok()?;
        let instance = Instance::at("192.0.2.50", 1000).patient();
        let changed = instance.clone().weight(9.0).meta("lane", "a");
        let call = async |service: &Service| {
            // By its grouped name: some of these calls know no other.
            let mut all = changed.to_params();
            all.extend(params(&[
                ("serviceName", &service.grouped()),
                ("namespaceId", "public"),
            ]));
            http.form(method.clone(), path, &all).await
        };

        let refused = call(&known).await?;
        ensure!(
            refused.status == 404 && refused.text.contains("no matched ip found!"),
            "{method} {path}: {refused:?}"
        );
        if let Some(code) = code {
            let body: Value = serde_json::from_str(&refused.text)?;
            ensure!(body["code"] == code, "{method} {path}: {body}");
        }
        // Of an unknown service a PUT says so, and a patch that there is no such row, as recorded.
        let refused = call(&unknown).await?;
        let is_put = method == Method::PUT && !path.ends_with("partial");
        let wanted = if is_put {
            (400, "service not found")
        } else {
            (404, "no ips found for cluster DEFAULT")
        };
        ensure!(
            (refused.status, true) == (wanted.0, refused.text.contains(wanted.1)),
            "{method} {path}: {refused:?}"
        );

        for service in [&known, &unknown] {
            http.register(service, &instance).await?.ok()?;
            let list = http.list(service).await?;
            assert_eq!(
                list.at("192.0.2.50:1000")?,
                &instance,
                "{method} {path}: none of the refused values"
            );
        }
    }
    for path in [
        "/nacos/v1/ns/service",
        "/nacos/v2/ns/service",
        "/nacos/v3/admin/ns/service",
    ] {
        let unknown = Service::unique("unknown");
        let reply = http
            .query(Method::DELETE, path, &joined(&unknown, Vec::new()))
            .await?;
        ensure!(
            reply.status == 400 && reply.text.contains(&unknown.name),
            "{path}: {reply:?}"
        );
    }
    Ok(())
}

/// KF-017: a name in braces is a name like others, created, read, listed and deleted by its escapes.
#[tokio::test]
async fn kf_017_a_name_in_braces_is_a_name_like_others() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let namespace = unique("braces");
    let service = Service::new("{{1}}").namespace(&namespace);
    let (http, elsewhere) = (cluster.node(0).http(), cluster.node(1).http());
    let path = "/nacos/v1/ns/service";
    let named = joined(&service, Vec::new());
    let list = async |http: &Http| http.services(&namespace, "DEFAULT_GROUP", 1, 10).await;

    http.query(Method::POST, path, &named).await?.ok()?;
    let detail = http.query(Method::GET, path, &named).await?.json()?;
    assert_eq!(detail["name"], "{{1}}");
    for http in [&http, &elsewhere] {
        cluster_tests::eventually("it is listed by its name", SOON, || async {
            let listed = list(http).await?;
            ensure!(listed == (1, vec!["{{1}}".to_owned()]), "{listed:?}");
            Ok(())
        })
        .await;
    }

    http.query(Method::DELETE, path, &named).await?.ok()?;
    for http in [&http, &elsewhere] {
        cluster_tests::eventually("it is gone", SOON, || async {
            let listed = list(http).await?;
            ensure!(listed == (0, Vec::new()), "{listed:?}");
            http.query(Method::GET, path, &named)
                .await?
                .refused(400, "service not found")
        })
        .await;
    }
    Ok(())
}

/// Paths below a folder in which a text stands.
fn paths_with(folder: &Path, text: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.display().to_string().contains(text) {
            found.push(path.display().to_string());
        }
        if path.is_dir() {
            found.extend(paths_with(&path, text)?);
        }
    }
    Ok(found)
}

/// KF-018: slashes in a name mean nothing: every operation works on every node, nothing remains, no file is made.
#[tokio::test]
async fn kf_018_names_with_slashes_come_and_go_like_others() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let namespace = unique("slashes");
    let stem = unique("orders.v1");
    let instance = Instance::at("192.0.2.11", 7001).patient();
    for name in [
        format!("/{stem}"),
        format!("a/{stem}"),
        format!("../{stem}"),
        format!("a/../../{stem}/"),
    ] {
        let service = Service::new(name).namespace(&namespace);
        let http = cluster.node(0).http();
        http.register(&service, &instance).await?.ok()?;
        cluster
            .eventually_list(&service, SOON, |list| list.expect_only(&instance))
            .await;
        for node in cluster.nodes() {
            assert_eq!(node.http().light_beat(&service, &instance).await?.code, 10200);
        }
        cluster
            .node(1)
            .http()
            .deregister(&service, &instance)
            .await?
            .ok()?;
        cluster.eventually_listed(&service, &NOBODY).await;
        let gone = http
            .query(
                Method::DELETE,
                "/nacos/v1/ns/service",
                &joined(&service, Vec::new()),
            )
            .await?;
        gone.ok()?;
    }
    for node in cluster.nodes() {
        cluster_tests::eventually("no service remains", SOON, || async {
            let listed = node.http().services(&namespace, "DEFAULT_GROUP", 1, 10).await?;
            ensure!(listed.0 == 0, "{listed:?}");
            Ok(())
        })
        .await;
        let log = node.log_path();
        let folder = log.parent().context("the log is in no folder")?;
        assert_eq!(paths_with(folder, &stem)?, Vec::<String>::new());
    }
    Ok(())
}

/// KF-023: a service name that is missing, empty or blank is refused by each generation and each call that writes, and
/// what was there is still listed.
#[tokio::test]
async fn kf_023_a_blank_service_name_is_refused_in_each_generation() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let namespace = unique("blank");
    for name in ["one", "two"] {
        let service = Service::new(name).namespace(&namespace);
        http.register(&service, &Instance::at("10.14.0.23", 80).patient())
            .await?
            .ok()?;
    }
    let services = [
        "/nacos/v1/ns/service",
        "/nacos/v2/ns/service",
        "/nacos/v3/admin/ns/service",
    ];
    for path in INSTANCES.iter().chain(&services) {
        for name in [None, Some(""), Some(" "), Some("\t ")] {
            let mut params = Instance::at("10.14.0.23", 80).to_params();
            params.push(("namespaceId".into(), namespace.clone()));
            params.extend(name.map(|name| ("serviceName".to_owned(), name.to_owned())));
            http.form(Method::POST, path, &params)
                .await?
                .refused(400, "serviceName")
                .with_context(|| format!("{path} {name:?}"))?;
        }
    }
    for node in cluster.nodes() {
        cluster_tests::eventually("both are listed", SOON, || async {
            let listed = node.http().services(&namespace, "DEFAULT_GROUP", 1, 10).await?;
            ensure!(listed == (2, vec!["one".into(), "two".into()]), "{listed:?}");
            Ok(())
        })
        .await;
    }
    Ok(())
}

/// KF-028: raw JSON and text that is no UTF-8 in an address are refused with a reason; the right escapes work, and a
/// parameter `encoding` does no harm.
#[tokio::test]
async fn kf_028_an_address_is_read_by_its_escapes_or_refused_with_a_reason() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let node = cluster.node(0);
    let service = Service::unique("escapes");
    let send = async |more: &str| {
        let name = &service.name;
        let request = format!(
            "POST {INSTANCE}?serviceName={name}&ip=10.14.0.28&port=80{more} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        );
        raw(node, request.as_bytes()).await
    };
    for (more, reason) in [
        ("&metadata={\"a\":\"b\"}", "percent-escaped"),
        ("&metadata={a}", "percent-escaped"),
        ("&metadata=a b", "percent-escaped"),
        ("&metadata=%FF%FE", "not UTF-8"),
        ("&metadata=%zz", "percent escape"),
    ] {
        let answer = send(more).await?;
        ensure!(answer.starts_with("HTTP/1.1 400"), "{more}: {answer}");
        ensure!(answer.contains(reason), "{more}: {answer}");
        node.http().list(&service).await?.expect(&NOBODY)?;
    }
    let answer = send("&encoding=UTF-8&metadata=%7B%22a%22%3A%22b%22%7D").await?;
    ensure!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"),
        "{answer}"
    );
    let wanted = Instance::at("10.14.0.28", 80).meta("a", "b");
    node.http().list(&service).await?.expect_only(&wanted)
}

/// KF-048: a service that nobody registered has an empty list with the usual fields in each generation.
#[tokio::test]
async fn kf_048_an_unknown_service_has_an_empty_list_in_each_generation() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let service = Service::unique("nobody");
    let get = async |path: &str| {
        let params = joined(&service, Vec::new());
        http.query(Method::GET, path, &params).await?.json()
    };
    let v2 = get("/nacos/v2/ns/instance/list").await?;
    assert_eq!(
        (&v2["code"], &v2["message"]),
        (&Value::from(0), &Value::from("success"))
    );
    let list = List::from_json(v2["data"].clone())?;
    list.expect(&NOBODY)?;
    assert_eq!(
        (&list.json["name"], list.clusters(), &list.json["groupName"]),
        (&service.grouped().into(), Some(""), &"DEFAULT_GROUP".into())
    );
    assert_eq!(
        (&list.json["valid"], &list.json["cacheMillis"]),
        (&true.into(), &10_000.into())
    );
    let v3 = get("/nacos/v3/client/ns/instance/list").await?;
    assert_eq!(
        (&v3["code"], &v3["data"]),
        (&Value::from(0), &Value::Array(Vec::new()))
    );
    Ok(())
}

/// KF-067: metadata in a form body keep each byte on their way from any node to the owner.
#[tokio::test]
async fn kf_067_forwarded_text_is_the_same_byte_for_byte_whichever_node_took_it() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("forwarded-text");
    let instance = Instance::at("10.14.0.67", 80)
        .meta("说明", "灰度 \"1\" +%&=,\\")
        .meta("🚀", "é\u{301}\u{200d}\u{feff}\n\t");
    for entry in cluster.nodes() {
        let http = entry.http();
        http.form(Method::POST, INSTANCE, &joined(&service, instance.to_params()))
            .await?
            .ok()?;
        cluster
            .eventually_list(&service, SOON, |list| list.expect_only(&instance))
            .await;
        http.deregister(&service, &instance).await?.ok()?;
        cluster.eventually_listed(&service, &NOBODY).await;
    }
    Ok(())
}

/// KF-105: a 1.3-style client sends everything in the body, half of it or nothing: it means the same.
#[tokio::test]
async fn kf_105_parameters_in_the_body_mean_what_they_mean_in_the_query() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let instance = Instance::at("10.14.0.105", 80)
        .weight(3.0)
        .meta("v", "1")
        .patient();
    for n_in_query in [0, 3, usize::MAX] {
        let service = Service::unique("body");
        let send = async |method: Method, path: &str, all: Params| {
            let (query, body) = all.split_at(n_in_query.min(all.len()));
            let request = http.request(method, path).query(query).form(body);
            http.send(request).await
        };
        send(Method::POST, INSTANCE, joined(&service, instance.to_params()))
            .await?
            .ok()?;
        http.list(&service).await?.expect_only(&instance)?;
        let beat = vec![("beat".to_owned(), instance.to_beat(&service).to_string())];
        for more in [instance.row_params(), beat] {
            let answer = send(Method::PUT, BEAT, joined(&service, more)).await?.json()?;
            ensure!(answer["code"] == 10200, "{answer}");
        }
        let changed = instance.clone().weight(0.5);
        send(Method::PUT, INSTANCE, joined(&service, changed.to_params()))
            .await?
            .ok()?;
        http.list(&service).await?.expect_only(&changed)?;
        send(Method::DELETE, INSTANCE, joined(&service, instance.row_params()))
            .await?
            .ok()?;
        http.list(&service).await?.expect(&NOBODY)?;
    }
    Ok(())
}

/// KF-106: the words of Python, `True` and `False`, mean true and false in each generation.
#[tokio::test]
async fn kf_106_truth_values_of_python_mean_true_and_false() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    for path in &INSTANCES[..2] {
        let service = Service::unique("python");
        let sick = Instance::at("10.14.0.106", 2).patient();
        for (port, more) in [
            (
                "1",
                [("enabled", "True"), ("ephemeral", "True"), ("healthy", "True")],
            ),
            (
                "2",
                [("enabled", "TRUE"), ("ephemeral", "true"), ("healthy", "False")],
            ),
            (
                "3",
                [("enabled", "False"), ("ephemeral", "True"), ("healthy", "True")],
            ),
        ] {
            let mut all = params(&[("ip", "10.14.0.106"), ("port", port)]);
            all.extend(params(&more));
            all.push(("metadata".into(), serde_json::json!(sick.metadata).to_string()));
            let reply = http.form(Method::POST, path, &joined(&service, all)).await?;
            ensure!(is_done(&reply), "{path} {port}: {reply:?}");
        }
        let list = format!("{path}/list");
        for (word, addresses) in [
            ("True", &["10.14.0.106:1"][..]),
            ("true", &["10.14.0.106:1"]),
            ("False", &["10.14.0.106:1", "10.14.0.106:2"]),
            ("FALSE", &["10.14.0.106:1", "10.14.0.106:2"]),
            ("", &["10.14.0.106:1", "10.14.0.106:2"]),
        ] {
            let all = joined(&service, params(&[("healthyOnly", word)]));
            let body = http.query(Method::GET, &list, &all).await?.json()?;
            let hosts = body.get("data").unwrap_or(&body).clone();
            List::from_json(hosts)?
                .expect(addresses)
                .with_context(|| format!("{path} healthyOnly={word}"))?;
        }
        // What is not ephemeral is the same in every spelling.
        let registration = async |word: &str| {
            let all = params(&[("ip", "10.14.0.106"), ("port", "4"), ("ephemeral", word)]);
            http.form(Method::POST, path, &joined(&Service::unique("persistent"), all))
                .await
        };
        let (plain, python) = (registration("false").await?, registration("False").await?);
        assert_eq!((plain.status, plain.text), (python.status, python.text));
    }
    Ok(())
}

/// KF-108: `HEAD` is `GET` without a body, a slash at the end means nothing, a wrong method is 405, a missing parameter
/// 400, an unknown path 404.
#[tokio::test]
async fn kf_108_odd_methods_and_paths_get_the_answers_of_http() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let service = Service::unique("odd");
    http.register(&service, &Instance::at("10.14.0.108", 80).patient())
        .await?
        .ok()?;
    let named = joined(&service, Vec::new());
    for path in ["/nacos/v1/ns/instance", "/nacos/v2/ns/instance"] {
        let list = format!("{path}/list");
        let get = http.query(Method::GET, &list, &named).await?;
        let head = http.query(Method::HEAD, &list, &named).await?;
        assert_eq!(
            (head.status, &head.text, &head.content_type),
            (200, &String::new(), &get.content_type)
        );
        let slash = http
            .query(Method::GET, &format!("{list}/"), &named)
            .await?
            .json()?;
        List::from_json(slash.get("data").unwrap_or(&slash).clone())?.expect(&["10.14.0.108:80"])?;
        for method in [Method::POST, Method::DELETE, Method::PATCH] {
            let reply = http.query(method, &list, &named).await?;
            ensure!(
                reply.status == 405 && reply.text.contains("GET, HEAD"),
                "{reply:?}"
            );
        }
        http.query(Method::DELETE, path, &Vec::new())
            .await?
            .refused(400, "serviceName")?;
    }
    for path in [
        "/nacos/v1/ns/nope",
        "/nacos/v2/ns/nope",
        "/nacos/v3/client/nope",
        "/nope",
    ] {
        for method in [Method::GET, Method::POST] {
            let reply = http.query(method, path, &Vec::new()).await?;
            ensure!(reply.status == 404 && !reply.text.is_empty(), "{path}: {reply:?}");
        }
    }
    let head = http.query(Method::HEAD, "/nacos/v1/ns/nope", &Vec::new()).await?;
    assert_eq!((head.status, head.text.as_str()), (404, ""));
    Ok(())
}

/// KF-109: one registration by query, by form and by halves, with each content type that a form may have, stores the
/// same instance; JSON is not read as parameters.
#[tokio::test]
async fn kf_109_a_form_is_read_whatever_its_content_type_is_called() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let instance = Instance::at("10.14.0.109", 80)
        .weight(2.5)
        .meta("说明", "a b+c&d=e")
        .patient();
    let multipart = |params: &Params| -> String {
        let part = |(key, value): &(String, String)| {
            format!("--xyz\r\nContent-Disposition: form-data; name=\"{key}\"\r\n\r\n{value}\r\n")
        };
        params.iter().map(part).collect::<String>() + "--xyz--\r\n"
    };
    for path in INSTANCES {
        for n_in_query in [0, 4, usize::MAX] {
            for content_type in [
                Some("application/x-www-form-urlencoded"),
                Some("application/x-www-form-urlencoded;charset=UTF-8"),
                Some("Application/X-WWW-Form-Urlencoded; charset=utf-8"),
                Some("text/plain"),
                Some("multipart/form-data; boundary=xyz"),
                None,
            ] {
                let service = Service::unique("content-type");
                let all = joined(&service, instance.to_params());
                let (query, body) = all.split_at(n_in_query.min(all.len()));
                let body = match content_type {
                    Some(kind) if kind.starts_with("multipart") => multipart(&body.to_vec()),
                    _ => encoded(&body.to_vec()),
                };
                let mut request = http.request(Method::POST, path).query(query).body(body);
                if let Some(content_type) = content_type {
                    request = request.header("content-type", content_type);
                }
                let reply = http.send(request).await?;
                ensure!(is_done(&reply), "{path} {n_in_query} {content_type:?}: {reply:?}");
                http.list(&service)
                    .await?
                    .expect_only(&instance)
                    .with_context(|| format!("{path} {n_in_query} {content_type:?}"))?;
            }
        }
        let all: serde_json::Map<String, Value> = joined(&Service::unique("json"), instance.to_params())
            .into_iter()
            .map(|(key, value)| (key, value.into()))
            .collect();
        http.send(http.request(Method::POST, path).json(&all))
            .await?
            .refused(400, "serviceName")?;
    }
    Ok(())
}

/// KF-110: bodies in chunks are read at the owner and at another node.
#[tokio::test]
async fn kf_110_a_body_in_chunks_is_read_at_every_node() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = cluster.service_owned_by(1, "chunked").await?;
    for (port, node) in (1..).zip(cluster.nodes()) {
        let instance = Instance::at("10.14.0.110", port).meta("v", "说明").patient();
        let chunked = async |method: &str, path: &str, params: &Params| {
            let mut request = format!(
                "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\
                 Content-Type: application/x-www-form-urlencoded\r\n\r\n"
            );
            // Seven bytes each, so that names, values and escapes are cut.
            for piece in encoded(params).as_bytes().chunks(7) {
                let piece = std::str::from_utf8(piece)?;
                request += &format!("{:x}\r\n{piece}\r\n", piece.len());
            }
            raw(node, (request + "0\r\n\r\n").as_bytes()).await
        };
        let all = joined(&service, instance.to_params());
        let answer = chunked("POST", INSTANCE, &all).await?;
        ensure!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"),
            "{answer}"
        );
        let list = node.http().list(&service).await?;
        assert_eq!(list.at(&instance.address())?, &instance);
        let row = joined(&service, instance.row_params());
        let answer = chunked("PUT", BEAT, &row).await?;
        ensure!(answer.contains("10200"), "{answer}");
    }
    Ok(())
}

/// KF-111: what dashboards and 1.x clients ask for is answered in its shape, and what is not supported says so.
#[tokio::test]
async fn kf_111_the_calls_of_dashboards_are_answered_or_refused_in_words() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let service = Service::unique("dashboard");
    let instance = Instance::at("10.14.0.111", 80).weight(2.0).patient();
    http.register(&service, &instance).await?.ok()?;
    let get = async |path: &str, more: &[(&str, &str)]| {
        let all = joined(&service, params(more));
        let path = format!("/nacos/v1/{path}");
        let reply = http.query(Method::GET, &path, &all).await?;
        reply.json().with_context(|| path)
    };
    let page = [("pageNo", "1"), ("pageSize", "10")];

    let more = [page[0], page[1], ("clusterName", "DEFAULT")];
    let instances = get("ns/catalog/instances", &more).await?;
    assert_eq!(
        (&instances["count"], &instances["list"][0]["ip"]),
        (&1.into(), &"10.14.0.111".into())
    );
    let more = [page[0], page[1], ("serviceNameParam", service.name.as_str())];
    let services = get("ns/catalog/services", &more).await?;
    let wanted = serde_json::json!({
        "name": service.name, "groupName": "DEFAULT_GROUP", "clusterCount": 1, "ipCount": 1,
        "healthyInstanceCount": 1, "triggerFlag": "false",
    });
    assert_eq!(
        (&services["count"], &services["serviceList"][0]),
        (&1.into(), &wanted)
    );
    let detail = get("ns/service", &[]).await?;
    assert_eq!(
        (
            &detail["name"],
            &detail["protectThreshold"],
            &detail["clusters"][0]["name"]
        ),
        (&service.name.clone().into(), &0.0.into(), &"DEFAULT".into())
    );
    let names = get("ns/service/list", &[("pageNo", "1"), ("pageSize", "1000")]).await?;
    let doms = names["doms"].as_array().context("no doms")?;
    ensure!(doms.contains(&service.name.clone().into()), "{names}");
    let metrics = get("ns/operator/metrics", &[("onlyStatus", "false")]).await?;
    ensure!(
        metrics["status"] == "UP" && metrics["instanceCount"].as_u64() >= Some(1),
        "{metrics}"
    );
    let subscribers = get("ns/service/subscribers", &page).await?;
    assert_eq!(subscribers, serde_json::json!({"subscribers": [], "count": 0}));
    let switches = get("ns/operator/switches", &[]).await?;
    ensure!(switches["clientBeatInterval"].is_u64(), "{switches}");
    let nodes = get("core/cluster/nodes", &[]).await?;
    assert_eq!(nodes["data"].as_array().map(Vec::len), Some(3));
    let state = get("console/server/state", &[]).await?;
    assert_eq!(
        (&state["version"], &state["startup_mode"]),
        (&"2.5.1".into(), &"cluster".into())
    );
    let namespaces = get("console/namespaces", &[]).await?;
    assert_eq!(namespaces["code"], 200);
    for removed in [
        "raft/state",
        "raft/leader",
        "operator/servers",
        "distro/checksum",
        "api/hello",
    ] {
        let reply = http
            .query(Method::GET, &format!("/nacos/v1/ns/{removed}"), &Vec::new())
            .await?;
        ensure!(
            reply.status == 404 && reply.text.contains("no such api"),
            "{removed}: {reply:?}"
        );
    }
    Ok(())
}
