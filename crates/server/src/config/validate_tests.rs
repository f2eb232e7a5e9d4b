//! Settings that fit together, and those that do not.

use super::super::keys::Setting;
use super::*;

fn load(settings: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let mut draft = Draft::default();
    for (key, text) in settings {
        draft.set(&Setting {
            key: (*key).into(),
            text: (*text).into(),
            source_name: "test".into(),
        })?;
    }
    config(draft)
}

fn error(settings: &[(&str, &str)]) -> String {
    load(settings)
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default()
}

#[test]
fn nothing_given_is_a_single_node_on_loopback() {
    let config = load(&[]).unwrap();
    assert_eq!(config.address(config.port).to_string(), "127.0.0.1:8848");
    assert_eq!((config.grpc_port, config.peer_port), (9848, 9849));
    assert_eq!(config.node.members, ["127.0.0.1:8848"]);
    assert!(!config.is_cluster());
}

#[test]
fn an_advertised_address_outside_the_list_is_named() {
    let text = error(&[
        ("members", "127.0.0.1:8848,127.0.0.1:8858"),
        ("advertise", "node-1:8848"),
    ]);
    assert!(
        text.starts_with("advertise (test): the advertised address node-1:8848 is not in the member list"),
        "{text}"
    );
    let text = error(&[("members", "127.0.0.1:8858")]);
    assert!(
        text.contains("127.0.0.1:8848 is not in the member list"),
        "{text}"
    );
}

#[test]
fn binding_everywhere_in_a_cluster_needs_an_advertised_address_and_a_secret() {
    let members = ("members", "n1:8848,n2:8848,n3:8848");
    assert!(error(&[("bind", "0.0.0.0"), members]).contains("use --advertise"));
    let text = error(&[("bind", "0.0.0.0"), members, ("advertise", "n2:8848")]);
    assert!(
        text.starts_with("cluster_secret (default): is required"),
        "{text}"
    );
    let config = load(&[
        ("bind", "0.0.0.0"),
        members,
        ("advertise", "n2:8848"),
        ("cluster_secret", "s"),
    ])
    .unwrap();
    assert_eq!(config.node.self_address, "n2:8848");
    assert_eq!(
        load(&[("bind", "0.0.0.0")]).unwrap().node.self_address,
        "127.0.0.1:8848"
    );
}

#[test]
fn members_without_a_port_have_the_main_port_and_ipv6_is_bracketed() {
    let config = load(&[("members", "n1, n2:8858"), ("advertise", "n1"), ("port", "8850")]).unwrap();
    assert_eq!(config.node.members, ["n1:8850", "n2:8858"]);
    let config = load(&[("bind", "::1"), ("members", "[::1]:8848,[::1]:8858")]).unwrap();
    assert_eq!(config.node.self_address, "[::1]:8848");
    for bad in [
        "a:b",
        ":8848",
        "a b",
        "[::1:8848",
        "[::1]8848",
        "[n1]:8848",
        "n1:1:2",
        "http://a:1",
    ] {
        assert!(error(&[("members", bad)]).contains("is no address"), "{bad}");
    }
}

/// KF-076, KF-077: members are known by their text, so that each spelling of a host gives the same.
#[test]
fn a_host_has_one_spelling() {
    let config = load(&[
        ("members", "N1.Example:8848,n2:8848"),
        ("advertise", "n1.example"),
    ])
    .unwrap();
    assert_eq!(config.node.members, ["n1.example:8848", "n2:8848"]);
    let config = load(&[
        ("bind", "::1"),
        ("members", "[0:0::0001]:8848,[::0:1]:8858,2001:DB8::2"),
    ])
    .unwrap();
    assert_eq!(
        config.node.members,
        ["[2001:db8::2]:8848", "[::1]:8848", "[::1]:8858"]
    );
    let mapped = "[::ffff:127.0.0.1]:8848,127.0.0.1:8848,::FFFF:7f00:2";
    let config = load(&[("bind", "::ffff:127.0.0.1"), ("members", mapped)]).unwrap();
    assert_eq!(config.node.self_address, "127.0.0.1:8848");
    assert_eq!(config.node.members, ["127.0.0.1:8848", "127.0.0.2:8848"]);
    let text = error(&[("bind", "::1"), ("members", "[::1]:8848,[0::1]:8849")]);
    assert!(text.contains("both need port 9849"), "{text}");
}

/// What some systems take for an IPv4 address is no name of a host, a port without its host least of all.
#[test]
fn a_host_that_ends_in_a_number_is_an_ipv4_address_of_four() {
    for host in [
        "28858",
        "127.1",
        "127.0.0.256",
        "1.2.3.4.5",
        "n1.8",
        "127.0.0.01",
        "127.1.",
    ] {
        let members = format!("127.0.0.1:8848,{host}");
        let rule =
            "whose last part is a number: only an IPv4 address of four numbers from 0 to 255 may end so";
        for given in [members.clone(), format!("{members}:8848")] {
            let text = error(&[("members", &given)]);
            assert!(
                text.starts_with("members (test): ") && text.contains(rule),
                "{text}"
            );
            assert!(text.contains(&format!("{host:?}")), "{text}");
        }
    }
    assert!(load(&[("members", "127.0.0.1:8848,1.n2:8848,n3:8848,4.5.6.7:8848")]).is_ok());
}

/// KF-073: ports that collide are named at the start.
#[test]
fn ports_that_collide_name_both_members() {
    let text = error(&[("members", "127.0.0.1:8848,127.0.0.1:8849,127.0.0.1:8850")]);
    assert!(
        text.contains("127.0.0.1:8848 and 127.0.0.1:8849 both need port 9849"),
        "{text}"
    );
    assert!(load(&[("members", "127.0.0.1:8848,127.0.0.1:8858,127.0.0.1:8868")]).is_ok());
    // On hosts of their own the same ports are fine.
    assert!(load(&[("members", "127.0.0.1:8848,127.0.0.2:8848")]).is_ok());
    assert!(error(&[("port", "65000")]).contains("port 65000 + 1000 is above 65535"));
    assert!(error(&[("grpc_port", "8848")]).contains("8848 is the same as port"));
}

#[test]
fn lists_are_checked() {
    let config = load(&[("members", "127.0.0.1:8848,127.0.0.1,127.0.0.2:8848")]).unwrap();
    assert_eq!(config.node.members, ["127.0.0.1:8848", "127.0.0.2:8848"]);
    let both = [("member_file", "x"), ("address_server", "http://a:1/x")];
    assert_eq!(
        error(&both),
        "address_server (test): is given beside member_file, want only one of the two"
    );
    assert!(error(&[("members", "127.0.0.1:8848"), ("member_file", "x")]).contains("only one of the two"));
    assert!(error(&[("member_file", "/nowhere/cluster.conf")]).contains("cannot read the file"));
    let text = error(&[("peer_addresses", "n9:1=127.0.0.1:2")]);
    assert!(text.contains("n9:1 is not in the member list"), "{text}");
}

#[test]
fn a_rule_of_ownership_and_a_share_to_move_are_among_the_known_ones() {
    let node = load(&[("mapper", "rendezvous"), ("balance_per_minute", "0")])
        .unwrap()
        .node;
    assert_eq!((node.mapper.name(), node.balance_per_minute), ("rendezvous", 0));
    assert!(error(&[("mapper", "hash")]).contains("is neither modulo nor rendezvous"));
    assert!(error(&[("balance_per_minute", "61")]).starts_with("balance_per_minute (test): "));
}

#[test]
fn of_two_settings_that_do_not_fit_the_given_one_is_named() {
    assert!(error(&[("probe_timeout", "2s")]).starts_with("probe_timeout (test): "));
    assert!(error(&[("probe_interval", "500ms")]).starts_with("probe_interval (test): "));
    assert!(error(&[("beat_interval", "60s")]).contains("must be below 15s"));
}

#[test]
fn a_list_without_a_member_is_no_single_node() {
    for text in [",", " , ,", ""] {
        assert_eq!(
            error(&[("members", text)]),
            "members (test): lists no member; leave the key out for a single node",
            "{text:?}"
        );
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "# none\n,\n").unwrap();
    assert!(error(&[("member_file", file.path().to_str().unwrap())]).contains("lists no member"));
}

#[test]
fn a_member_file_is_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "# all\r\n127.0.0.1:8848\r\n127.0.0.1:8858\r\n").unwrap();
    let config = load(&[("member_file", file.path().to_str().unwrap())]).unwrap();
    assert_eq!(config.node.members, ["127.0.0.1:8848", "127.0.0.1:8858"]);
}

#[test]
fn every_form_of_a_member_file_is_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let read = |text: &str| {
        std::fs::write(file.path(), text).unwrap();
        load(&[("member_file", path)]).map(|config| config.node.members)
    };
    let text = "#it is all comment\n127.0.0.1:8848?raft_port=8807\n127.0.0.2 # its name\n\n\tn3:8858 , n4\n\
                [::1]:8848\n127.0.0.1\nn4:8848";
    let members = [
        "127.0.0.1:8848",
        "127.0.0.2:8848",
        "[::1]:8848",
        "n3:8858",
        "n4:8848",
    ];
    assert_eq!(read(text).unwrap(), members);
    for (text, rule) in [
        (
            "127.0.0.1:8848\nhttp://n2:8848\n",
            "line 2: \"http://n2:8848\" is no address, want host:port",
        ),
        (
            "127.0.0.1\n\nn2:0",
            "line 3: \"n2:0\" has port 0, want one from 1 to 65535",
        ),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert_eq!(error, format!("member_file (test): the file {path}: {rule}"));
    }
    let error = read("127.0.0.2\n127.0.0.3\n").unwrap_err().to_string();
    assert_eq!(
        error,
        "advertise (default): the advertised address 127.0.0.1:8848 is not in the member list \
         (127.0.0.2:8848, 127.0.0.3:8848); members must list it exactly so"
    );
}

#[test]
fn an_address_server_is_an_address_and_needs_a_secret_like_a_list() {
    for bad in ["n1:8080", "https://n1/x", "http://", "http:///x", "http://a b"] {
        assert!(
            error(&[("address_server", bad)]).contains("want http://host:port/path"),
            "{bad}"
        );
    }
    let server = ("address_server", "http://127.0.0.1:8080/list");
    let config = load(&[server]).unwrap();
    assert!(config.is_cluster());
    assert_eq!(config.node.members, ["127.0.0.1:8848"]);
    let text = error(&[server, ("bind", "0.0.0.0"), ("advertise", "n1")]);
    assert!(
        text.starts_with("cluster_secret (default): is required"),
        "{text}"
    );
}

#[test]
fn settings_that_contradict_each_other_are_named_both() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (
            &[("drop_after", "5s")],
            "drop_after (test): 5000 ms is below detect_after, 10000 ms",
        ),
        (
            &[("detect_after", "14s")],
            "detect_after (test): 14000 ms is not below drop_after, 14000 ms",
        ),
        (
            &[("probe_timeout", "2s")],
            "probe_timeout (test): 2000 ms is above probe_interval, 1000 ms",
        ),
        (
            &[("orphan_gone", "31s")],
            "orphan_gone (test): 31000 ms is above orphan_unreachable, 30000 ms",
        ),
        (
            &[("orphan_unreachable", "10s"), ("orphan_gone", "12s")],
            "orphan_unreachable (test): 10000 ms is below orphan_gone, 12000 ms",
        ),
        (
            &[("tombstone_life", "1s")],
            "tombstone_life (test): 1000 ms is not above verify_interval, 1000 ms",
        ),
        (
            &[("gate_limit", "500ms")],
            "gate_limit (test): 500 ms is below probe_interval, 1000 ms",
        ),
        (
            &[("push_delay", "2s"), ("push_window_max", "1s")],
            "push_window_max (test): 1000 ms is below push_delay, 2000 ms",
        ),
        (
            &[("connection_limit_per_ip", "200"), ("connection_limit", "100")],
            "connection_limit (test): 100 is below connection_limit_per_ip, 200",
        ),
        (
            &[("message_limit", "1KiB"), ("metadata_limit", "2000")],
            "message_limit (test): 1024 is below metadata_limit, 2000",
        ),
    ];
    for (settings, text) in cases {
        assert_eq!(error(settings), *text);
    }
    for good in [
        &[("orphan_gone", "30s")][..],
        &[("gate_limit", "0s")],
        &[("push_delay", "2s")],
        &[("connection_limit_per_ip", "200")],
        &[("message_limit", "1KiB")],
    ] {
        assert_eq!(error(good), "", "{good:?}");
    }
}

#[test]
fn members_and_their_peer_addresses_are_pairs() {
    let members = ("members", "127.0.0.1:8848,127.0.0.2:8848");
    for (addresses, rule) in [
        (
            "127.0.0.1:8848=n:1,127.0.0.2:8848=n:1",
            "127.0.0.1:8848 and 127.0.0.2:8848 are both at n:1",
        ),
        (
            "127.0.0.1:8848=n:1,127.0.0.1:8848=n:2",
            "127.0.0.1:8848 is both at n:1 and at n:2",
        ),
    ] {
        let text = error(&[members, ("peer_addresses", addresses)]);
        assert_eq!(text, format!("peer_addresses (test): {rule}"));
    }
}

#[test]
fn an_address_leads_to_one_machine_and_has_a_port() {
    for host in [
        "0.0.0.0",
        "[::]",
        "[::ffff:0.0.0.0]",
        "224.0.0.1",
        "[ff02::1]",
        "255.255.255.255",
    ] {
        let address = format!("{host}:1");
        let rule = format!("{address:?} leads to no single machine, want its own address");
        assert_eq!(
            error(&[("advertise", &address)]),
            format!("advertise (test): {rule}")
        );
        assert_eq!(error(&[("members", &address)]), format!("members (test): {rule}"));
        let routed = format!("127.0.0.1:8848={address}");
        assert_eq!(
            error(&[("peer_addresses", &routed)]),
            format!("peer_addresses (test): {rule}")
        );
    }
    assert_eq!(
        error(&[("advertise", "n1:0")]),
        "advertise (test): \"n1:0\" has port 0, want one from 1 to 65535"
    );
}

#[test]
fn members_from_a_name_need_an_address_of_their_own() {
    let name = ("member_dns", "registry.test");
    let config = load(&[name]).unwrap();
    assert!(config.is_cluster());
    assert_eq!(
        config.member_source,
        MemberSource::Name("registry.test:8848".into())
    );
    assert_eq!(
        error(&[name, ("advertise", "registry-1.test:8848")]),
        "advertise (test): registry-1.test:8848 is no IP address with a port, as the members are that \
         registry.test:8848 has"
    );
    assert!(load(&[name, ("advertise", "[fd00::1]")]).is_ok());
    assert!(error(&[("member_dns", "a b")]).starts_with("member_dns (test): \"a b\" is no address"));
    assert_eq!(
        error(&[name, ("members", "127.0.0.1")]),
        "member_dns (test): is given beside members, want only one of the two"
    );
}
