//! What comes from outside as bytes, and what is done with it: one entry for each way in.
//!
//! An entry takes any bytes, hands them to the decoder and on to a node that serves, and must neither panic nor leave the
//! node unable to serve. `tests/mutate.rs` drives the entries with a seeded mutator; `fuzz/` in the root of the project
//! does with libFuzzer.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use prost::Message as _;
use rollcall_core::{Instance, MemberId, Millis, ServiceKey};
use rollcall_distro::codec;
use rollcall_distro::convert::row_op;
use rollcall_distro::message::{Forward, ForwardReply, Frame, LinkHello, LinkRefusal, Op, Reply, Welcome};
use rollcall_node::request::ConnectionInfo;
use rollcall_node::{Actions, Node, NodeConfig};
use rollcall_server::clock::Clock;
use rollcall_server::config::member_file;
use rollcall_server::config::member_rules::MemberRules;
use rollcall_server::executor::Executor;
use rollcall_server::grpc::any::Any;
use rollcall_server::grpc::handler::setup;
use rollcall_server::grpc::unary::Unary;
use rollcall_server::http::app::{HttpApp, HttpSettings};
use rollcall_server::log_levels::LogLevels;
use rollcall_server::pb::{Metadata, Payload};
use rollcall_server::transport::{Established, Generation, Transport};
use tokio::runtime::Runtime;

/// A way in.
pub type Entry = fn(&[u8]);

/// All entries with their names and an input that each takes as it is meant.
pub const ENTRIES: &[(&str, Entry, &[&[u8]])] = &[
    ("payload_bytes", payload_bytes, PAYLOADS),
    ("request_json", request_json, REQUESTS),
    ("http_request", http_request, HTTP_REQUESTS),
    ("peer_message", peer_message, PEER_MESSAGES),
    ("udp_ack", udp_ack, UDP_ACKS),
    ("member_list", member_list, MEMBER_LISTS),
];

/// Types of unary requests; the first byte of an input of [`request_json`] chooses.
const TYPES: &[&str] = &[
    "InstanceRequest",
    "BatchInstanceRequest",
    "SubscribeServiceRequest",
    "ServiceQueryRequest",
    "ServiceListRequest",
    "PersistentInstanceRequest",
    "HealthCheckRequest",
    "ServerCheckRequest",
    "ConnectionSetupRequest",
    "NoSuchRequest",
];

const PAYLOADS: &[&[u8]] = &[b"\x12\x17\x1a\x10ServerCheckRequest\x42\x05\x12\x03127\x1a\x04\x12\x02{}"];

const REQUESTS: &[&[u8]] = &[
    br#"0{"type":"registerInstance","namespace":"public","serviceName":"s","groupName":"g","instance":{"ip":"10.0.0.1","port":80,"weight":1.0,"metadata":{"a":"b"},"ephemeral":true}}"#,
    br#"1{"type":"batchRegisterInstance","serviceName":"s","groupName":"g","instances":[{"ip":"10.0.0.1","port":80},{"ip":"::1","port":81,"clusterName":"c"}]}"#,
    br#"2{"namespace":"public","serviceName":"s","groupName":"g","clusters":"a,b","subscribe":true}"#,
    br#"3{"namespace":"","serviceName":"g@@s","cluster":"","healthyOnly":true,"udpPort":0}"#,
    br#"4{"pageNo":1,"pageSize":10,"groupName":"g","selector":null}"#,
    br#"8{"clientVersion":"Nacos-Java-Client:v2.5.1","labels":{"source":"sdk","module":"naming"},"abilityTable":{"x":true}}"#,
];

const UDP_ACKS: &[&[u8]] = &[
    br#"{"type":"push-ack","lastRefTime":"5418769387641","data":""}"#,
    br#" {"lastRefTime":123.0}zzz"#,
];

const MEMBER_LISTS: &[&[u8]] = &[
    b"# registry\n10.0.0.1:8848\n10.0.0.2:8858?raft_port=8807, [::1]:8868 ,registry-4\n",
    b"10.0.0.1:8848,10.0.0.1:8848,\n\r\n[2001:db8::1]",
];

const HTTP_REQUESTS: &[&[u8]] = &[
    b"GET /nacos/v1/ns/instance/list?serviceName=a&clusters=b,c&healthyOnly=true\n\n",
    b"POST /nacos/v1/ns/instance?serviceName=a&ip=10.0.0.1&port=80&metadata=%7B%22k%22%3A%22v%22%7D\n\n",
    b"PUT /nacos/v1/ns/instance/beat?serviceName=a\napplication/x-www-form-urlencoded\nbeat=%7B%22ip%22%3A%2210.0.0.2%22%2C%22port%22%3A81%2C%22metadata%22%3A%7B%7D%7D",
    b"PUT /nacos/v1/ns/instance\napplication/x-www-form-urlencoded\nserviceName=a&ip=10.0.0.1&port=80&weight=2&enabled=false",
    b"DELETE /nacos/v1/ns/instance?serviceName=a&ip=10.0.0.1&port=80\n\n",
    b"GET /nacos/v1/ns/service/list?pageNo=1&pageSize=10\n\n",
    b"GET /rollcall/rows?serviceName=a\n\n",
];

const PEER_MESSAGES: &[&[u8]] = &[
    b"\x05\x01\x05\x00\x00\x01\x01\x02\x07",
    b"\x06\x01\x06\x00\x00\x05",
    b"\x07\x01\x07\x00\x08rollcall\x06modulo\x0e127.0.0.1:8848\x01\x02\x01\x00\x05",
    b"\x0c\x01\x0c\x00\x02\x09",
];

/// A single node that serves, with one instance that no input may take away.
struct Target {
    runtime: Runtime,
    exec: Executor,
    http: HttpApp,
    unary: Unary,
    transport: Arc<Transport>,
}

/// The service whose instance stays.
const KEPT: (&str, &str) = ("kept-group-of-the-fuzzer", "kept");

impl Target {
    fn start() -> Self {
        let address = "127.0.0.1:8848";
        let clock = Clock::start();
        let config = NodeConfig::new(address, &[address], 1);
        let node = Arc::new(Node::new(config, 1, clock.now()));
        let exec = Executor::new(node.clone(), clock, None);
        let mut actions = Actions::default();
        node.tick(exec.now(), &mut actions);
        let local = SocketAddr::from(([127, 0, 0, 1], 9848));
        let open = |port: u16, actions: &mut Actions| {
            let remote = SocketAddr::from(([127, 0, 0, 1], port));
            let transport = Arc::new(Transport::new(remote, local, Millis(1)));
            let info = ConnectionInfo {
                is_naming: true,
                ..ConnectionInfo::default()
            };
            if let Ok(id) = node.open_connection(info, exec.now(), actions) {
                transport.stream_opens();
                let _ = transport.establish(Established {
                    id,
                    generation: Generation::Two,
                });
            }
            transport
        };
        let keeper = open(40_000, &mut actions);
        if let Some(kept) = keeper.established() {
            let service = ServiceKey::new("public", KEPT.0, KEPT.1);
            let instances = vec![Instance::at("10.9.9.9", 1)];
            let _ = node.register(kept.id, &service, instances, exec.now(), &mut actions);
        }
        let transport = open(40_001, &mut actions);
        exec.run(actions);
        let settings = HttpSettings {
            context_path: "/nacos".into(),
            body_limit: 1 << 16,
            metadata_limit: 1024,
            log_levels: Arc::new(LogLevels::new("info", |_| Ok(()))),
            main_port: 8848,
        };
        #[expect(clippy::expect_used, reason = "without a runtime there is nothing to test")]
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        Target {
            runtime,
            http: HttpApp::new(exec.clone(), settings),
            unary: Unary::new(exec.clone(), 1024),
            exec,
            transport,
        }
    }
}

/// Entries of one process share a node; one runs at a time.
fn with_target<R>(use_it: impl FnOnce(&Target) -> R) -> R {
    static TARGET: OnceLock<parking_lot::Mutex<Target>> = OnceLock::new();
    let target = TARGET
        .get_or_init(|| parking_lot::Mutex::new(Target::start()))
        .lock();
    use_it(&target)
}

/// The number of instances that a client finds in the service that no input may change: 1.
pub fn n_kept() -> usize {
    with_target(|target| {
        let service = ServiceKey::new("public", KEPT.0, KEPT.1);
        let answer = target.exec.node().query(&service, target.exec.now());
        answer.map_or(0, |answer| answer.view.len())
    })
}

/// The number of instances that the node holds.
pub fn n_rows() -> usize {
    with_target(|target| target.exec.node().registry().n_rows())
}

/// The bytes of a gRPC message.
pub fn payload_bytes(input: &[u8]) {
    if let Ok(payload) = Payload::decode(input) {
        call(&payload);
    }
}

/// The JSON body of a request; its type by the first byte.
pub fn request_json(input: &[u8]) {
    let Some((chooser, body)) = input.split_first() else {
        return;
    };
    let type_name = TYPES[usize::from(chooser.wrapping_sub(b'0')) % TYPES.len()];
    let payload = Payload {
        metadata: Some(Metadata {
            r#type: type_name.to_owned(),
            ..Metadata::default()
        }),
        body: Some(Any {
            value: Bytes::copy_from_slice(body),
            ..Any::default()
        }),
    };
    call(&payload);
    with_target(|target| {
        let _ = setup::read(&target.transport, "", body);
    });
}

fn call(payload: &Payload) {
    with_target(|target| {
        let answer = target.unary.answer_to(&target.transport, payload);
        let answer = target.runtime.block_on(answer);
        assert!(
            answer.metadata.is_some_and(|m| !m.r#type.is_empty()),
            "every request is answered"
        );
    });
}

/// A request over HTTP: method and path in the first line, the content type in the second, the body after that.
pub fn http_request(input: &[u8]) {
    let mut lines = input.splitn(3, |byte| *byte == b'\n');
    let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let content_type = lines.next().unwrap_or_default();
    let body = lines.next().unwrap_or_default();
    let Some((method, path)) = first.split_once(' ') else {
        return;
    };
    let mut request = Request::builder().method(method).uri(path);
    if !content_type.is_empty() {
        request = request.header("content-type", content_type);
    }
    let Ok(request) = request.body(Full::new(Bytes::copy_from_slice(body))) else {
        return; // Not a request that a socket could bring.
    };
    with_target(|target| {
        let answer = target.runtime.block_on(target.http.answer(request));
        assert!(answer.status().as_u16() >= 200);
    });
}

/// A message of another member; its type by the first byte.
pub fn peer_message(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    match kind {
        1 => drop(codec::decode::<LinkHello>(bytes)),
        2 => drop(codec::decode::<codec::Challenge>(bytes)),
        3 => drop(codec::decode::<codec::Proof>(bytes)),
        4 => drop(codec::decode::<Result<Welcome, LinkRefusal>>(bytes)),
        5 => drop(codec::decode::<Frame>(bytes)),
        6 => drop(codec::decode::<Reply>(bytes)),
        7 => drop(codec::decode_probe(bytes)),
        8 => drop(codec::decode::<Forward>(bytes)),
        9 => drop(codec::decode::<ForwardReply>(bytes)),
        10 => drop(codec::decode::<codec::Verdict>(bytes)),
        11 => drop(codec::decode::<codec::Sealed>(bytes)),
        _ => {
            if let Ok(op) = codec::decode::<Op>(bytes) {
                let op = row_op(op, MemberId(1));
                let again = row_op(Op::from(&op), MemberId(1));
                assert_eq!(op.version(), again.version(), "what is read can be sent on");
            }
        }
    }
}

/// What a member file or an address server holds.
pub fn member_list(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let rules = MemberRules {
        advertise: "10.0.0.1:8848".into(),
        port: 8848,
        distances: [0, 1_000, 1_001],
    };
    if let Ok(members) = rules.check(&member_file::parse(text)) {
        let again = rules.check(&member_file::parse(&members.join("\n")));
        assert_eq!(again, Ok(members), "what is taken is taken again");
    }
}

/// A datagram that claims to acknowledge a push.
pub fn udp_ack(input: &[u8]) {
    let _ = rollcall_server::udp::acknowledged(input);
}
