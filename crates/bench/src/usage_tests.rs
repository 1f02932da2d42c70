//! What `/proc` says, and what of it counts.

use super::*;

fn stat(parent: u32, ticks: u64) -> Stat {
    Stat { parent, ticks }
}

fn group(name: &str, root: u32) -> Group {
    Group {
        name: name.to_owned(),
        root,
    }
}

#[test]
fn a_name_with_parentheses_does_not_shift_the_fields() {
    let text =
        "19313 (a) (b c) R 19247 19247 5269 0 -1 4194304 97 0 0 0 11 22 33 44 20 0 1 0 64194";
    assert_eq!(Stat::parse(text), Some(stat(19247, 110)));
    assert_eq!(Stat::parse("19313 (cat) R"), None);
}

#[test]
fn shared_memory_counts_once() {
    let memory =
        Memory::parse("Name:\tx\nRssAnon:\t  2048 kB\nRssFile:\t 512 kB\nRssShmem:\t512 kB\n");
    assert_eq!(
        memory,
        Memory {
            own_kb: 2048,
            shared_kb: 1024
        }
    );
    assert_eq!(Memory::parse("Name:\tzombie\n"), Memory::default());
    let together = used([(stat(1, 0), memory), (stat(1, 0), memory)].into_iter());
    assert_eq!(together.map(|used| used.rss_mb), Some(5.0));
    assert_eq!(used(std::iter::empty()), None);
}

#[test]
fn a_group_ends_where_another_begins() {
    let processes = BTreeMap::from([
        (10, stat(1, 0)),
        (11, stat(10, 0)),
        (12, stat(11, 0)),
        (20, stat(10, 0)),
        (21, stat(20, 0)),
        (30, stat(1, 0)),
    ]);
    let groups = [group("bench", 10), group("worker", 20), group("gone", 40)];
    let of = |index: usize| members(&groups[index], &groups, &processes);
    assert_eq!(of(0), [10, 11, 12]);
    assert_eq!(of(1), [20, 21]);
    assert!(of(2).is_empty());
}

#[test]
fn an_endpoint_of_another_machine_is_not_looked_for() {
    for (endpoint, port) in [
        ("127.0.0.1:5433", Some(5433)),
        ("localhost", Some(5432)),
        ("[::1]:7000", Some(7000)),
        ("db.example.com:5432", None),
        ("10.0.0.7:5432", None),
        ("***", None),
    ] {
        assert_eq!(local_port(endpoint, 5432), port, "{endpoint}");
    }
}

#[test]
fn only_sockets_that_listen_are_listeners() {
    let line = |state: &str| {
        format!(
            "0: 0100007F:6F35 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 103 0 7313 1"
        )
    };
    assert_eq!(listener(&line("0A")), Some((0x6F35, 7313)));
    assert_eq!(listener(&line("01")), None);
    assert_eq!(listener("sl local_address rem_address st"), None);
}

#[test]
fn this_process_is_found_by_its_port_and_has_used_something() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let name = read(std::process::id(), "comm").unwrap();
    let found = server(&format!("127.0.0.1:{port}"), 1, name.trim_end());
    assert_eq!(found, Some(std::process::id()));
    assert_eq!(server(&format!("127.0.0.1:{port}"), 1, "postgres"), None);

    let mut meter = Meter::begin(vec![group("self", std::process::id())]);
    let begun = meter.usage().clone();
    assert_eq!(begun.cpu_s["self"], 0.0);
    assert!(begun.rss_mb["self"] > 0.0, "{begun:?}");
    let filled = vec![1_u8; 32 << 20];
    meter.look();
    let most = meter.usage().rss_mb["self"];
    assert!(most > begun.rss_mb["self"] + 16.0, "{most} {begun:?}");
    drop(std::hint::black_box(filled));
    meter.look();
    assert!(meter.usage().rss_mb["self"] >= most);
}
