//! What a user of the settings relies on: precedence, refusals that name key, source and remedy,
//! secrets that stay hidden, and a default file and a documentation that are complete.
#![expect(
    clippy::unwrap_used,
    reason = "clippy takes helpers of tests for production code"
)]

mod api;
mod documentation;
mod refusals;
mod urls;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use attune_config::{
    DEFAULT_FILE, LoadError, Loader, LogFormat, PrintFormat, Problem, QueueType, Settings, Source,
    Wiring,
};
use serde_json::Value;

const MAX_LENGTH_VARIABLE: &str = "ATTUNE__EXECUTOR__QUEUE__MAX_QUEUE_LENGTH";

/// A YAML file of its own for one test.
struct YamlFile(tempfile::TempDir);

impl YamlFile {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("attune.yaml"), text).unwrap();
        Self(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("attune.yaml")
    }
}

/// The problems of a configuration that must be refused.
fn problems(loader: Loader) -> Vec<Problem> {
    match loader.load() {
        Err(LoadError::Invalid(problems)) => problems.0,
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(loaded) => panic!("accepted: {:?}", loaded.settings),
    }
}

/// The one problem of a configuration, as text.
fn problem(loader: Loader) -> String {
    let problems = problems(loader);
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].to_string()
}

fn with_variable(name: &str, value: &str) -> Loader {
    Loader::new().environment([(name, value)])
}

/// The leaves of a tree by dotted key.
fn leaves(prefix: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let key = if prefix.is_empty() {
                    name.clone()
                } else {
                    format!("{prefix}.{name}")
                };
                leaves(&key, member, into);
            }
        }
        leaf => {
            into.insert(prefix.to_owned(), leaf.clone());
        }
    }
}

fn default_file_leaves() -> BTreeMap<String, Value> {
    let tree: Value = yaml_serde::from_str(DEFAULT_FILE).unwrap();
    let mut found = BTreeMap::new();
    leaves("", &tree, &mut found);
    found
}

#[test]
fn the_default_file_is_complete_and_valid() {
    let loaded = Loader::new().load().unwrap();
    assert_eq!(loaded.settings, Settings::default());
    assert_eq!(loaded.settings.validate(), Ok(()));
    assert_eq!(loaded.warnings, []);
    assert_eq!(loaded.source("wiring"), &Source::Default);

    let mut of_settings = BTreeMap::new();
    let tree = serde_json::to_value(Settings::default()).unwrap();
    leaves("", &tree, &mut of_settings);
    assert_eq!(of_settings, default_file_leaves());
}

#[test]
fn the_defaults_are_the_promised_ones() {
    let settings = Settings::default();
    assert_eq!(settings.executor.queue.max_queue_length, 10_000);
    assert_eq!(settings.executor.queue.queue_timeout_seconds, 3600);
    assert!(settings.executor.queue.enable_metrics);
    assert_eq!(settings.cluster.partitions, 16);
    assert_eq!(settings.broker.queue_type, QueueType::Quorum);
    assert_eq!(
        settings.broker.max_message_bytes,
        attune_core::input::DEFAULT_MAX_BYTES
    );
    assert_eq!(settings.api.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(settings.log.format, LogFormat::Auto);
    assert_eq!(settings.worker.name, None);
    assert!(!settings.worker.name_or_host().is_empty());
    assert_eq!(settings.worker.work_dir_or_temp(), std::env::temp_dir());
    assert_eq!(
        settings.worker.state_dir_or_work_dir(),
        std::env::temp_dir()
    );
    assert_eq!(
        settings.worker.env_allow,
        ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR"]
    );
}

#[test]
fn the_default_file_can_be_given_as_the_file() {
    let file = YamlFile::new(DEFAULT_FILE);
    let loaded = Loader::new().file(Some(file.path())).load().unwrap();
    assert_eq!(loaded.settings, Settings::default());
    assert_eq!(loaded.source("wiring"), &Source::File(file.path()));
}

#[test]
fn later_sources_override_earlier_ones() {
    let file = YamlFile::new(
        "executor:\n  queue:\n    max_queue_length: 2\nworker: {slots: 2, pool: file}\n",
    );
    let command =
        || Loader::new().command_defaults([("worker.slots", "1"), ("wiring", "embedded")]);
    let length = |loader: Loader| {
        loader
            .load()
            .unwrap()
            .settings
            .executor
            .queue
            .max_queue_length
    };

    let only_command = command().load().unwrap();
    assert_eq!(only_command.settings.wiring, Wiring::Embedded);
    assert_eq!(only_command.settings.worker.slots, 1);
    assert_eq!(length(command()), 10_000);

    let with_file = command().file(Some(file.path()));
    assert_eq!(length(with_file), 2);
    let variables = [
        (MAX_LENGTH_VARIABLE, "3"),
        ("attune__worker__slots", "3"),
        ("PATH", "/bin"),
    ];
    let with_variables = || command().file(Some(file.path())).environment(variables);
    assert_eq!(length(with_variables()), 3);

    let all = with_variables()
        .flags([("worker.slots", "4")])
        .load()
        .unwrap();
    assert_eq!(all.settings.executor.queue.max_queue_length, 3);
    assert_eq!(all.settings.worker.slots, 4);
    assert_eq!(all.settings.worker.pool, "file");
    assert_eq!(all.settings.wiring, Wiring::Embedded);
    assert_eq!(all.source("worker.slots"), &Source::Flag);
    assert_eq!(all.source("worker.pool"), &Source::File(file.path()));
    assert_eq!(all.source("wiring"), &Source::Command);
    assert_eq!(
        all.source("executor.queue.max_queue_length"),
        &Source::Variable(MAX_LENGTH_VARIABLE.to_owned())
    );
}

/// Whose order nobody sets.
#[test]
fn a_setting_has_one_variable() {
    let twice = [
        ("ATTUNE__WORKER__SLOTS", "1"),
        ("attune__worker__slots", "2"),
    ];
    let error = Loader::new().environment(twice).load().unwrap_err();
    let words = error.to_string();
    for part in [
        "worker.slots",
        "ATTUNE__WORKER__SLOTS",
        "attune__worker__slots",
        "unset",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
}

#[test]
fn values_from_variables_become_what_the_key_takes() {
    let settings = Loader::new()
        .environment([
            ("ATTUNE__WORKER__ENV_ALLOW", "PATH, LANG ,X_1"),
            ("ATTUNE__EXECUTOR__QUEUE__ENABLE_METRICS", "no"),
            ("ATTUNE__BROKER__QUEUE_TYPE", "classic"),
            ("ATTUNE__WORKER__POOL", "007"),
            ("ATTUNE__METRICS__LISTEN", "[::1]:9000"),
            ("ATTUNE__HISTORY__DIR", "/var/lib/attune/history"),
            (
                "ATTUNE__LOG__LEVEL",
                "info,attune_executor=debug,[run{id=3}]=trace",
            ),
            ("ATTUNE__DATABASE__URL", "postgresql://u:000@db/x"),
            ("ATTUNE__EXECUTOR__NAME", ""),
        ])
        .load()
        .unwrap()
        .settings;
    assert_eq!(settings.worker.env_allow, ["PATH", "LANG", "X_1"]);
    assert!(!settings.executor.queue.enable_metrics);
    assert_eq!(settings.broker.queue_type, QueueType::Classic);
    assert_eq!(settings.worker.pool, "007");
    assert_eq!(settings.metrics.listen, Some("[::1]:9000".parse().unwrap()));
    assert_eq!(
        settings.history.dir.as_deref(),
        Some(Path::new("/var/lib/attune/history"))
    );
    assert_eq!(settings.database.url.expose(), "postgresql://u:000@db/x");
    assert_eq!(settings.executor.name, None);
}

#[test]
fn files_without_keys_change_nothing() {
    for yaml in [
        "",
        "# nothing yet\n\n",
        "executor:\nworker:\n  lease:\n",
        "worker: {name: ~}",
    ] {
        let file = YamlFile::new(yaml);
        let loaded = Loader::new().file(Some(file.path())).load().unwrap();
        assert_eq!(loaded.settings, Settings::default(), "{yaml}");
    }
}

#[test]
fn variables_that_look_like_settings_are_warned_about() {
    let loaded = Loader::new()
        .environment([
            ("ATTUNE_EXECUTOR_QUEUE__MAX_QUEUE_LENGTH", "5"),
            ("ATTUNE_FOO", "1"),
            ("ATTUNE_TEST_DATABASE_URL", "x"),
            ("ATTUNE_BIN", "x"),
            ("ATTUNE_EXECUTION_ID", "x"),
            ("ATTUNE_ATTEMPT", "x"),
            ("ATTUNE_ACTION", "x"),
            ("ATTUNE_PARAMETERS_FILE", "x"),
            ("ATTUNE_SERVICES_DIR", "x"),
            ("ATTUNE_URL", "x"),
            ("ATTUNE_CA_FILE", "x"),
            ("ATTUNE_CLIENT_CERT_FILE", "x"),
            ("ATTUNE_AMQP_URL", "x"),
            ("ATTUNE_IMAGE", "x"),
            ("ATTUNE_WORKER_IMAGE", "x"),
            ("ATTUNE_API_PORT", "x"),
            ("ATTUNE_POSTGRES_IMAGE", "x"),
            ("ATTUNE_RABBITMQ_IMAGE", "x"),
            ("ATTUNED", "x"),
            ("HOME", "/root"),
        ])
        .load()
        .unwrap();
    let texts: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(
        texts[0].starts_with("the variable ATTUNE_EXECUTOR_QUEUE__MAX_QUEUE_LENGTH is ignored")
    );
    assert!(texts[0].ends_with("; did you mean ATTUNE__EXECUTOR__QUEUE__MAX_QUEUE_LENGTH?"));
    assert_eq!(loaded.warnings[1].variable, "ATTUNE_FOO");
    assert_eq!(loaded.warnings[1].meant, None);
    assert_eq!(loaded.settings, Settings::default());
}

#[test]
fn secrets_are_hidden_wherever_settings_are_shown() {
    let settings = Loader::new()
        .environment([
            (
                "ATTUNE__DATABASE__URL",
                "postgres://attune:hunter2@db:5432/attune",
            ),
            ("ATTUNE__BROKER__URL", "amqps://attune:hunter2@mq/x"),
        ])
        .load()
        .unwrap()
        .settings;
    for shown in [
        settings.print(PrintFormat::Yaml),
        settings.print(PrintFormat::Json),
        format!("{settings:?}"),
    ] {
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(
            shown.contains("postgres://attune:***@db:5432/attune"),
            "{shown}"
        );
        assert!(shown.contains("amqps://attune:***@mq/x"), "{shown}");
    }
    assert_eq!(
        settings.database.url.expose(),
        "postgres://attune:hunter2@db:5432/attune"
    );
}

#[test]
fn what_is_printed_can_be_read_back() {
    let settings = Settings::default();
    let file = YamlFile::new(&settings.print(PrintFormat::Yaml));
    assert_eq!(
        Loader::new()
            .file(Some(file.path()))
            .load()
            .unwrap()
            .settings,
        settings
    );
    let json: Value = serde_json::from_str(&settings.print(PrintFormat::Json)).unwrap();
    assert_eq!(json["executor"]["queue"]["max_queue_length"], 10_000);
}

#[test]
fn settings_changed_by_code_are_validated_too() {
    let mut settings = Settings::default();
    settings.cluster.partitions = 0;
    settings.worker.pool = String::new();
    settings.worker.lease.grace_seconds = 1;
    let problems = settings.validate().unwrap_err();
    let keys: Vec<&str> = problems
        .0
        .iter()
        .map(|problem| problem.key.as_str())
        .collect();
    assert_eq!(
        keys,
        [
            "cluster.partitions",
            "worker.pool",
            "worker.kill_grace_seconds"
        ]
    );
}
