//! What is refused, and in which words.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use attune_config::{LoadError, Loader};

use crate::{MAX_LENGTH_VARIABLE, YamlFile, problem, with_variable};

#[test]
fn an_unknown_key_in_a_file_is_refused_with_file_and_suggestion() {
    let file = YamlFile::new("executor:\n  queue:\n    max_queue_lenght: 5\n");
    assert_eq!(
        problem(Loader::new().file(Some(file.path()))),
        format!(
            "executor.queue.max_queue_lenght (file {}): unknown key; did you mean \
             `executor.queue.max_queue_length`?",
            file.path().display()
        )
    );
    for (yaml, expected) in [
        (
            "Executor: {name: x}",
            "unknown key; did you mean `executor`?",
        ),
        (
            "max_queue_length: 5",
            "did you mean `executor.queue.max_queue_length`?",
        ),
        (
            "colour: red",
            "unknown key; docs/CONFIGURATION.md lists all",
        ),
        ("executor.name: x", "has a dot"),
        ("executor: 5", "this is a section"),
        (
            "worker: {slots: {n: 1}}",
            "it is a section; expected a whole number",
        ),
    ] {
        let file = YamlFile::new(yaml);
        let text = problem(Loader::new().file(Some(file.path())));
        assert!(text.contains(expected), "{yaml}: {text}");
    }
}

#[test]
fn an_unknown_variable_or_flag_is_refused_with_its_name_and_suggestion() {
    assert_eq!(
        problem(with_variable("ATTUNE__EXECUTOR__QUEUE__MAX_LENGTH", "5")),
        "executor.queue.max_length (variable ATTUNE__EXECUTOR__QUEUE__MAX_LENGTH): unknown key; \
         docs/CONFIGURATION.md lists all"
    );
    assert_eq!(
        problem(with_variable("ATTUNE__EXECUTER__NAME", "x")),
        "executer.name (variable ATTUNE__EXECUTER__NAME): unknown key; did you mean \
         ATTUNE__EXECUTOR__NAME?"
    );
    let section = problem(with_variable("ATTUNE__EXECUTOR", "x"));
    assert!(section.contains("this is a section"), "{section}");
    assert_eq!(
        problem(Loader::new().flags([("worker.slotz", "5")])),
        "worker.slotz (flag): unknown key; did you mean `worker.slots`?"
    );
}

#[test]
fn impossible_values_are_refused_with_what_would_be_right() {
    for (variable, value, expected) in [
        (
            MAX_LENGTH_VARIABLE,
            "lots",
            "\"lots\" does not fit; expected a whole number from 1 to 10000000 (executions)",
        ),
        (MAX_LENGTH_VARIABLE, "yes", "\"yes\" does not fit"),
        (MAX_LENGTH_VARIABLE, "3.7", "\"3.7\" does not fit"),
        (MAX_LENGTH_VARIABLE, "0", "0 is out of range"),
        (MAX_LENGTH_VARIABLE, "-1", "-1 is out of range"),
        (
            "ATTUNE__EXECUTOR__INTAKE__PREFETCH",
            "70000",
            "70000 is out of range; expected a whole number from 1 to 65535 (messages)",
        ),
        (
            "ATTUNE__CLUSTER__PARTITIONS",
            "257",
            "from 1 to 256 (partitions)",
        ),
        (
            "ATTUNE__STATS__PUBLISH_INTERVAL_MS",
            "49",
            "from 50 to 10000 (milliseconds)",
        ),
        (
            "ATTUNE__WIRING",
            "kafka",
            "\"kafka\" does not fit; expected one of embedded, postgres-rabbitmq",
        ),
        (
            "ATTUNE__BROKER__QUEUE_TYPE",
            "Quorum",
            "expected one of quorum, classic",
        ),
        (
            "ATTUNE__EXECUTOR__QUEUE__ENABLE_METRICS",
            "maybe",
            "expected true or false",
        ),
        (
            "ATTUNE__OPS__LISTEN",
            "8.8.8.8:8080",
            "refused: nobody is asked there who they are",
        ),
        (
            "ATTUNE__API__LISTEN",
            "localhost:8080",
            "expected ADDRESS:PORT, such as",
        ),
        (
            "ATTUNE__METRICS__LISTEN",
            "192.168.1.5:9000",
            "set `metrics.network` to private",
        ),
        (
            "ATTUNE__WORKER__POOL",
            "a.b",
            "expected 1 to 64 lower-case letters",
        ),
        (
            "ATTUNE__WORKER__NAME",
            "a b",
            "letters, digits, `.`, `_` and `-`, or nothing",
        ),
        ("ATTUNE__BROKER__PREFIX", "t1/", "expected up to 64 letters"),
        (
            "ATTUNE__LOG__LEVEL",
            "loud",
            "\"loud\" does not fit; expected off, error",
        ),
        ("ATTUNE__LOG__LEVEL", "info,attune=loud", "does not fit"),
        (
            "ATTUNE__WORKER__ENV_ALLOW",
            "PATH=/bin",
            "expected a list of names of variables",
        ),
        (
            "ATTUNE__WORKER__KILL_GRACE_SECONDS",
            "6",
            "6 is more than worker.lease.grace_seconds (5)",
        ),
        (
            "ATTUNE__WORKER__OUTPUT_MAX_BYTES",
            "600000",
            "do not fit into one message",
        ),
        (
            "ATTUNE__API__MAX_BODY_BYTES",
            "1048577",
            "is more than broker.max_message_bytes",
        ),
        (
            "ATTUNE__BROKER__URL",
            "amqps://broker:5671/x",
            "name a user of your own",
        ),
        (
            "ATTUNE__DATABASE__URL",
            "mysql://u:hunter2@db/x",
            "expected a URL that begins with postgres:// or postgresql://",
        ),
        ("ATTUNE__DATABASE__URL", "postgres://", "names no host"),
        (
            "ATTUNE__DATABASE__URL",
            "postgres://u:hunter2@localhost:99999/x",
            "the URL cannot be read: invalid port number; write in a password %2F for /",
        ),
        (
            "ATTUNE__DATABASE__URL",
            "postgres://u:hunter2@localhost:0/x",
            "the URL names port 0",
        ),
        (
            "ATTUNE__DATABASE__URL",
            "postgres://:5432/x",
            "the URL cannot be read: empty host",
        ),
        (
            "ATTUNE__DATABASE__URL",
            "postgres://u:hunter2@localhost/x?sslmode=hunter2",
            "`sslmode` of the URL is none of disable, allow",
        ),
        (
            "ATTUNE__BROKER__URL",
            "amqp://u:hunter2@localhost:56720000/",
            "the URL cannot be read: invalid port number",
        ),
    ] {
        let text = problem(with_variable(variable, value));
        assert!(text.contains(expected), "{variable}={value}: {text}");
        assert!(text.contains(&format!("(variable {variable})")), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn values_of_the_wrong_type_in_a_file_are_refused() {
    for (yaml, expected) in [
        ("worker: {slots: 3.7}", "3.7 is not a whole number"),
        ("worker: {slots: true}", "true is a switch"),
        ("worker: {slots: }", "it is empty"),
        ("worker: {slots: [1]}", "it is a list"),
        (
            "worker: {slots: 99999999999999999999}",
            "is not a whole number",
        ),
        ("worker: {pool: 7}", "7 is a number (a text needs quotes)"),
        ("worker: {env_allow: [1]}", "1 is a number"),
        ("executor: {queue: {enable_metrics: 1}}", "1 is a number"),
        ("data_dir: ''", "it is empty; expected a folder"),
    ] {
        let file = YamlFile::new(yaml);
        let text = problem(Loader::new().file(Some(file.path())));
        assert!(text.contains(expected), "{yaml}: {text}");
        assert!(
            text.contains(&format!("(file {})", file.path().display())),
            "{text}"
        );
    }
}

#[test]
fn all_problems_of_all_sources_are_told_at_once() {
    let file = YamlFile::new("worker: {slots: 0, slotz: 1}\nexecutor:\n");
    let loader = Loader::new()
        .file(Some(file.path()))
        .environment([
            ("ATTUNE__WORKER__SLOTS", "5"),
            ("ATTUNE__API__LISTEN", "nowhere"),
        ])
        .flags([("worker.kill_grace_seconds", "60")]);
    let error = loader.load().unwrap_err();
    let LoadError::Invalid(problems) = &error else {
        panic!("{error}")
    };
    let keys: Vec<&str> = problems
        .0
        .iter()
        .map(|problem| problem.key.as_str())
        .collect();
    // The file's wrong value counts although a variable overrides it.
    assert_eq!(
        keys,
        [
            "worker.slots",
            "worker.slotz",
            "api.listen",
            "worker.kill_grace_seconds"
        ]
    );
    let text = error.to_string();
    assert!(
        text.starts_with("the configuration has 4 problems:\n  worker.slots (file "),
        "{text}"
    );
}

/// What other machines can reach is said, and a public address is refused all the same.
#[test]
fn leaving_loopback_has_to_be_said() {
    for (flags, key, words) in [
        (
            &[
                ("metrics.listen", "10.0.0.1:9100"),
                ("ops.network", "private"),
            ][..],
            "metrics.listen",
            "set `metrics.network` to private if all that can are trusted, or listen on 127.0.0.1:9100",
        ),
        (
            &[("ops.listen", "8.8.8.8:81"), ("ops.network", "private")],
            "ops.listen",
            "8.8.8.8:81 is a public address",
        ),
        (
            &[("ops.listen", "100.64.0.1:81"), ("ops.network", "private")],
            "ops.listen",
            "100.64.0.1:81 is no address of a private network",
        ),
        (
            &[("broker.url", "amqp://u:hunter2@mq:5672/v")],
            "broker.url",
            "set `broker.network` to private",
        ),
        (
            &[
                ("broker.url", "amqp://u:hunter2@8.8.8.8:5672/v"),
                ("broker.network", "private"),
            ],
            "broker.url",
            "in the clear: its address is public, or at least not private, and only amqps:// goes there",
        ),
        (
            &[("broker.network", "public")],
            "broker.network",
            "expected one of loopback, private",
        ),
    ] {
        let text = problem(Loader::new().flags(flags.iter().copied()));
        assert!(text.contains(key) && text.contains(words), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    let flags = [
        ("ops.listen", "0.0.0.0:8081"),
        ("ops.network", "private"),
        ("broker.url", "amqp://u:p@mq.example.com:5672/v"),
        ("broker.network", "private"),
    ];
    Loader::new().flags(flags).load().unwrap();
}

/// Passwords are for whoever runs the process, and for nobody else of the machine.
#[test]
fn a_file_with_a_password_that_everybody_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.yaml");
    let open = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    for (text, flag, key) in [
        (
            "database: {url: 'postgres://u:hunter2@db/x'}",
            None,
            "database.url",
        ),
        (
            "broker: {url: 'amqp://127.0.0.1/?password=hunter2'}",
            None,
            "broker.url",
        ),
        (
            "postgres://u:hunter2@db/x",
            Some("database.url_file"),
            "database.url_file",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let load = || match flag {
            None => Loader::new().file(Some(path.clone())).load(),
            Some(flag) => Loader::new().flags([(flag, path.to_str().unwrap())]).load(),
        };
        open(0o640);
        load().unwrap();
        open(0o644);
        let refused = load().unwrap_err().to_string();
        assert!(
            refused.contains(key) && refused.contains("chmod o="),
            "{refused}"
        );
        assert!(!refused.contains("hunter2"), "{refused}");
    }
    std::fs::write(&path, "database: {url: 'postgres://u@db/x'}").unwrap();
    Loader::new().file(Some(path)).load().unwrap();
}

#[test]
fn a_url_in_a_file_is_read_and_one_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file("good", b"postgres://u:hunter2@db/attune\n");
    let yaml = YamlFile::new(&format!("database: {{url_file: '{good}'}}"));
    let loaded = Loader::new().file(Some(yaml.path())).load().unwrap();
    let url = loaded.settings.database.url;
    assert_eq!(url.expose(), "postgres://u:hunter2@db/attune");

    // Who needs none of it looks into no file.
    let gone = [("database.url_file", "/nowhere")];
    let left = Loader::new().flags(gone).leave_files(true).load().unwrap();
    assert_eq!(left.settings.metrics.listen, None);

    // A later source overrides either by either, and one source says one of them.
    let other = ("ATTUNE__DATABASE__URL", "postgres://other/attune");
    let loader = Loader::new().file(Some(yaml.path())).environment([other]);
    let database = loader.load().unwrap().settings.database;
    assert_eq!(database.url.expose(), "postgres://other/attune");
    assert_eq!(database.url_file, None);
    let named = [("database.url_file", good.as_str())];
    let loaded = Loader::new().environment([other]).flags(named).load();
    assert!(
        loaded
            .unwrap()
            .settings
            .database
            .url
            .expose()
            .contains("hunter2")
    );
    for both in [["url", "url_file"], ["url_file", "url"]] {
        let flags = both.map(|key| match key {
            "url" => ("database.url", other.1),
            _ => named[0],
        });
        let text = problem(Loader::new().flags(flags));
        assert!(text.contains("leave out one of the two"), "{text}");
    }

    let large = vec![b'x'; 20_000];
    for (path, words) in [
        (folder.path().join("none").to_str().unwrap(), "No such file"),
        (folder.path().to_str().unwrap(), "no regular file"),
        (&file("empty", b""), "the file is empty"),
        (&file("newline", b"\n"), "the file is empty"),
        (&file("mark", b"\xef\xbb\xbf\r\n"), "the file is empty"),
        (
            &file("blank", b" postgres://u:hunter2@h/d"),
            "begins with white space",
        ),
        (
            &file("quotes", b"'postgres://u:hunter2@h/d'\n"),
            "is in quotes",
        ),
        (
            &file("nul", b"postgres://u:hunter2@h/d\0"),
            "holds a control character, such as NUL",
        ),
        (&file("lines", b"postgres://u@h/d\nhunter2"), "white space"),
        (&file("large", &large), "16384 bytes"),
        (
            &file("wrong", b"mysql://u:hunter2@h/d"),
            "begins with postgres://",
        ),
        (&file("bytes", &[0xff, 0xfe]), "UTF-8"),
    ] {
        let text = problem(Loader::new().flags([("database.url_file", path)]));
        assert!(text.contains("database.url_file (flag)"), "{text}");
        assert!(text.contains(path) && text.contains(words), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    let marked = file("marked", b"\xef\xbb\xbfpostgres://u:hunter2@db/attune\r\n");
    let loader = Loader::new().flags([("database.url_file", marked)]);
    let url = loader.load().unwrap().settings.database.url;
    assert_eq!(url.expose(), "postgres://u:hunter2@db/attune");

    // What does not fit to other settings is found later, and is of the same file.
    let plain = file("plain", b"amqp://u:hunter2@mq:5672/v");
    let text = problem(Loader::new().flags([("broker.url_file", &plain)]));
    let expected = format!("broker.url_file (flag): {plain}: amqp:// would send");
    assert!(text.contains(&expected), "{text}");
    let environment = [("ATTUNE__BROKER__URL_FILE", plain.as_str())];
    let over = [("broker.url", "amqp://u:hunter2@other/v")];
    let text = problem(Loader::new().environment(environment).flags(over));
    assert!(text.contains("broker.url (flag): amqp://"), "{text}");
}

#[test]
fn files_that_cannot_be_used_are_refused_with_their_name() {
    let missing = Loader::new()
        .file(Some("/nonexistent/attune.yaml"))
        .load()
        .unwrap_err();
    assert!(
        missing.to_string().contains("/nonexistent/attune.yaml"),
        "{missing}"
    );
    for yaml in [
        "a: b: c",
        "- 1\n- 2",
        "worker: {slots: 1}\nworker: {slots: 2}",
        "--- 1\n--- 2",
    ] {
        let file = YamlFile::new(yaml);
        let error = Loader::new().file(Some(file.path())).load().unwrap_err();
        assert!(matches!(error, LoadError::Syntax { .. }), "{yaml}: {error}");
        assert!(error.to_string().contains("attune.yaml"), "{error}");
    }
}

#[test]
fn files_that_would_fill_the_memory_are_refused_with_their_name() {
    let nested: String = (1..25)
        .map(|n| format!("a{n}: &a{n} [*a{m}, *a{m}]\n", m = n - 1))
        .collect();
    let nested = format!("a0: &a0 [x, x]\n{nested}");
    let repeated = format!(
        "a: &a [{}]\nb: [{}]\n",
        "1,".repeat(1000),
        "*a,".repeat(1000)
    );
    for yaml in [nested, repeated] {
        let file = YamlFile::new(&yaml);
        let error = Loader::new().file(Some(file.path())).load().unwrap_err();
        assert!(matches!(error, LoadError::Syntax { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("attune.yaml"), "{text}");
        assert!(
            text.contains("alias") || text.contains("repetition"),
            "{text}"
        );
    }
    let deep = YamlFile::new(&"{a: ".repeat(200_000));
    let error = Loader::new().file(Some(deep.path())).load();
    let text = error.unwrap_err().to_string();
    assert!(text.contains("4096 brackets are open at line 1"), "{text}");
    for key in ["<<", "\"<<\""] {
        let merges = YamlFile::new(&format!("a: &a {{wiring: embedded}}\n{key}: *a\n"));
        let error = Loader::new().file(Some(merges.path())).load().unwrap_err();
        assert!(error.to_string().contains("<< (file"), "{error}");
    }
    let long = YamlFile::new(&format!("# {}\n", "x".repeat(1024 * 1024)));
    for (path, said) in [
        (long.path(), "1048576 bytes"),
        ("/dev/zero".into(), "no regular file"),
    ] {
        let error = Loader::new().file(Some(&path)).load().unwrap_err();
        let LoadError::Unreadable {
            path: named,
            source,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(named, path);
        assert!(source.to_string().contains(said), "{source}");
    }
}
