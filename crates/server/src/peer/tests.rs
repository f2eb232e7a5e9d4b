//! Members of a cluster in one process, talking over loopback.

use std::net::SocketAddr;

use http::StatusCode;
use rollcall_core::Instance;
use rollcall_core::ServiceKey;
use rollcall_distro::codec::{Challenge, Proof, Verdict};
use rollcall_distro::message::{Frame, LinkHello, LinkRefusal, Welcome};
use rollcall_node::config::NodeConfig;
use rollcall_node::request::{ConnectionInfo, HttpWrite, WriteDone};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::grpc_peer::envelope;
use super::handshake::Transcript;
use super::pb::Envelope;
use super::*;
use crate::clock::Clock;
use crate::sockets::Tcp;

/// Longest wait for anything that must happen.
const DEADLINE: Duration = Duration::from_secs(30);
const A: &str = "127.0.0.1:18848";
const B: &str = "127.0.0.1:18858";

struct Member {
    executor: Executor,
    peers: Peers,
    shutdown: CancellationToken,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Member {
    fn node(&self) -> &Node {
        self.executor.node()
    }

    fn call<T>(&self, call: impl FnOnce(&Node, Now, &mut Actions) -> T) -> T {
        self.peers.0.with_node(call)
    }
}

/// A bound peer port.
async fn port() -> (TcpListener, SmolStr) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .await
        .unwrap();
    let address = SmolStr::new(listener.local_addr().unwrap().to_string());
    (listener, address)
}

/// Starts the member `address` of the cluster of A and B, whose peer ports are at `a` and `b`.
async fn start(address: &str, listener: TcpListener, a: &SmolStr, b: &SmolStr, secret: &str) -> Member {
    try_start(address, listener, a, b, secret).await.unwrap()
}

async fn try_start(
    address: &str,
    listener: TcpListener,
    a: &SmolStr,
    b: &SmolStr,
    secret: &str,
) -> Result<Member, PeerError> {
    let clock = Clock::start();
    let config = NodeConfig::new(address, &[A, B], 7);
    let node = Arc::new(Node::new(config, fastrand::u64(..), clock.now()));
    let executor = Executor::new(node.clone(), clock, None);
    let mut config = PeerConfig::new(secret.into());
    config.addresses = [(A.into(), a.clone()), (B.into(), b.clone())].into();
    let shutdown = CancellationToken::new();
    let network = (listener, Arc::new(Tcp) as Arc<dyn Dialer>);
    let peers = Peers::start(node, executor.clone(), network, config, shutdown.clone()).await?;
    tokio::spawn(tick(executor.clone(), shutdown.clone()));
    Ok(Member {
        executor,
        peers,
        shutdown,
    })
}

async fn tick(executor: Executor, shutdown: CancellationToken) {
    loop {
        let mut actions = Actions::default();
        let due = executor.node().tick(executor.now(), &mut actions);
        executor.run(actions);
        let pause = executor.clock().until(due).min(Duration::from_secs(1));
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = executor.woken() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// A and B with these secrets.
async fn cluster(secrets: [&str; 2]) -> (Member, Member) {
    let ((for_a, a), (for_b, b)) = (port().await, port().await);
    (
        start(A, for_a, &a, &b, secrets[0]).await,
        start(B, for_b, &a, &b, secrets[1]).await,
    )
}

/// Waits for a condition.
async fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let poll = async {
        let mut pulse = tokio::time::interval(Duration::from_millis(2));
        while !is_true() {
            pulse.tick().await;
        }
    };
    timeout(DEADLINE, poll)
        .await
        .unwrap_or_else(|_| panic!("never happened: {what}"));
}

fn count(member: &Member, name: &str) -> u64 {
    let list = member.peers.metrics().list();
    list.iter()
        .find(|(known, ..)| *known == name)
        .map(|(_, _, value)| *value)
        .unwrap()
}

fn rows(member: &Member, service: &ServiceKey) -> usize {
    member
        .node()
        .query(service, member.executor.now())
        .map_or(0, |answer| answer.view.len())
}

fn service(name: &str) -> ServiceKey {
    ServiceKey::new("public", "DEFAULT_GROUP", name)
}

fn instance(port: u16) -> Instance {
    Instance::at("10.0.0.1", port)
}

#[tokio::test]
async fn two_members_replicate_and_forward() {
    let (a, b) = cluster(["secret", "secret"]).await;
    until("both are ready", || a.node().is_ready() && b.node().is_ready()).await;

    let connection = a
        .call(|node, now, actions| {
            node.open_connection(
                ConnectionInfo {
                    is_naming: true,
                    ..Default::default()
                },
                now,
                actions,
            )
        })
        .unwrap();
    let over_grpc = service("over-grpc");
    a.call(|node, now, actions| node.register(connection, &over_grpc, vec![instance(1)], now, actions))
        .unwrap();
    until("B has the row of A's connection", || rows(&b, &over_grpc) == 1).await;

    let owned_by_b = (0..)
        .map(|n| service(&format!("s{n}")))
        .find(|key| a.node().owner(key).as_deref() == Some(B))
        .unwrap();
    let (ticket, answer) = a.executor.ticket();
    let write = HttpWrite::Register {
        service: owned_by_b.clone(),
        instance: instance(2),
    };
    a.call(|node, now, actions| node.write(ticket, write, now, actions));
    let (result, _) = timeout(DEADLINE, answer).await.unwrap().unwrap();
    assert_eq!(result, Ok(WriteDone::Ok));
    until("both have the forwarded row", || {
        [&a, &b].iter().all(|m| rows(m, &owned_by_b) == 1)
    })
    .await;
    assert_eq!(count(&a, "rollcall_peer_forwards_sent_total"), 1);
    assert_eq!(count(&b, "rollcall_peer_forwards_received_total"), 1);
    assert_eq!(count(&a, "rollcall_peer_forwards_failed_total"), 0);

    a.call(|node, now, actions| node.close_connection(connection, now, actions));
    until("B has dropped the row of A's connection", || {
        rows(&b, &over_grpc) == 0
    })
    .await;
}

#[tokio::test]
async fn a_member_that_comes_back_is_linked_again() {
    let ((for_a, a_port), (for_b, b_port)) = (port().await, port().await);
    let a = start(A, for_a, &a_port, &b_port, "secret").await;
    let b = start(B, for_b, &a_port, &b_port, "secret").await;
    until("A has dialed", || {
        count(&a, "rollcall_peer_links_opened_total") == 1
    })
    .await;
    drop(b);
    until("A's probes are refused", || {
        count(&a, "rollcall_peer_probes_refused_total") > 0
    })
    .await;
    let for_b = TcpListener::bind(b_port.as_str()).await.unwrap();
    let b = start(B, for_b, &a_port, &b_port, "secret").await;
    until("A has dialed again", || {
        count(&a, "rollcall_peer_links_opened_total") >= 2
    })
    .await;
    until("B has dialed", || {
        count(&b, "rollcall_peer_links_opened_total") >= 1
    })
    .await;
}

#[tokio::test]
async fn members_with_different_secrets_refuse_each_other_and_live() {
    let (a, b) = cluster(["secret", "other"]).await;
    for (member, other) in [(&a, B), (&b, A)] {
        until("handshakes are refused", || {
            count(member, "rollcall_peer_handshakes_refused_total") >= 3
        })
        .await;
        until("own handshakes fail", || {
            count(member, "rollcall_peer_handshakes_failed_total") >= 2
        })
        .await;
        assert_eq!(count(member, "rollcall_peer_links_opened_total"), 0);
        assert_eq!(count(member, "rollcall_peer_links_accepted_total"), 0);
        assert_eq!(count(member, "rollcall_peer_probes_answered_total"), 0);
        assert!(
            member
                .node()
                .members(member.executor.now())
                .iter()
                .any(|status| status.address == other)
        );
    }
}

/// Someone who dials A by hand.
struct Stranger {
    frames: mpsc::Sender<Envelope>,
    replies: Streaming<Envelope>,
}

impl Stranger {
    async fn dial(target: &str, hello: &[u8]) -> Self {
        let mut client = dial::client(dial::connect(&Tcp, target).await.unwrap())
            .await
            .unwrap();
        let (frames, outgoing) = mpsc::channel(8);
        frames.send(envelope(hello.to_vec())).await.unwrap();
        let replies = client
            .link(ReceiverStream::new(outgoing))
            .await
            .unwrap()
            .into_inner();
        Stranger { frames, replies }
    }

    async fn send(&self, body: Vec<u8>) {
        self.frames.send(envelope(body)).await.unwrap();
    }

    /// The next message, `None` at the end of the stream, well or broken.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let next = timeout(DEADLINE, self.replies.message()).await.unwrap();
        next.ok().flatten().map(|envelope| envelope.body.to_vec())
    }
}

/// A alone, whose other member never answers, and its peer port.
async fn lone_member() -> (Member, SmolStr) {
    let ((for_a, a), (for_b, b)) = (port().await, port().await);
    drop(for_b);
    (start(A, for_a, &a, &b, "secret").await, a)
}

fn hello_of_b(a: &Member) -> LinkHello {
    LinkHello {
        member: B.into(),
        epoch: 1,
        boot: 5,
        ..a.node().link_hello()
    }
}

/// Shakes hands as B and returns the stream and its session.
async fn admitted(a: &Member, target: &str) -> (Stranger, Session) {
    let hello = codec::encode(&hello_of_b(a)).unwrap();
    let mut stranger = Stranger::dial(target, &hello).await;
    let challenge: Challenge = codec::decode(&stranger.next().await.unwrap()).unwrap();
    let transcript = Transcript {
        hello: &hello,
        challenge: &challenge,
        nonce: &[3; 32],
    };
    let proof = handshake::prove(&a.peers.0.secret, &transcript);
    stranger.send(codec::encode(&proof).unwrap()).await;
    let verdict: Verdict = codec::decode(&stranger.next().await.unwrap()).unwrap();
    let (format, decision) = handshake::check_verdict(&a.peers.0.secret, &transcript, &verdict).unwrap();
    assert_eq!(format, codec::FORMAT);
    decision.unwrap();
    (stranger, verdict.session)
}

#[tokio::test]
async fn another_cluster_is_refused_with_both_names() {
    let (a, target) = lone_member().await;
    let hello = LinkHello {
        cluster: "elsewhere".into(),
        ..hello_of_b(&a)
    };
    let mut stranger = Stranger::dial(&target, &codec::encode(&hello).unwrap()).await;
    let refusal = codec::decode::<Result<Welcome, LinkRefusal>>(&stranger.next().await.unwrap()).unwrap();
    let ours = a.node().link_hello().cluster;
    assert_eq!(
        refusal,
        Err(LinkRefusal::Cluster {
            theirs: "elsewhere".into(),
            ours
        })
    );
    assert_eq!(stranger.next().await, None);
    assert_eq!(count(&a, "rollcall_peer_links_accepted_total"), 0);
}

#[tokio::test]
async fn a_proof_of_another_handshake_is_refused() {
    let (a, target) = lone_member().await;
    let hello = codec::encode(&hello_of_b(&a)).unwrap();
    let mut first = Stranger::dial(&target, &hello).await;
    let challenge: Challenge = codec::decode(&first.next().await.unwrap()).unwrap();
    let transcript = Transcript {
        hello: &hello,
        challenge: &challenge,
        nonce: &[3; 32],
    };
    let proof: Proof = handshake::prove(&a.peers.0.secret, &transcript);
    let mut second = Stranger::dial(&target, &hello).await;
    let _: Challenge = codec::decode(&second.next().await.unwrap()).unwrap();
    second.send(codec::encode(&proof).unwrap()).await;
    let refusal = codec::decode::<Result<Welcome, LinkRefusal>>(&second.next().await.unwrap()).unwrap();
    assert_eq!(refusal, Err(LinkRefusal::Secret));
    assert_eq!(second.next().await, None);
}

#[tokio::test]
async fn a_bad_frame_ends_its_link_only() {
    let (a, target) = lone_member().await;
    let (mut broken, _) = admitted(&a, &target).await;
    broken.send(vec![1, 2, 3]).await;
    while broken.next().await.is_some() {}
    assert_eq!(count(&a, "rollcall_peer_bad_messages_total"), 1);
    let (again, _) = admitted(&a, &target).await;
    until("a new link is accepted", || {
        count(&a, "rollcall_peer_links_accepted_total") == 2
    })
    .await;
    drop(again);
}

#[tokio::test]
async fn a_newer_link_ends_the_older_one_of_the_same_member() {
    let (a, target) = lone_member().await;
    let (mut older, first) = admitted(&a, &target).await;
    let (newer, second) = admitted(&a, &target).await;
    while older.next().await.is_some() {}
    newer.send(codec::encode(&Frame::Jump { seq: 0 }).unwrap()).await;
    until("the newer link works", || {
        count(&a, "rollcall_peer_frames_received_total") > 0
    })
    .await;
    let b = MemberId::of(B);
    assert_eq!(
        [first, second].map(|token| a.peers.0.sessions.member(&token)),
        [Some(b), Some(b)]
    );
}

#[tokio::test]
async fn a_forward_needs_a_session_and_a_body() {
    let (a, target) = lone_member().await;
    let http = forward::client(Connector(Arc::new(Tcp)));
    let url = format!("http://{target}{}", forward::PATH);
    let post = async |token: Option<String>| {
        let mut request = http::Request::post(&url);
        if let Some(token) = token {
            request = request.header("x-rollcall-session", token);
        }
        let answer = http.request(request.body("x".into()).unwrap()).await;
        answer.unwrap().status()
    };
    assert_eq!(post(None).await, StatusCode::UNAUTHORIZED);
    let guessed = sessions::to_text(&[7; 32]);
    assert_eq!(post(Some(guessed)).await, StatusCode::UNAUTHORIZED);
    let (_link, session) = admitted(&a, &target).await;
    let shown = sessions::to_text(&session);
    assert_eq!(post(Some(shown)).await, StatusCode::BAD_REQUEST);
    assert_eq!(count(&a, "rollcall_peer_forwards_denied_total"), 2);
    assert_eq!(count(&a, "rollcall_peer_forwards_received_total"), 0);
}

#[tokio::test]
async fn a_forward_without_a_link_fails_at_once() {
    let (a, _) = lone_member().await;
    let forward = Forward {
        view: 0,
        hops: 1,
        time: 1,
        write: rollcall_distro::message::WireWrite::Deregister {
            service: rollcall_distro::message::WireService {
                namespace: "public".into(),
                group: "DEFAULT_GROUP".into(),
                name: "s".into(),
            },
            ip: "10.0.0.1".into(),
            port: 1,
            cluster: None,
        },
    };
    a.peers.forward(ForwardId(u64::MAX), MemberId::of(B), forward);
    until("it has failed", || {
        count(&a, "rollcall_peer_forwards_failed_total") == 1
    })
    .await;
    assert_eq!(count(&a, "rollcall_peer_forwards_sent_total"), 0);
}

#[tokio::test]
async fn a_probe_tells_a_dead_process_from_a_silent_one() {
    let ((for_a, a_port), (silent, b_port)) = (port().await, port().await);
    let a = start(A, for_a, &a_port, &b_port, "secret").await;
    // Connections wait in the queue of a port that nobody serves, as with a stopped process.
    until("a probe is missed", || {
        count(&a, "rollcall_peer_probes_missed_total") > 0
    })
    .await;
    assert_eq!(count(&a, "rollcall_peer_probes_refused_total"), 0);
    drop(silent);
    until("a probe is refused", || {
        count(&a, "rollcall_peer_probes_refused_total") > 0
    })
    .await;
}

#[tokio::test]
async fn of_two_processes_with_one_address_the_one_that_is_not_reached_there_does_not_start() {
    let ((for_a, a_port), (for_b, b_port), (elsewhere, _)) = (port().await, port().await, port().await);
    let a = start(A, for_a, &a_port, &b_port, "secret").await;
    let b = start(B, for_b, &a_port, &b_port, "secret").await;
    until("both are ready", || a.node().is_ready() && b.node().is_ready()).await;
    assert_eq!(
        (a.peers.own_trouble(), count(&a, "rollcall_peer_namesakes_total")),
        (None, 0)
    );
    let epoch = a.node().link_hello().epoch;

    let second = try_start(A, elsewhere, &a_port, &b_port, "secret").await;
    let taken = AddressTaken::OtherProcess {
        address: A.into(),
        target: a_port.clone(),
        is_ready: true,
    };
    match second {
        Err(PeerError::Taken(found)) => assert_eq!(found, taken),
        _ => panic!("the second process has not given way"),
    }
    assert_eq!(count(&a, "rollcall_peer_namesakes_total"), 1);
    // Nobody has heard of it: the first one is still who it was.
    assert_eq!(a.node().link_hello().epoch, epoch);
    assert_eq!(count(&b, "rollcall_peer_links_accepted_total"), 1);
}

#[tokio::test]
async fn a_process_whose_address_leads_to_another_member_does_not_start() {
    let ((for_a, a_port), (for_b, b_port)) = (port().await, port().await);
    let _a = start(A, for_a, &a_port, &b_port, "secret").await;
    let wrong = try_start(B, for_b, &a_port, &a_port, "secret").await;
    let text = wrong.err().map(|error| error.to_string()).unwrap_or_default();
    let named = format!("member {A} answers at {a_port}, the peer address of the advertised address {B}");
    assert!(text.contains(&named), "{text}");
}

#[tokio::test]
async fn an_address_that_nobody_answers_at_is_told_until_it_leads_here() {
    let ((for_a, a_port), (gateway, outside), (for_b, b_port)) = (port().await, port().await, port().await);
    drop((gateway, for_b));
    let a = start(A, for_a, &outside, &b_port, "secret").await;
    let trouble = a.peers.trouble(A).unwrap_or_default();
    assert!(
        trouble.contains("connection refused") && trouble.contains(outside.as_str()),
        "{trouble}"
    );
    // Another cluster is no proof of anything either.
    let gateway = TcpListener::bind(outside.as_str()).await.unwrap();
    let stranger = start(A, gateway, &outside, &b_port, "other").await;
    until("the stranger is told of", || {
        a.peers
            .own_trouble()
            .is_some_and(|text| text.contains("refused: the proof"))
    })
    .await;
    drop(stranger);
    until("the port is free again", || {
        std::net::TcpListener::bind(outside.as_str()).is_ok()
    })
    .await;
    let gateway = TcpListener::bind(outside.as_str()).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = gateway.accept().await {
            let mut to = tokio::net::TcpStream::connect(a_port.as_str()).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
        }
    });
    until("it leads here", || a.peers.own_trouble().is_none()).await;
}

#[test]
fn a_peer_address_is_reckoned_from_the_main_port() {
    assert_eq!(peer_address("host-1:8848", 1001).as_deref(), Some("host-1:9849"));
    assert_eq!(peer_address("[::1]:8848", 1001).as_deref(), Some("[::1]:9849"));
    assert_eq!(peer_address("host-1", 1001), None);
    assert_eq!(
        peer_address("host-1:8848", 7000_u16.wrapping_sub(8848)).as_deref(),
        Some("host-1:7000")
    );
    assert_eq!(peer_address("host-1:70000", 1001), None);
    assert_eq!(peer_address("host-1:64535", 1001), None);
}
