//! What each user may do, as the broker is told it.

use super::*;

fn permission(account: Account) -> Permission {
    let mut options = RabbitOptions::new("amqp://127.0.0.1");
    options.prefix = "t.".to_owned();
    options.permission(&account).unwrap()
}

fn shown(account: Account) -> String {
    let permission = permission(account);
    let mut lines = vec![
        permission.user.clone(),
        format!("configure {}", permission.configure),
        format!("write {}", permission.write),
        format!("read {}", permission.read),
    ];
    for key in &permission.keys {
        let name = key.exchange.trim_start_matches("t.attune.");
        lines.push(format!("{name} write {}", key.write));
        lines.push(format!("{name} read {}", key.read));
    }
    lines.join("\n")
}

const ID: &str = "[0-9a-f-]{36}";

#[test]
fn a_worker_reports_and_hears_of_its_pool() {
    let own = format!(r"t\.attune\.worker\.gpu-a\.{ID}\.{ID}");
    let expected = [
        "attune-worker-gpu-a".to_owned(),
        format!("configure ^{own}$"),
        format!(r"write ^(t\.attune\.executions|t\.attune\.reports|{own})$"),
        format!(r"read ^(t\.attune\.lives|{own})$"),
        r"executions write ^(execution\.completed|execution\.completed\.kept|worker\.hello)$"
            .to_owned(),
        "executions read ^$".to_owned(),
        "lives write ^$".to_owned(),
        format!(r"lives read ^gpu-a\.{ID}$"),
    ];
    assert_eq!(
        shown(Account::Worker("gpu-a".to_owned())),
        expected.join("\n")
    );
}

#[test]
fn a_client_asks_and_is_answered() {
    let own = format!(r"attune\.reply\.shop\.{ID}");
    let expected = [
        "client-shop".to_owned(),
        format!("configure ^{own}$"),
        r"write ^t\.attune\.executions$".to_owned(),
        format!("read ^{own}$"),
        r"executions write ^enforcement\.created$".to_owned(),
        "executions read ^$".to_owned(),
        "lives write ^$".to_owned(),
        "lives read ^$".to_owned(),
    ];
    assert_eq!(
        shown(Account::Client("shop".to_owned())),
        expected.join("\n")
    );
}

#[test]
fn a_listener_passes_ends_on() {
    let keys = [
        r"execution\.completed",
        r"execution\.completed\.kept",
        r"partition\.[0-9]+\.control",
        r"partition\.[0-9]+\.control\.kept",
    ];
    let keys = format!("executions write ^({})$", keys.join("|"));
    let expected = [
        "attune-listener",
        "configure ^$",
        r"write ^(t\.attune\.dead-letters|t\.attune\.executions)$",
        r"read ^(t\.attune\.completed|t\.attune\.completed\.kept)$",
        &keys,
        "executions read ^$",
        "lives write ^$",
        "lives read ^$",
    ];
    assert_eq!(shown(Account::Listener), expected.join("\n"));
}

/// Only executors grant, and nobody but them reads what partitions are told.
#[test]
fn what_is_an_executors_alone() {
    let parts = [
        Account::Listener,
        Account::Stats,
        Account::Api,
        Account::Worker("default".to_owned()),
        Account::Client("shop".to_owned()),
    ];
    for account in parts {
        let permission = permission(account);
        let lives = permission
            .keys
            .iter()
            .find(|key| key.exchange.ends_with("lives"));
        assert_eq!(lives.unwrap().write, "^$", "{}", permission.user);
        assert!(!permission.write.contains("lives"), "{}", permission.user);
        assert!(
            !permission.read.contains("partition"),
            "{}",
            permission.user
        );
        assert!(!permission.write.contains("amq"), "{}", permission.user);
        assert!(
            !permission.configure.contains("partition"),
            "{}",
            permission.user
        );
    }
    let executor = permission(Account::Executor);
    assert!(executor.write.contains(r"amq\.default"));
}

/// A new exchange needs somebody who may publish there, and a new queue somebody who may read it.
#[test]
fn nothing_is_left_out() {
    let accounts = [
        Account::Executor,
        Account::Listener,
        Account::Stats,
        Account::Api,
        Account::Worker("default".to_owned()),
        Account::Client("shop".to_owned()),
    ];
    let all: Vec<Permission> = accounts.into_iter().map(permission).collect();
    for (exchange, _) in exchanges("t.") {
        let somebody = all
            .iter()
            .any(|one| one.write.contains(&pattern(&exchange)));
        assert!(somebody, "nobody may publish to {exchange}");
    }
    for topic in every(&Account::Deploy) {
        let (writers, readers) = uses(&topic);
        let is_received = !readers.is_empty() || matches!(topic, Topic::Event(_));
        assert!(is_received, "nobody receives {topic}");
        let is_listed = !topic.is_kept() || Topic::all_kept(1_000).contains(&topic);
        assert!(
            is_listed,
            "`attune topology apply` does not declare {topic}"
        );
        let is_sent = !writers.is_empty() || matches!(topic, Topic::Events);
        assert!(is_sent, "nobody sends {topic}");
    }
}

/// A number that stands for any partition where partitions are named is a number elsewhere.
#[test]
fn a_number_in_the_name_of_a_pool_stands_for_itself() {
    let rights = shown(Account::Worker("gpu-999".to_owned()));
    assert!(
        rights.contains("lives read ^gpu-999") && !rights.contains("[0-9]+"),
        "{rights}"
    );
}
