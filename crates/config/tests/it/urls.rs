//! What is refused of URLs.

use crate::{problem, with_variable};

#[test]
fn unknown_parameters_of_the_database_url_are_refused_without_their_values() {
    let load = |url: &str| with_variable("ATTUNE__DATABASE__URL", url);
    for (query, named) in [
        ("passwd=hunter2", "`passwd`"),
        (
            "sslmode=require&connect_timeout=hunter2",
            "`connect_timeout`",
        ),
        ("p%61sswd=hunter2", "`passwd`"),
        ("hunter2", "(it is not shown here)"),
        ("sslmode=disable&hunter2", "(it is not shown here)"),
        ("a%00hunter2=1", "(it is not shown here)"),
        ("options[hunter2=1", "(it is not shown here)"),
    ] {
        let text = problem(load(&format!("postgres://u:p@h/d?{query}")));
        assert!(text.contains("database.url"), "{query}: {text}");
        assert!(
            text.contains(named) && !text.contains("hunter2"),
            "{query}: {text}"
        );
        assert!(text.contains("sslmode"), "{query}: {text}");
    }
    // The end of a password with an unescaped `?`.
    let text = problem(load("postgres://u:x?hunter2=1@h/d"));
    assert!(!text.contains("hunter2"), "{text}");
    for query in [
        "sslmode=disable",
        "%73slmode=disable&application_name=a&options[search_path]=x",
        "",
        "host=/var/run/postgresql&user=a&password=b&port=5433&dbname=c",
    ] {
        let loaded = load(&format!("postgres://u:p@h/d?{query}")).load();
        assert!(loaded.is_ok(), "{query}: {:?}", loaded.err());
    }
}
