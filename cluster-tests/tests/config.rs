//! Settings with an error: the process ends at once and names the key.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::cluster::SOON;
use cluster_tests::ports::{Block, GRPC, HTTP, PEER, Place};
use cluster_tests::{AddressServer, Cluster, Http, Instance, Node, Service, binary, eventually};
use parking_lot::Mutex;

/// What a process said before it ended by itself.
struct End {
    code: Option<i32>,
    text: String,
}

/// Runs the program until it ends by itself.
async fn run(args: &[&str]) -> Result<End> {
    let mut command = binary::command();
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = binary::spawn(&mut command)?;
    cluster_tests::reaper::watch_pid(child.id());
    let ended = cluster_tests::wait::try_eventually(Duration::from_secs(10), || {
        let status = child.try_wait();
        async move { status?.context("it goes on running") }
    })
    .await;
    cluster_tests::reaper::forget_pid(child.id());
    let _ = child.kill();
    let _ = child.wait();
    let mut text = String::new();
    child
        .stdout
        .take()
        .context("no stdout")?
        .read_to_string(&mut text)?;
    child
        .stderr
        .take()
        .context("no stderr")?
        .read_to_string(&mut text)?;
    let status = ended.with_context(|| format!("{args:?}: {text}"))?;
    Ok(End {
        code: status.code(),
        text,
    })
}

/// Runs the program with a configuration file and checks that it is refused by naming something.
async fn file_is_refused(content: &str, named: &str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("rollcall.toml");
    std::fs::write(&path, content)?;
    refused(&["--config", &path.display().to_string()], named)
        .await
        .with_context(|| content.to_owned())
}

async fn refused(args: &[&str], named: &str) -> Result<()> {
    let end = run(args).await?;
    ensure!(
        end.code.is_some_and(|code| code != 0),
        "exit code {:?}: {}",
        end.code,
        end.text
    );
    ensure!(end.text.contains(named), "{named:?} is not named: {}", end.text);
    ensure!(!end.text.contains("panicked at"), "{}", end.text);
    Ok(())
}

#[tokio::test]
async fn an_unknown_key_is_refused() -> Result<()> {
    file_is_refused("prot = 8848\n", "prot").await
}

#[tokio::test]
async fn a_value_of_the_wrong_type_is_refused() -> Result<()> {
    file_is_refused("port = \"many\"\n", "port").await?;
    file_is_refused("members = 3\n", "members").await
}

#[tokio::test]
async fn a_value_out_of_range_is_refused() -> Result<()> {
    file_is_refused("port = 70000\n", "port").await?;
    file_is_refused("bind = \"nowhere\"\n", "bind").await?;
    file_is_refused("gate_limit = \"soon\"\n", "gate_limit").await
}

#[tokio::test]
async fn a_file_that_is_no_toml_is_refused_with_its_line() -> Result<()> {
    file_is_refused("port = 8848\nport = = 1\n", "line 2").await
}

#[tokio::test]
async fn a_file_that_is_not_there_is_refused() -> Result<()> {
    refused(
        &["--config", "/nonexistent/rollcall.toml"],
        "/nonexistent/rollcall.toml",
    )
    .await
}

#[tokio::test]
async fn an_unknown_flag_is_refused() -> Result<()> {
    refused(&["--no-such-flag"], "--no-such-flag").await
}

#[tokio::test]
async fn a_flag_with_a_bad_value_is_refused() -> Result<()> {
    refused(&["--port", "many"], "port").await?;
    refused(&["--bind", "nowhere"], "bind").await?;
    refused(&["--peer-addresses", "nonsense"], "peer").await
}

#[tokio::test]
async fn a_damaged_operator_file_is_named_once() -> Result<()> {
    let block = Block::claim(1);
    let bind = block.ip(0).to_string();
    let dir = tempfile::tempdir()?;
    let file = format!("operator-{bind}_{HTTP}.redb");
    let data_dir = dir.path().display().to_string();
    for content in ["", "not what was written"] {
        std::fs::write(dir.path().join(&file), content)?;
        let end = run(&["--bind", &bind, "--data-dir", &data_dir]).await?;
        ensure!(end.code == Some(1), "exit code {:?}: {}", end.code, end.text);
        let named = end.text.matches(&file).count();
        ensure!(named == 1, "{file} is named {named} times: {}", end.text);
        ensure!(!end.text.contains("panicked at"), "{}", end.text);
    }
    Ok(())
}

/// KF-074: a node shows the configured members, and stops when its own address is not among them.
#[tokio::test]
async fn an_advertised_address_that_is_no_member_is_refused() -> Result<()> {
    let block = Block::claim(2);
    let (own, other) = (
        format!("{}:{HTTP}", block.ip(0)),
        format!("{}:{HTTP}", block.ip(1)),
    );
    let bind = block.ip(0).to_string();
    refused(&["--bind", &bind, "--advertise", &own, "--members", &other], &own).await
}

#[tokio::test]
async fn an_address_that_leads_to_no_single_machine_is_refused() -> Result<()> {
    for wrong in ["0.0.0.0:8848", "[::]:8848", "224.0.0.1:8848", "[ff02::1]:8848"] {
        refused(&["--advertise", wrong], "advertise").await?;
        refused(&["--members", &format!("127.0.0.1:8848,{wrong}")], "members").await?;
    }
    refused(&["--advertise", "127.0.0.1:0"], "advertise").await
}

#[tokio::test]
async fn a_second_process_with_the_address_of_a_member_does_not_start_and_disturbs_nobody() -> Result<()> {
    let cluster = Cluster::builder(3)
        .hold_back(2)
        .flag("--gate-limit", "2s")
        .start()
        .await;
    let before = cluster.node(0).http().state().await?.epoch;
    let own = cluster.node(0).address();
    let bind = cluster.node(2).http_address().ip().to_string();
    let members = [0, 1, 2].map(|at| cluster.node(at).address()).join(",");
    let data = tempfile::tempdir()?;
    let data_dir = data.path().display().to_string();
    let args = [
        ["--bind", &bind],
        ["--advertise", &own],
        ["--members", &members],
        ["--data-dir", &data_dir],
    ]
    .concat();
    let end = run(&args).await?;
    let peer = cluster.node(0).peer_address();
    let named =
        format!("advertise: another process, which serves, answers as {own} at its peer address {peer}");
    ensure!(
        end.code == Some(1) && end.text.contains(&named),
        "{:?}: {}",
        end.code,
        end.text
    );
    let after = cluster.node(0).http().state().await?.epoch;
    ensure!(after == before, "it had to defend its epoch: {before}, {after}");
    ensure!(
        cluster
            .node(0)
            .http()
            .metric("rollcall_peer_namesakes_total")
            .await?
            == 1.0
    );
    ensure!(
        cluster
            .node(0)
            .log()
            .contains("another process advertises the address of this one")
    );
    Ok(())
}

/// Sends each connection on to wherever `to` says then.
async fn relay(to: Arc<Mutex<SocketAddr>>) -> Result<SocketAddr> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let to = *to.lock();
            tokio::spawn(async move {
                let mut to = tokio::net::TcpStream::connect(to).await?;
                tokio::io::copy_bidirectional(&mut from, &mut to).await
            });
        }
    });
    Ok(address)
}

#[tokio::test]
async fn a_node_that_serves_gives_way_when_its_address_leads_to_another_process_for_good() -> Result<()> {
    let block = Block::claim(3);
    let (own, other) = (block.place(0).address(), block.place(1).address());
    let members = format!("{own},{other}");
    let dir = tempfile::tempdir()?;
    let start = |at: usize, advertise: &str, route: SocketAddr| {
        let (bind, routes) = (block.ip(at).to_string(), format!("{advertise}={route}"));
        let args = [
            ["--bind", bind.as_str()],
            ["--advertise", advertise],
            ["--members", &members],
            ["--peer-addresses", &routes],
        ];
        let args = args.concat().into_iter().map(String::from).collect();
        let node = Node::new(block.place(at).clone(), args, dir.path().join(at.to_string()));
        node.start();
        node
    };
    let place = Arc::new(Mutex::new(block.place(0).peer()));
    let relay = relay(Arc::clone(&place)).await?;
    let former = start(0, &own, relay);
    let rest = start(1, &other, block.place(1).peer());
    former.ready().await;
    rest.ready().await;

    *place.lock() = block.place(2).peer();
    let successor = start(2, &own, block.place(2).peer());
    let status = former.wait_exit(Duration::from_secs(60)).await;
    ensure!(status.code() == Some(1), "{status:?}");
    let named = format!("answers as {own} at its peer address {relay}");
    ensure!(former.log().contains(&named), "{}", former.log_tail());
    // It has not said that the member leaves: the other one is the member.
    ensure!(!former.log().contains("leaving"), "{}", former.log_tail());
    successor.check()?;
    rest.check()?;
    for node in [successor, rest] {
        node.kill();
    }
    Ok(())
}

#[tokio::test]
async fn an_advertised_address_that_leads_nowhere_is_told_by_name() -> Result<()> {
    let cluster = Cluster::builder(3)
        .hold_back(2)
        .flag("--gate-limit", "2s")
        .start()
        .await;
    let own = cluster.node(2).address();
    let ip = cluster.node(2).http_address().ip();
    let bind = ip.to_string();
    let place = Place {
        host: bind.clone(),
        ip,
        port: 7000,
        namespace: None,
    };
    let members = [0, 1, 2].map(|at| cluster.node(at).address()).join(",");
    let args = [
        ["--bind", bind.as_str()],
        ["--port", "7000"],
        ["--advertise", own.as_str()],
        ["--members", members.as_str()],
    ];
    let dir = tempfile::tempdir()?;
    let node = Node::new(
        place,
        args.concat().into_iter().map(String::from).collect(),
        dir.path().to_owned(),
    );
    node.start();
    let http = node.http();
    eventually("it tells what is wrong", Duration::from_secs(10), || async {
        let members = http.state().await?.members;
        let own = members.iter().find(|m| m.address == own).context("not listed")?;
        let trouble = own.trouble.clone().unwrap_or_default();
        let target = cluster.node(2).peer_address();
        ensure!(
            trouble.contains("does not lead to this process: connection refused")
                && trouble.contains(&target.to_string()),
            "{trouble}"
        );
        ensure!(http.metric("rollcall_own_address_unreached").await? == 1.0);
        ensure!(node.log().contains(&trouble), "the log does not say it");
        Ok(())
    })
    .await;
    for node in [cluster.node(0), cluster.node(1)] {
        ensure!(node.http().metric("rollcall_own_address_unreached").await? == 0.0);
    }
    node.kill();
    Ok(())
}

#[tokio::test]
async fn an_address_server_that_does_not_list_the_node_or_does_not_answer_is_named() -> Result<()> {
    let block = Block::claim(1);
    let bind = block.ip(0).to_string();
    let server = AddressServer::start().await?;
    let args = ["--bind", &bind, "--address-server", &server.url()].map(String::from);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    refused(
        &args,
        &format!("the address server {} answered 404", server.url()),
    )
    .await?;
    server.tell("10.0.0.1:8848\n");
    let own = format!("the advertised address {bind}:{HTTP} is not in the member list");
    refused(&args, &own).await
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() -> Result<()> {
    for port in [HTTP, GRPC, PEER] {
        let block = Block::claim(2);
        let bind = block.ip(0).to_string();
        let members = format!("{bind}:{HTTP},{}:{HTTP}", block.ip(1));
        let _taken = TcpListener::bind((block.ip(0), port))?;
        refused(&["--bind", &bind, "--members", &members], &port.to_string()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_good_file_is_obeyed() -> Result<()> {
    let block = Block::claim(1);
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("rollcall.toml");
    std::fs::write(
        &path,
        format!("bind = \"{}\"\nport = 7000\ngrpc_port = 7500\n", block.ip(0)),
    )?;
    let mut command = binary::command();
    command
        .args(["--config".as_ref(), path.as_os_str()])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = binary::spawn(&mut command)?;
    cluster_tests::reaper::watch_pid(child.id());
    let http = Http::new((block.ip(0), 7000).into());
    eventually(
        "it serves on the configured ports",
        Duration::from_secs(10),
        || async {
            ensure!(http.is_ready().await?, "readiness is red");
            cluster_tests::Client::connect((block.ip(0), 7500).into()).await?;
            Ok(())
        },
    )
    .await;
    child.kill()?;
    child.wait()?;
    Ok(())
}

#[tokio::test]
async fn later_sources_win() -> Result<()> {
    let cluster = Cluster::builder(1).flag("--log-format", "json").start().await;
    let log = cluster.node(0).log();
    let line = log
        .lines()
        .find(|line| line.starts_with('{'))
        .context("no line of JSON in the log")?;
    serde_json::from_str::<serde_json::Value>(line)?;
    Ok(())
}

/// Whoever reads the log has gone: the process neither ends nor stops to answer.
#[tokio::test]
async fn a_log_that_nobody_reads_changes_nothing() -> Result<()> {
    let block = Block::claim(1);
    let place = block.place(0);
    let bind = place.ip.to_string();
    let mut command = binary::command();
    command
        .args(["--bind", &bind, "--log-level", "trace", "--data-dir", "none"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = binary::spawn(&mut command)?;
    cluster_tests::reaper::watch_pid(child.id());
    drop(child.stderr.take());
    let answers = async {
        let address: SocketAddr = place.address().parse()?;
        for at in 0..20 {
            // A connection of its own each time.
            let http = Http::new(address);
            let service = Service::unique("unread-log");
            eventually("the node answers", SOON, || async {
                http.register(&service, &Instance::at("10.18.0.1", 80 + at))
                    .await?
                    .ok()
            })
            .await;
        }
        anyhow::Ok(())
    }
    .await;
    let ended = child.try_wait();
    cluster_tests::reaper::forget_pid(child.id());
    let _ = child.kill();
    let _ = child.wait();
    answers?;
    ensure!(ended?.is_none(), "the process has ended");
    Ok(())
}
