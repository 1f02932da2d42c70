//! What is secret reaches the program and nothing else.

use attune_core::{EndCode, EnvValue, Marks};
use attune_secrets::{Keyring, new_key};
use serde_json::json;

use super::tests::{bench_with, builtin, error, request};
use super::*;
use crate::options::{SecretOptions, WorkerOptions};

const CANARY: &str = "canary-\"7f3a\"-\u{e9}";

fn marks() -> Marks {
    Marks::of(&json!({"properties": {"p": {"secret": true}, "message": {"secret": true}}})).unwrap()
}

fn with_secrets(keys: &Keyring, dir: &std::path::Path) -> impl FnOnce(&mut WorkerOptions) {
    let secrets = SecretOptions {
        keys: keys.clone(),
        dir: Some(dir.to_owned()),
        ..SecretOptions::default()
    };
    move |options| options.secrets = secrets
}

fn sealed(mut request: Grant, keys: &Keyring) -> Grant {
    let sealed = keys.seal(&request.action_ref, &marks(), &request.parameters);
    request.parameters = sealed.unwrap().unwrap();
    assert!(!request.parameters.get().contains("7f3a"));
    request
}

#[tokio::test]
async fn a_program_sees_what_is_sealed_and_nobody_sees_what_it_says_of_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), "token-of-the-worker\n").unwrap();
    for keys in [
        Keyring::default(),
        Keyring::parse(&new_key("k").unwrap()).unwrap(),
    ] {
        let bench = bench_with(with_secrets(&keys, dir.path()));
        // In halves too: what is written in two pieces is one text.
        let script = "cat; grep -c 7f3a \"$ATTUNE_PARAMETERS_FILE\" >&2; echo \"$TOKEN\" | wc -c >&2; \
                      printf %s token-of-; sleep 0.05; echo the-worker; echo \"[$TOKEN]\" >&2";
        let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let mut asked = request(Run::Program(argv), &json!({"p": CANARY, "q": 1}));
        asked
            .env
            .insert("TOKEN".to_owned(), EnvValue::secret("token"));
        let outcome = bench.run(sealed(asked, &keys)).await;
        let (stdout, stderr) = (outcome.stdout.unwrap(), outcome.stderr.unwrap());
        assert_eq!(stdout, "{\"p\":\"********\",\"q\":1}********\n");
        assert_eq!(stderr, "1\n20\n[********]\n");
        assert!(!outcome.result.unwrap().get().contains("7f3a"));
    }
}

#[tokio::test]
async fn built_ins_say_nothing_of_it_either() {
    let keys = Keyring::parse(&new_key("k").unwrap()).unwrap();
    let bench = bench_with(with_secrets(&keys, std::path::Path::new("/nowhere")));
    let echoed = sealed(builtin(Builtin::Echo, json!({"p": CANARY})), &keys);
    let outcome = bench.run(echoed).await;
    assert_eq!(outcome.result.unwrap().get(), r#"{"p":"********"}"#);
    let failed = sealed(builtin(Builtin::Fail, json!({"message": CANARY})), &keys);
    assert_eq!(error(&bench.run(failed).await), "********");
    let wrong = json!({"p": 1, "message": [CANARY]});
    let outcome = bench
        .run(sealed(builtin(Builtin::Fail, wrong), &keys))
        .await;
    assert!(!error(&outcome).contains("7f3a"), "{outcome:?}");
}

#[tokio::test]
async fn without_its_secrets_a_run_does_not_begin_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let keys = Keyring::parse(&new_key("k9").unwrap()).unwrap();
    let bench = bench_with(with_secrets(&Keyring::default(), dir.path()));
    let echoed = sealed(builtin(Builtin::Echo, json!({"p": CANARY})), &keys);
    let argv = ["/bin/true"].map(str::to_owned).to_vec();
    let mut named = request(Run::Program(argv), &json!({}));
    named.env.insert("X".to_owned(), EnvValue::secret("absent"));
    // Another worker may have the key: it goes back as never begun, whatever runs it.
    let programs = request(
        Run::Program(vec!["/bin/true".to_owned()]),
        &json!({"p": CANARY}),
    );
    for asked in [echoed, sealed(programs, &keys)] {
        let ended = bench.ended(asked, Stop::default()).await;
        let Ended::GivenBack(why) = ended else {
            panic!("it is not given back: {ended:?}");
        };
        assert!(why.words.contains("lacks the key"), "{why:?}");
        assert_eq!(why.lacks_key.as_deref(), Some("k9"));
    }
    let trouble = bench.keyless().trouble().unwrap();
    for word in ["`parameters.p`", "`k9`", "secrets.key_file"] {
        assert!(trouble.contains(word), "{trouble}");
    }
    let outcome = bench.run(named).await;
    assert_eq!(outcome.status, Status::Failed);
    assert_eq!(outcome.code, Some(EndCode::SecretUnavailable));
    for word in ["`absent`", "`env.X`", "as the credential"] {
        assert!(error(&outcome).contains(word), "{outcome:?}");
    }
}

/// What was sealed for something else is wrong everywhere.
#[tokio::test]
async fn what_no_worker_can_open_fails() {
    let keys = Keyring::parse(&new_key("k9").unwrap()).unwrap();
    let bench = bench_with(with_secrets(&keys, std::path::Path::new("/nowhere")));
    let mut moved = sealed(builtin(Builtin::Echo, json!({"p": CANARY})), &keys);
    moved.action_ref = "another.action".to_owned();
    let outcome = bench.run(moved).await;
    assert_eq!(outcome.code, Some(EndCode::SecretUnavailable));
}

/// A file that was cut off, and a folder in which anybody may put links, are no secrets.
#[tokio::test]
async fn a_secret_that_is_empty_or_that_anybody_may_replace_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;

    let dir = tempfile::tempdir().unwrap();
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(dir.path().join("token"), "\n").unwrap();
    std::fs::write(open.join("token"), "token-of-the-worker\n").unwrap();
    for (folder, word) in [(dir.path(), "it is empty"), (open.as_path(), "chmod o-w")] {
        let bench = bench_with(with_secrets(&Keyring::default(), folder));
        let mut asked = request(Run::Program(vec!["/bin/true".to_owned()]), &json!({}));
        asked
            .env
            .insert("TOKEN".to_owned(), EnvValue::secret("token"));
        let outcome = bench.run(asked).await;
        assert_eq!(outcome.code, Some(EndCode::SecretUnavailable));
        assert!(error(&outcome).contains(word), "{outcome:?}");
    }
}
