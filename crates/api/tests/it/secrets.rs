//! What a schema marks as secret is sealed at the door and shown to nobody who may not see it.

use attune_bus::Topic;
use attune_core::{RawValue, Status};
use attune_identity::Role;
use attune_secrets::{Keyring, new_key};
use serde_json::{Value, json};

use crate::dead_letters::{keep, listen, message, requeue};
use crate::fakes::{execution_id, record};
use crate::harness::{Api, options};
use crate::keyed::whole;

const CANARY: &str = "canary-5e1f";

fn keys() -> Keyring {
    Keyring::parse(&new_key("k1").unwrap()).unwrap()
}

fn api(keys: &Keyring) -> Api {
    let mut options = options();
    options.secrets = keys.clone();
    let api = Api::with(options);
    mark(&api);
    api
}

/// An action with a secret.
fn mark(api: &Api) {
    api.fake.add_action("a.b", |spec| {
        spec.parameters = Some(json!({
            "additionalProperties": false,
            "properties": {
                "name": {"type": "string", "maxLength": 9},
                "password": {"type": "string", "minLength": 8, "secret": true},
                "tokens": {"writeOnly": true, "additionalProperties": {"type": "integer"}},
            },
        }));
    });
}

fn submission(parameters: &Value) -> String {
    json!({"action_ref": "a.b", "parameters": parameters}).to_string()
}

fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).unwrap()
}

#[tokio::test]
async fn what_leaves_the_door_is_sealed_and_the_same_each_time() {
    for keys in [Keyring::default(), keys()] {
        let api = api(&keys);
        let given = json!({"name": "n", "password": CANARY, "tokens": {"t": 1}});
        let (mut sealed, path) = (Vec::new(), "/api/v1/executions");
        for _ in 0..2 {
            let answer = api.post(path, submission(&given)).await;
            assert!(answer.status.is_success(), "{answer:?}");
            assert!(!answer.body.to_string().contains(CANARY));
        }
        for asked in api.fake.with(|state| std::mem::take(&mut state.submitted)) {
            assert!(!asked.parameters.get().contains(CANARY));
            let opened = keys.open("a.b", &asked.parameters).unwrap().unwrap();
            let opened: Value = serde_json::from_str(opened.parameters.get()).unwrap();
            assert_eq!(opened, given);
            sealed.push(asked.digest());
        }
        assert_eq!(sealed.len(), 2);
        assert_eq!(sealed[0], sealed[1], "a repeated request is known again");
    }
}

#[tokio::test]
async fn a_refusal_quotes_nothing_that_is_secret() {
    let api = api(&keys());
    for (parameters, field) in [
        (json!({"password": 5_318_008}), "parameters.password"),
        (json!({"password": "5318008"}), "parameters.password"),
        (json!({"password": {"5318008": 1}}), "parameters.password"),
        (
            json!({"tokens": {"5318008": "5318008"}}),
            "parameters.tokens",
        ),
        // What stands around it would be quoted with it.
        (
            json!({"name": "much too long", "password": "5318008!"}),
            "parameters.name",
        ),
        (
            json!({"other": 1, "password": "5318008!"}),
            "parameters.other",
        ),
        (
            json!({"password": "attune:secret:v1::eA"}),
            "parameters.password",
        ),
        (
            json!({"name": "attune:secret:v1:k1:5318008"}),
            "parameters.name",
        ),
    ] {
        let answer = api
            .post("/api/v1/executions", submission(&parameters))
            .await;
        assert_eq!(
            answer.error(),
            (422, "INVALID_INPUT", field),
            "{parameters}"
        );
        assert!(!answer.body.to_string().contains("5318008"), "{answer:?}");
    }
    assert!(api.fake.with(|state| state.submitted.is_empty()));
}

/// An execution that was asked for with a secret, and one from before its schema had any.
fn executions(api: &Api, keys: &Keyring) {
    let marks = json!({"properties": {"p": {"secret": true}}});
    let marks = attune_core::Marks::of(&marks).unwrap();
    let sealed = keys
        .seal("a.b", &marks, &raw(&json!({"p": CANARY})))
        .unwrap();
    let sealed = serde_json::from_str(sealed.unwrap().get()).unwrap();
    for (n, parameters) in [(0, sealed), (1, json!({"name": "n", "password": CANARY}))] {
        let mut record = record(n, Status::Succeeded, 0);
        record.action_ref = "a.b".to_owned();
        record.parameters = parameters;
        api.fake
            .with(|state| state.executions.insert(record.id, record));
    }
}

#[tokio::test]
async fn views_show_a_mask_for_what_was_or_is_secret() {
    let keys = keys();
    let api = api(&keys);
    executions(&api, &keys);
    for (n, shown) in [
        (0, json!({"p": "********"})),
        (1, json!({"name": "n", "password": "********"})),
    ] {
        let one = api
            .get(&format!("/api/v1/executions/{}", execution_id(n)))
            .await;
        assert_eq!(one.body["parameters"], shown);
    }
    let list = api.get("/api/v1/executions?include=parameters").await;
    assert_eq!(list.status, 200, "{list:?}");
    assert!(!list.body.to_string().contains(CANARY), "{list:?}");
}

#[tokio::test]
async fn only_an_admin_sees_them_and_that_is_written_down_first() {
    let keys = keys();
    let mut options = options();
    options.auth = attune_core::Auth::Required;
    options.secrets = keys.clone();
    let api = Api::with(options);
    mark(&api);
    executions(&api, &keys);
    let path = format!("/api/v1/executions/{}?show_secrets=true", execution_id(0));
    for role in [Role::Viewer, Role::Operator, Role::Author, Role::Submitter] {
        let key = api.fake.add_key("nosy", whole(role));
        let answer = api.ask(&key, "GET", &path, None).await;
        assert_eq!(answer.error().0, 403, "{role}");
        assert!(!answer.body.to_string().contains(CANARY), "{role}");
    }
    assert!(api.fake.with(|state| state.noted.is_empty()));
    let key = api.fake.add_key("ada", whole(Role::Admin));
    let answer = api.ask(&key, "GET", &path, None).await;
    assert_eq!(
        answer.body["parameters"],
        json!({"p": CANARY}),
        "{answer:?}"
    );
    let noted = api.fake.with(|state| state.noted.clone());
    let noted: Vec<_> = noted
        .iter()
        .map(|it| (it.what, &*it.who, &*it.target))
        .collect();
    let target = execution_id(0).to_string();
    assert_eq!(noted, [(attune_store::What::SecretRead, "ada", &*target)]);
    let masked = api
        .ask(
            &key,
            "GET",
            path.trim_end_matches("?show_secrets=true"),
            None,
        )
        .await;
    assert_eq!(masked.body["parameters"], json!({"p": "********"}));
}

#[tokio::test]
async fn dead_letters_are_kept_sealed_shown_masked_and_put_back_whole() {
    let keys = keys();
    let api = api(&keys);
    let mut firings = listen(&api, Topic::Enforcements).await;
    let known = json!({"action_ref": "a.b", "parameters": {"name": "n", "password": CANARY}});
    let unknown = json!([{"action_ref": "no.such", "parameters": {"q": CANARY}}, known]);
    let submit = json!({"submission": known});
    let cut = format!(r#"{{"payload":{{"action_ref":"a.b","parameters":{{"password":"{CANARY}"#);
    for (source, body, shown) in [
        (
            "enforcement.created",
            message("enforcement.created", &known),
            "\"name\":\"n\"",
        ),
        (
            "enforcement.created",
            message("enforcement.created", &unknown),
            "no.such",
        ),
        (
            "partition.00.commands",
            message("partition.submit", &submit),
            "\"name\":\"n\"",
        ),
        ("enforcement.created", cut.into_bytes(), "action_ref"),
    ] {
        let (bytes, sealed) = (body.len() as u64, keys.seal_message(body.clone()));
        for body in [body, sealed] {
            let id = keep(&api, source, body);
            api.fake
                .with(|state| state.letters.last_mut().unwrap().0.bytes = bytes);
            let letter = api.get(&format!("/api/v1/dead-letters/{id}")).await;
            let text = letter.body["body"].as_str().unwrap();
            assert!(text.contains(shown) && text.contains("********"), "{text}");
            assert!(!text.contains(CANARY), "{text}");
        }
    }
    let list = api.get("/api/v1/dead-letters?include=body").await;
    assert!(!list.body.to_string().contains(CANARY));

    // The second is the first one, sealed.
    let answer = requeue(&api, 2).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let back = firings.try_next().unwrap();
    assert!(String::from_utf8_lossy(&back.body).contains(CANARY));

    let other = crate::secrets::api(&Keyring::default());
    let id = keep(
        &other,
        "enforcement.created",
        keys.seal_message(b"{}".to_vec()),
    );
    let letter = other.get(&format!("/api/v1/dead-letters/{id}")).await;
    let text = letter.body["body"].as_str().unwrap();
    assert!(
        text.contains("`k1`") && text.contains("secrets.key_file"),
        "{text}"
    );
}
