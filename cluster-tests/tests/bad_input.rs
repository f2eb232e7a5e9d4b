//! Input that is wrong: it gets the recorded or a clear error, changes nothing, and the node lives.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::client::merged;
use cluster_tests::cluster::SOON;
use cluster_tests::connection::payload_of_text;
use cluster_tests::http::{INSTANCE, joined};
use cluster_tests::{Acks, ClientOptions, Connection, Instance, Node, Service, SharedCluster, unique};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

static CLUSTER: SharedCluster = SharedCluster::of(3);

const NOBODY: [&str; 0] = [];

/// Checks that a node still takes and gives over both interfaces.
async fn lives(node: &Node) -> Result<()> {
    node.check()?;
    let service = Service::unique("alive");
    let client = node.client().await?;
    client.register(&service, &Instance::at("10.13.0.1", 80)).await?;
    node.http().list(&service).await?.expect(&["10.13.0.1:80"])
}

// === gRPC ===

#[tokio::test]
async fn a_body_that_is_no_json_is_refused() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let client = cluster.node(0).client().await?;
    let bodies: [(&[u8], &str); 7] = [
        (b"{zzz", "errCode: 101, errMsg: Nacos deserialize failed.  "),
        (b"", "errCode: 101, errMsg: Nacos deserialize failed.  "),
        (b"[]", "errCode: 101, errMsg: Nacos deserialize failed.  "),
        (b"\"text\"", "errCode: 101, errMsg: Nacos deserialize failed.  "),
        (b"{\"a\":", "errCode: 101, errMsg: Nacos deserialize failed.  "),
        (
            b"\xff\xfe\x00",
            "errCode: 101, errMsg: Nacos deserialize failed.  ",
        ),
        (b"null", "Invalid request"),
    ];
    for kind in [
        "InstanceRequest",
        "HealthCheckRequest",
        "ServiceQueryRequest",
        "BatchInstanceRequest",
    ] {
        for (body, message) in bodies {
            let answer = client
                .connection()
                .call(payload_of_text(kind, body))
                .await?
                .refused(502)?;
            assert_eq!(
                (answer.kind.as_str(), answer.message()),
                ("ErrorResponse", message),
                "{kind} {body:?}"
            );
        }
    }
    let deep = format!("{{\"instance\":{}{}}}", "[".repeat(20_000), "]".repeat(20_000));
    client
        .connection()
        .call(payload_of_text("InstanceRequest", deep))
        .await?
        .refused(502)?;
    lives(cluster.node(0)).await
}

#[tokio::test]
async fn fields_of_the_wrong_type_are_refused() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("types");
    let client = cluster.node(0).client().await?;
    let good = Instance::at("10.13.0.2", 80).to_json();
    for (key, value) in [
        ("port", json!("x")),
        ("port", json!({})),
        ("port", json!([80])),
        ("weight", json!("x")),
        ("metadata", json!("text")),
        ("metadata", json!({"a": {"b": "c"}})),
        ("ip", json!({"a": 1})),
        ("healthy", json!("perhaps")),
    ] {
        let instance = merged(good.clone(), json!({key: value}));
        let answer = client
            .instance_request("registerInstance", &service, instance)
            .await?;
        ensure!(answer.refused(502).is_ok(), "{key}: {value}");
    }
    for instance in [json!("text"), json!([]), json!(5)] {
        client
            .instance_request("registerInstance", &service, instance)
            .await?
            .refused(502)?;
    }
    client.query(&service).await?.expect(&NOBODY)?;
    let list = client
        .send("ServiceListRequest", &json!({"pageNo": "abc", "pageSize": 10}))
        .await?;
    list.refused(502)?;
    lives(cluster.node(0)).await
}

#[tokio::test]
async fn numbers_as_text_and_unknown_fields_are_taken() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("lenient");
    let client = cluster.node(0).client().await?;
    let instance =
        json!({"ip": "10.13.0.3", "port": "81", "weight": "2", "zzz": {"deep": [1, 2]}, "healthy": "true"});
    let more =
        json!({"type": "registerInstance", "instance": instance, "unknown": null, "headers": {"x": "y"}});
    client
        .send_on("InstanceRequest", &service, more)
        .await?
        .accepted()?;
    let list = client.query(&service).await?;
    assert_eq!(
        (list.hosts[0].port, list.hosts[0].weight, list.hosts[0].healthy),
        (81, 2.0, true)
    );
    Ok(())
}

#[tokio::test]
async fn requests_that_lack_a_part_are_refused() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("parts");
    let client = cluster.node(0).client().await?;
    let instance = Instance::at("10.13.0.4", 80).to_json();
    let no_instance = client
        .send_on("InstanceRequest", &service, json!({"type": "registerInstance"}))
        .await?;
    assert_eq!(no_instance.refused(400)?.message(), "Instance can not be null.");
    let unknown = client
        .instance_request("zzz", &service, instance.clone())
        .await?
        .refused(400)?;
    assert_eq!(unknown.message(), "Unsupported request type zzz");
    let no_type = client
        .send_on("InstanceRequest", &service, json!({"instance": instance}))
        .await?;
    ensure!(no_type.result_code() != 200, "{no_type:?}");
    let no_list = client
        .send_on(
            "BatchInstanceRequest",
            &service,
            json!({"type": "batchRegisterInstance"}),
        )
        .await?;
    ensure!(no_list.result_code() != 200, "{no_list:?}");
    let no_group = json!({"namespace": "public", "serviceName": service.name, "type": "registerInstance",
        "instance": Instance::at("10.13.0.4", 80).to_json()});
    let no_group = client.send("InstanceRequest", &no_group).await?.refused(500)?;
    assert_eq!(
        no_group.message(),
        "Param 'groupName' is illegal, groupName is blank"
    );
    client.query(&service).await?.expect(&NOBODY)
}

#[tokio::test]
async fn bad_names_addresses_and_times_are_refused_over_grpc() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let client = cluster.node(0).client().await?;
    let good = Instance::at("10.13.0.5", 80);
    let bad_services = [
        (Service::new("a b"), "serviceName"),
        (Service::new("@a"), "serviceName"),
        (Service::new("x\u{4E2D}\u{6587}"), "serviceName"),
        (Service::unique("s").group("a b"), "group"),
        (Service::unique("s").group("a/b"), "group"),
        (Service::unique("s").namespace("a.b"), "namespaceId/tenant"),
    ];
    for (service, named) in bad_services {
        for kind in [
            "InstanceRequest",
            "BatchInstanceRequest",
            "ServiceQueryRequest",
            "SubscribeServiceRequest",
        ] {
            let operation = if kind == "InstanceRequest" {
                "registerInstance"
            } else {
                "batchRegisterInstance"
            };
            let more = json!({"type": operation, "instance": good.to_json(), "instances": [good.to_json()], "subscribe": true});
            let answer = client.send_on(kind, &service, more).await?.refused(400)?;
            ensure!(
                answer.result_code() == 500 && answer.message().starts_with("Param check invalid:Param '"),
                "{answer:?}"
            );
            ensure!(
                answer.message().contains(named),
                "{named} is not named: {answer:?}"
            );
        }
    }
    let service = Service::unique("bad");
    let bad_instances = [
        Instance::at("1 2", 80),
        Instance::at("\u{4E2D}", 80),
        good.clone().cluster("a@b"),
        good.clone().cluster("a_b"),
        good.clone().meta("k", &"x".repeat(1025)),
        good.clone().beat_times(9_000, 3_000, 30_000),
        good.clone().beat_times(9_000, 15_000, 3_000),
    ];
    for instance in bad_instances {
        client
            .instance_request("registerInstance", &service, instance.to_json())
            .await?
            .refused(400)?;
        client.query(&service).await?.expect(&NOBODY)?;
    }
    Ok(())
}

#[tokio::test]
async fn types_that_cannot_be_called_are_refused_before_and_after_the_setup() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let raw = Connection::open(cluster.node(0).grpc_address()).await?;
    let client = cluster.node(0).client().await?;
    for connection in [&raw, client.connection()] {
        for kind in [
            "NoSuchRequest",
            "",
            "ConnectionSetupRequest",
            "HealthCheckResponse",
            "NotifySubscriberRequest",
            "ConnectResetRequest",
            "ClientDetectionRequest",
            "SetupAckRequest",
            "instancerequest",
        ] {
            let answer = connection.send(kind, &json!({})).await?.refused(302)?;
            assert_eq!(
                (answer.kind.as_str(), answer.message()),
                ("ErrorResponse", "RequestHandler Not Found")
            );
        }
        for kind in [
            "ServerLoaderInfoRequest",
            "ServerReloadRequest",
            "DistroDataRequest",
            "MemberReportRequest",
        ] {
            let answer = connection.send(kind, &json!({})).await?.refused(502)?;
            assert_eq!(answer.message(), format!(" invoke {kind} from sdk is forbidden"));
        }
        connection
            .call(payload_of_text("ServerCheckRequest", "zzz"))
            .await?
            .accepted()?;
    }
    Ok(())
}

#[tokio::test]
async fn a_payload_without_metadata_or_body_is_refused() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let client = cluster.node(0).client().await?;
    let empty = cluster_tests::connection::Payload::default();
    client.connection().call(empty).await?.refused(302)?;
    let mut no_body = payload_of_text("HealthCheckRequest", "{}");
    no_body.body = None;
    client.connection().call(no_body).await?.refused(502)?;
    let mut typed = payload_of_text("HealthCheckRequest", "{}");
    typed
        .body
        .iter_mut()
        .for_each(|any| any.type_url = "type.googleapis.com/x".into());
    client.connection().call(typed).await?.accepted()?;
    lives(cluster.node(0)).await
}

#[tokio::test]
async fn rubbish_on_the_stream_is_dropped() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("stream");
    let client = cluster.node(0).client().await?;
    client.subscribe(&service, "").await?;
    for (kind, body) in [
        ("NoSuchRequest", "{}"),
        ("HealthCheckRequest", "{}"),
        ("InstanceRequest", "{}"),
        ("ConnectionSetupRequest", "{zz"),
        ("NotifySubscriberResponse", "{zz"),
        ("NotifySubscriberResponse", "{}"),
        (
            "NotifySubscriberResponse",
            "{\"requestId\":\"999999999999999999999\",\"resultCode\":200}",
        ),
        (
            "NotifySubscriberResponse",
            "{\"requestId\":\"-1\",\"resultCode\":\"x\"}",
        ),
        ("ClientDetectionResponse", "null"),
        ("", ""),
    ] {
        client.send_up(payload_of_text(kind, body))?;
    }
    client.send_up(cluster_tests::connection::Payload::default())?;
    client.register(&service, &Instance::at("10.13.0.6", 80)).await?;
    client.pushed_exactly(&service, &["10.13.0.6:80"], SOON).await?;
    ensure!(!client.is_closed(), "the stream was closed");
    Ok(())
}

#[tokio::test]
async fn a_stream_that_never_acknowledges_anything_is_dropped() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let service = Service::unique("mute");
    let mute = cluster
        .node(0)
        .client_with(ClientOptions::default().acks(Acks::None))
        .await?;
    mute.register(&service, &Instance::at("10.13.0.7", 80)).await?;
    mute.subscribe(&service, "").await?;
    cluster.eventually_listed(&service, &["10.13.0.7:80"]).await;

    // Asked after 10 s of silence, dropped after 14 s.
    mute.stream_end(Duration::from_secs(25)).await?;

    cluster.eventually_listed(&service, &NOBODY).await;
    lives(cluster.node(0)).await
}

#[tokio::test]
async fn setups_with_odd_labels_are_taken() -> Result<()> {
    let cluster = CLUSTER.get().await;
    for setup in [
        json!({"labels": null, "abilityTable": {}}),
        json!({"labels": {"source": "SDK", "x": "y"}, "abilityTable": {"unknown": true}, "clientVersion": null}),
        json!({"abilityTable": {}, "abilities": {"remoteAbility": {}}, "clientAbilities": {}}),
    ] {
        let options = ClientOptions {
            setup,
            ..ClientOptions::default()
        };
        let client = cluster.node(0).client_with(options).await?;
        let service = Service::unique("labels");
        client.register(&service, &Instance::at("10.13.0.8", 80)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_client_of_another_module_may_read_but_not_register() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let setup = json!({"labels": {"source": "sdk", "module": "config"}, "abilityTable": {}});
    let client = cluster
        .node(0)
        .client_with(ClientOptions {
            setup,
            ..ClientOptions::default()
        })
        .await?;
    let service = Service::unique("module");
    let instance = Instance::at("10.13.0.9", 80).to_json();
    client
        .instance_request("registerInstance", &service, instance)
        .await?
        .refused(-401)?;
    client.query(&service).await?.expect(&NOBODY)
}

#[tokio::test]
async fn a_message_above_the_limit_is_refused_and_the_connection_goes_on() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let client = cluster.node(0).client().await?;
    let huge = format!("{{\"zzz\":\"{}\"}}", "x".repeat(11 << 20));
    let answer = client
        .connection()
        .call_raw(payload_of_text("HealthCheckRequest", huge))
        .await;
    ensure!(answer.is_err(), "11 MiB were taken");
    let large = format!("{{\"zzz\":\"{}\"}}", "x".repeat(9 << 20));
    client
        .connection()
        .call(payload_of_text("HealthCheckRequest", large))
        .await?
        .accepted()?;
    lives(cluster.node(0)).await
}

#[tokio::test]
async fn a_grpc_frame_that_is_no_payload_is_refused() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let client = reqwest::Client::builder()
        .no_proxy()
        .http2_prior_knowledge()
        .build()?;
    let frames: [&[u8]; 5] = [
        b"",
        b"\0\0\0\0\x05\xff\xff\xff\xff\xff",
        b"\0\xff\xff\xff\xff",
        b"\x01\0\0\0\x02\x12\x00",
        b"\0\0\0\0\x04\x12\x7fab",
    ];
    for path in [
        "/Request/request",
        "/BiRequestStream/requestBiStream",
        "/NoSuch/method",
        "/",
    ] {
        for frame in frames {
            let request = client
                .post(format!("http://{}{path}", cluster.node(0).grpc_address()))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(frame.to_vec())
                .timeout(Duration::from_secs(5));
            // Any answer will do, even a closed stream, but not silence.
            let end = request.send().await;
            ensure!(
                !end.as_ref().is_err_and(reqwest::Error::is_timeout),
                "{path} {frame:?} hangs"
            );
        }
    }
    lives(cluster.node(0)).await
}

// === HTTP ===

#[tokio::test]
async fn missing_parameters_are_named() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let all = joined(
        &Service::unique("missing"),
        Instance::at("10.13.0.10", 80).row_params(),
    );
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::GET] {
        for key in ["serviceName", "ip", "port"] {
            let params = all.iter().filter(|(k, _)| k != key).cloned().collect();
            let text = format!("Param '{key}' is required.");
            http.query(method.clone(), INSTANCE, &params)
                .await?
                .refused(400, &text)?;
        }
        http.query(method, INSTANCE, &vec![])
            .await?
            .refused(400, "Param 'serviceName' is required.")?;
    }
    http.query(Method::PUT, &format!("{INSTANCE}/beat"), &vec![])
        .await?
        .refused(400, "Param 'serviceName' is required.")
}

#[tokio::test]
async fn bad_names_addresses_and_numbers_are_refused_over_http() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let name = unique("bad");
    for (key, value, text) in [
        ("serviceName", "a b", "Param 'serviceName' is illegal"),
        ("serviceName", "@@a", "groupName can't be empty"),
        (
            "serviceName",
            "a@@",
            "it should be format as 'groupName@@serviceName'",
        ),
        ("serviceName", "a@@b@@c", "Param 'serviceName' is illegal"),
        (
            "serviceName",
            "\u{4E2D}\u{6587}",
            "Param 'serviceName' is illegal",
        ),
        ("groupName", "a b", "Param 'group' is illegal"),
        ("groupName", "a@b", "Param 'group' is illegal"),
        ("namespaceId", "a.b", "Param 'namespaceId/tenant' is illegal"),
        ("clusterName", "a.b", "Param 'cluster' is illegal"),
        (
            "clusterName",
            "a_b",
            "Instance 'clusterName' should be characters with only 0-9a-zA-Z-. (current: a_b)",
        ),
        ("ip", "not an ip", "Param 'ip' is illegal"),
        (
            "port",
            "abc",
            "Param 'port' is illegal, the value should be between 0 and 65535.",
        ),
        ("weight", "abc", "For input string: \"abc\""),
        ("metadata", "abc", "metadata format incorrect"),
        (
            "metadata",
            "{\"preserved.heart.beat.interval\":\"9000\",\"preserved.heart.beat.timeout\":\"3000\"}",
            "Instance 'heart beat interval' must less than 'heart beat timeout' and 'ip delete timeout'.",
        ),
    ] {
        let mut params: Vec<(String, String)> = [
            ("serviceName", &*name),
            ("ip", "10.13.0.11"),
            ("port", "80"),
            (key, value),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
        if let Some(first) = params.iter().position(|(k, _)| k == key).filter(|at| *at < 3) {
            params.remove(first);
        }
        for reply in [
            http.query(Method::POST, INSTANCE, &params).await?,
            http.form(Method::POST, INSTANCE, &params).await?,
        ] {
            reply
                .refused(400, text)
                .with_context(|| format!("{key}={value}"))?;
        }
    }
    http.list(&Service::new(name)).await?.expect(&NOBODY)
}

#[tokio::test]
async fn broken_beats_are_refused() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let service = Service::unique("beat");
    for beat in [
        "{\"ip\":",
        "[]",
        "text",
        "{\"ip\":\"10.13.0.12\",\"port\":\"x\"}",
        "{\"ip\":\"10.13.0.12\",\"port\":70000}",
        "{}",
    ] {
        let params = joined(&service, vec![("beat".into(), beat.into())]);
        let reply = http
            .query(Method::PUT, &format!("{INSTANCE}/beat"), &params)
            .await?;
        ensure!(reply.status == 400 || reply.status == 500, "{beat}: {reply:?}");
        ensure!(!reply.text.is_empty(), "{beat}: no text");
    }
    http.list(&service).await?.expect(&NOBODY)?;
    lives(cluster.node(0)).await
}

#[tokio::test]
async fn escapes_that_are_no_text_are_refused() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let name = unique("escapes");
    let text = format!(
        "POST {INSTANCE}?serviceName={name}&ip=10.13.0.13&port=80&metadata=%FF%FE HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    );
    let answer = raw(cluster.node(0).http_address(), text.as_bytes()).await?;
    ensure!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    http.list(&Service::new(name)).await?.expect(&NOBODY)
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let service = Service::unique("oversize");
    let mut params = joined(&service, Instance::at("10.13.0.14", 80).row_params());
    params.push(("app".into(), "x".repeat(11 << 20)));
    match http.form(Method::POST, INSTANCE, &params).await {
        Ok(reply) => ensure!(reply.status == 413 || reply.status == 400, "{reply:?}"),
        // Closed while the rest was still being sent.
        Err(error) => ensure!(!format!("{error:?}").contains("TimedOut"), "{error:?}"),
    }
    // The node may close the connection with the rest of the body unread.
    let http = cluster.node(0).http();
    http.list(&service).await?.expect(&NOBODY)?;
    // Just below it, the body is read.
    params.pop();
    params.push(("app".into(), "x".repeat(9 << 20)));
    http.form(Method::POST, INSTANCE, &params).await?.ok()?;
    lives(cluster.node(0)).await
}

#[tokio::test]
async fn a_json_body_is_not_read_as_parameters() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let http = cluster.node(0).http();
    let body = json!({"serviceName": unique("json"), "ip": "10.13.0.15", "port": 80});
    let request = http.request(Method::POST, INSTANCE).json(&body);
    http.send(request)
        .await?
        .refused(400, "Param 'serviceName' is required.")
}

// === Bytes ===

/// Sends bytes and reads what comes until the other end closes or is silent for a while.
async fn raw(address: SocketAddr, bytes: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    // The other end may close before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn bytes_that_are_no_protocol_do_no_harm_on_any_port() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let node = cluster.node(1);
    let random: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(64 * 1024)
        .collect();
    let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    preface.extend(&random[..1000]);
    let long_header = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(1 << 20));
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let smuggled =
        b"POST /nacos/v1/ns/instance HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n";
    let texts: [&[u8]; 7] = [
        b"",
        b"\0",
        &random,
        &preface,
        long_header.as_bytes(),
        tls,
        smuggled,
    ];
    for address in [node.http_address(), node.grpc_address(), node.peer_address()] {
        let all = texts.iter().map(|bytes| raw(address, bytes));
        futures_util::future::try_join_all(all).await?;
    }
    lives(node).await?;
    cluster.equal(SOON).await;
    Ok(())
}

#[tokio::test]
async fn strangers_on_the_peer_port_change_nothing() -> Result<()> {
    let cluster = CLUSTER.get().await;
    let node = cluster.node(1);
    let service = Service::unique("stranger");
    // A client that takes the peer port for the client port.
    let connection = Connection::open(node.peer_address()).await?;
    let body = merged(
        service.to_json(),
        json!({"type": "registerInstance", "instance": Instance::at("10.13.0.16", 80).to_json()}),
    );
    ensure!(
        connection.send("InstanceRequest", &body).await.is_err(),
        "clients are served on the peer port"
    );
    // HTTP requests there, plain and with rubbish for a body.
    let http = cluster_tests::Http::new(node.peer_address());
    for path in [INSTANCE, "/forward", "/rollcall/forward", "/"] {
        let request = http
            .request(Method::POST, path)
            .query(&joined(&service, Instance::at("10.13.0.16", 80).to_params()));
        if let Ok(reply) = http.send(request.body(vec![0xff; 1000])).await {
            ensure!(reply.status >= 400, "{path}: {reply:?}");
        }
    }
    node.http().list(&service).await?.expect(&NOBODY)?;
    lives(node).await
}
