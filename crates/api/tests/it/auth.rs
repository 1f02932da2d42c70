//! Who may do what, and in whose name.

use std::time::{Duration, Instant};

use attune_core::{RequestId, Status};
use attune_identity::{Grants, Key, Rate, Role};
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use serde_json::json;

use crate::fakes::record;
use crate::harness::{Api, until};
use crate::keyed::{api, whole};

/// Every method and path that the server says it has.
async fn endpoints(api: &Api) -> Vec<(String, String)> {
    let document = api.get("/api/v1/openapi.json").await.body;
    let mut found = vec![("GET".to_owned(), "/metrics".to_owned())];
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            if let Ok(method) = method.to_uppercase().parse::<Method>() {
                found.push((method.to_string(), path.clone()));
            }
        }
    }
    assert!(found.len() > 45, "{}", found.len());
    found
}

/// A path with something in each of its places.
fn filled(path: &str) -> String {
    path.replace("{id}", "7")
        .replace("{ref}", "core.echo")
        .replace("{scope}", "pack")
        .replace("{target}", "core")
}

/// The letters of the roles that may use an endpoint: viewer, submitter, worker, author, operator, admin (`A`).
/// `-` is open to all.
fn matrix(method: &str, path: &str) -> &'static str {
    let path = path.strip_prefix("/api/v1").unwrap_or(path);
    match (method, path) {
        (_, "/healthz" | "/readyz") => "-",
        (_, "/metrics") => "A",
        ("GET", "/executions" | "/executions/{id}" | "/executions/{id}/explain") => "vsaoA",
        ("GET", "/actions/{ref}" | "/actions/{ref}/queue-stats") => "vsaoA",
        ("GET", "/audit-log" | "/audit-log/check" | "/dead-letters" | "/dead-letters/{id}") => "oA",
        ("POST", "/dead-letters/{id}/requeue") => "oA",
        ("POST", "/executions" | "/executions/{id}/resubmit" | "/executions/{id}/cancel") => "soA",
        ("POST", "/executions/{id}/release") => "oA",
        ("PUT", "/actions/{ref}") => "aA",
        (_, path) if path.starts_with("/keys") || path.starts_with("/admin/") => "A",
        (_, path) if path.starts_with("/worker/") => "w",
        ("GET", _) => "vaoA",
        (_, path) if path.starts_with("/policies") => "aoA",
        (_, path) if path.starts_with("/pauses") => "oA",
        (_, path) if path.starts_with("/operations") => "oA",
        _ => panic!("who may use {method} {path}?"),
    }
}

#[tokio::test]
async fn every_endpoint_is_for_the_roles_that_may_use_it() {
    let api = api();
    api.fake.add_action("core.echo", |_| ());
    let mut keys = vec![];
    for role in Role::ALL {
        let letter = match role {
            Role::Admin => 'A',
            role => role.name().chars().next().unwrap(),
        };
        let mut grants = whole(role);
        let free = Rate {
            per_second: 100_000,
            burst: 100_000,
        };
        grants.rates.submit = Some(free);
        grants.rates.read = Some(free);
        grants.rates.change = Some(free);
        keys.push((letter, api.fake.add_key(role.name(), grants)));
    }
    for (method, path) in endpoints(&api).await {
        let may = matrix(&method, &path);
        let at = filled(&path);
        let nobody = api.ask("", &method, &at, None).await;
        match may {
            "-" => assert_eq!(nobody.status, 200, "{method} {path}"),
            _ => {
                assert_eq!(
                    nobody.error(),
                    (401, "UNAUTHENTICATED", ""),
                    "{method} {path}"
                );
                assert_eq!(nobody.header(header::WWW_AUTHENTICATE), "Bearer");
            }
        }
        for (letter, key) in &keys {
            if path == "/api/v1/events" && may.contains(*letter) {
                // It does not end; that it begins is looked at elsewhere.
                continue;
            }
            let answer = api.ask(key, &method, &at, None).await;
            let code = answer.body["error"]["code"].as_str().unwrap_or_default();
            let refused = answer.status == 403 && code == "FORBIDDEN";
            let expected = !(may.contains(*letter) || may == "-");
            assert_eq!(refused, expected, "{method} {path} {letter}: {answer:?}");
            assert_ne!(answer.status, 401, "{method} {path} {letter}");
            if refused {
                let message = answer.body["error"]["message"].as_str().unwrap();
                assert!(message.contains("lacks the permission `"), "{message}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_not_there_is_told_to_everybody() {
    let api = api();
    let method = api.ask("", "PATCH", "/api/v1/executions", None).await;
    assert_eq!(method.error(), (405, "METHOD_NOT_ALLOWED", ""));
    let unknown = api.ask("", "GET", "/api/v1/nothing", None).await;
    assert_eq!(unknown.error(), (404, "NOT_FOUND", ""));
}

/// What is not good is refused in the same words, whatever is wrong with it.
#[tokio::test]
async fn a_key_that_is_not_good_is_refused_without_saying_why() {
    let api = api();
    let good = api.fake.add_key("ann", whole(Role::Viewer));
    let revoked = api.fake.add_key("bob", whole(Role::Viewer));
    api.fake
        .with(|state| state.keys[1].standing = attune_store::KeyStanding::Revoked);
    let expired = api.fake.add_key("cay", whole(Role::Viewer));
    api.fake
        .with(|state| state.keys[2].standing = attune_store::KeyStanding::Expired);
    // The id of a good key with the secret of another.
    let id = good.parse::<Key>().unwrap().id().clone();
    let guessed = Key::fresh().unwrap();
    api.fake
        .with(|state| state.keys[0].hash = good.parse::<Key>().unwrap().hash());
    assert_ne!(guessed.id(), &id);
    let mut messages = vec![];
    for key in [&revoked, &expired, &guessed.expose(), "atk_nonsense"] {
        let answer = api.ask(key, "GET", "/api/v1/executions", None).await;
        assert_eq!(answer.error(), (401, "UNAUTHENTICATED", ""), "{key}");
        messages.push(answer.body["error"]["message"].clone());
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:?}");
    until(|| !api.fake.with(|state| state.noted.is_empty())).await;
    let noted = api.fake.with(|state| state.noted.clone());
    assert_eq!(noted.len(), 1, "one in a minute is written down: {noted:?}");
    assert_eq!(noted[0].what, attune_store::What::AuthDenied);
    assert_eq!(noted[0].who.origin.via, Some(attune_store::Via::Http));
    assert_eq!(
        api.ask(&good, "GET", "/api/v1/executions", None)
            .await
            .status,
        200
    );
    for value in ["Basic YTpi", "Bearer", "bearer  "] {
        let request = Request::get("/api/v1/executions").header(header::AUTHORIZATION, value);
        let answer = api.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.error(), (401, "UNAUTHENTICATED", ""), "{value}");
    }
    let twice = Request::get("/api/v1/executions")
        .header(header::AUTHORIZATION, format!("Bearer {good}"))
        .header(header::AUTHORIZATION, format!("Bearer {revoked}"));
    let answer = api.send(twice.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.error(), (401, "UNAUTHENTICATED", ""));
}

#[tokio::test]
async fn executions_have_the_name_of_the_key() {
    let api = api();
    api.fake.add_action("shop.echo", |_| ());
    api.fake.add_action("core.echo", |_| ());
    let mut grants = Grants::new([Role::Submitter]);
    grants.actions = vec!["shop.*".parse().unwrap()];
    let ann = api.fake.add_key("ann", grants.clone());
    grants.impersonate = true;
    let gateway = api.fake.add_key("gateway", grants);

    let own = api.submits(&ann, &json!({"action_ref": "shop.echo"})).await;
    assert_eq!(own.status, 201, "{own:?}");
    let other = json!({"action_ref": "shop.echo", "requested_by": "bob"});
    let refused = api.submits(&ann, &other).await;
    assert_eq!(refused.error(), (403, "FORBIDDEN", "requested_by"));
    let through = api.submits(&gateway, &other).await;
    assert_eq!(through.status, 201);
    let foreign = api.submits(&ann, &json!({"action_ref": "core.echo"})).await;
    assert_eq!(foreign.error(), (403, "FORBIDDEN", ""));
    let batch = json!([{"action_ref": "shop.echo"}, {"action_ref": "core.echo"}, other]);
    let batch = api.submits(&ann, &batch).await;
    let code = |at: usize| batch.body[at]["error"]["code"].clone();
    assert_eq!(
        (code(0), code(1), code(2)),
        (json!(null), json!("FORBIDDEN"), json!("FORBIDDEN"))
    );

    let names = api.fake.with(|state| {
        let named = state
            .submitted
            .iter()
            .map(|it| it.requested_by.clone().unwrap());
        named.collect::<Vec<_>>()
    });
    assert_eq!(names, ["ann", "bob", "ann"]);
}

/// Two who name their requests alike mean two requests, and neither hears of the other's.
#[tokio::test]
async fn requests_are_of_whoever_names_them() {
    let api = api();
    api.fake.add_action("core.echo", |_| ());
    let ann = api.fake.add_key("ann", Grants::new([Role::Submitter]));
    let bob = api.fake.add_key("bob", Grants::new([Role::Submitter]));
    let id = RequestId::fresh();
    let body = json!({"action_ref": "core.echo", "request_id": id});
    let first = api.submits(&ann, &body).await;
    let again = api.submits(&ann, &body).await;
    let other = api.submits(&bob, &body).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (201, 200));
    assert_eq!(other.status, 201);
    assert_eq!(first.body["id"], again.body["id"]);
    assert_ne!(first.body["id"], other.body["id"]);
    for answer in [&first, &again, &other] {
        assert_eq!(answer.body["request_id"], json!(id), "as it was named");
    }
}

#[tokio::test]
async fn who_only_submits_sees_only_its_own() {
    let api = api();
    api.fake.add_action("core.echo", |spec| {
        spec.env.insert("TOKEN".to_owned(), "secret".into());
    });
    let ann = api.fake.add_key("ann", Grants::new([Role::Submitter]));
    let viewer = api.fake.add_key("eve", Grants::new([Role::Viewer]));
    let of = |n: u32, who: &str| {
        let mut stored = record(n, Status::Succeeded, 1);
        stored.requested_by = Some(who.to_owned());
        let id = stored.id;
        api.fake.with(|state| state.executions.insert(id, stored));
        id
    };
    let (own, foreign) = (of(1, "ann"), of(2, "bob"));
    for path in ["", "/explain", "/cancel", "/resubmit"] {
        let method = if matches!(path, "" | "/explain") {
            "GET"
        } else {
            "POST"
        };
        let at = |id| format!("/api/v1/executions/{id}{path}");
        let hidden = api.ask(&ann, method, &at(foreign), None).await;
        assert_eq!(hidden.error(), (404, "UNKNOWN_EXECUTION", ""), "{path}");
        let shown = api.ask(&ann, method, &at(own), None).await;
        assert_ne!(shown.status, 404, "{path}: {shown:?}");
    }
    let list = api.ask(&ann, "GET", "/api/v1/executions", None).await;
    let ids: Vec<_> = list.body["executions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["id"].clone())
        .collect();
    assert_eq!(ids, [json!(own)]);
    let of_others = api
        .ask(&ann, "GET", "/api/v1/executions?user=bob", None)
        .await;
    assert_eq!(of_others.error(), (403, "FORBIDDEN", ""));
    let all = api.ask(&viewer, "GET", "/api/v1/executions", None).await;
    assert_eq!(all.body["executions"].as_array().unwrap().len(), 2);
    let action = api
        .ask(&ann, "GET", "/api/v1/actions/core.echo", None)
        .await;
    assert_eq!(action.status, 200);
    assert!(!action.body.to_string().contains("secret"), "{action:?}");
    let seen = api
        .ask(&viewer, "GET", "/api/v1/actions/core.echo", None)
        .await;
    assert!(seen.body.to_string().contains("secret"));
}

#[tokio::test]
async fn an_author_defines_what_its_key_is_for() {
    let api = api();
    let mut grants = Grants::new([Role::Author]);
    grants.actions = vec!["shop.*".parse().unwrap()];
    grants.pools = vec!["batch".parse().unwrap()];
    let key = api.fake.add_key("ann", grants);
    let spec =
        |action: &str, pool: &str| json!({"ref": action, "run": {"builtin": "echo"}, "pool": pool});
    let put = async |action: &str, pool: &str| {
        let path = format!("/api/v1/actions/{action}");
        api.ask(&key, "PUT", &path, Some(&spec(action, pool))).await
    };
    assert_eq!(put("shop.a", "batch").await.status, 201);
    assert_eq!(put("shop.b", "default").await.error().0, 403);
    assert_eq!(put("core.b", "batch").await.error().0, 403);
    // It may not take over what runs elsewhere.
    api.fake.add_action("shop.c", |_| ());
    assert_eq!(put("shop.c", "batch").await.error().0, 403);
    for (target, allowed) in [
        ("action/shop.a", true),
        ("pack/shop", true),
        ("action/core.echo", false),
        ("pack/core", false),
        ("user/ann", false),
        ("global", false),
    ] {
        let path = format!("/api/v1/policies/{target}?dry_run=true");
        let answer = api.ask(&key, "PUT", &path, Some(&json!({}))).await;
        assert_eq!(answer.status != 403, allowed, "{target}: {answer:?}");
    }
}

/// Who ends what somebody else has asked for is written down; one's own end is one's own affair.
#[tokio::test]
async fn who_cancels_is_written_down() {
    let api = api();
    api.fake.add_action("core.echo", |_| ());
    let operator = api.fake.add_key("olga", whole(Role::Operator));
    let ann = api.fake.add_key("ann", Grants::new([Role::Submitter]));
    for (number, key) in [(1, &ann), (2, &operator)] {
        let mut stored = record(number, Status::Queued, 1);
        stored.requested_by = Some("ann".to_owned());
        let path = format!("/api/v1/executions/{}/cancel", stored.id);
        api.fake
            .with(|state| state.executions.insert(stored.id, stored));
        let answer = api.ask(key, "POST", &path, None).await;
        assert_eq!(answer.status, 202, "{answer:?}");
    }
    let noted = api.fake.with(|state| state.noted.clone());
    let noted: Vec<_> = noted.iter().map(|it| (it.what, &*it.who)).collect();
    assert_eq!(noted, [(attune_store::What::Cancel, "olga")]);
    let origin = api.fake.with(|state| state.noted[0].who.origin.clone());
    assert_eq!(origin.kind, Some(attune_store::ActorKind::Key));
    assert_eq!(origin.via, Some(attune_store::Via::Http));
    assert!(origin.key.is_some_and(|key| operator.contains(&key)));
}

/// What is done is written down under the name of the key, whatever is said.
#[tokio::test]
async fn nobody_acts_under_another_name() {
    let api = api();
    api.fake.add_action("core.echo", |_| ());
    let key = api.fake.add_key("olga", whole(Role::Operator));
    let body = json!({"mode": "pause", "who": "alice.admin"});
    let held = api
        .ask(&key, "PUT", "/api/v1/pauses/action/core.echo", Some(&body))
        .await;
    assert_eq!(held.status, 200, "{held:?}");
    let path = "/api/v1/pauses/action/core.echo?who=alice.admin";
    assert_eq!(api.ask(&key, "DELETE", path, None).await.status, 200);
    let who = api.fake.with(|state| {
        let who = state.pause_changes.iter().map(|it| it.who.name.clone());
        who.collect::<Vec<_>>()
    });
    assert_eq!(who, ["olga", "olga"]);
}

/// Where no key is asked for, one that is shown counts all the same.
#[tokio::test]
async fn on_this_machine_a_key_is_not_needed() {
    let api = Api::new();
    let key = api.fake.add_key("eve", whole(Role::Viewer));
    assert_eq!(api.get("/api/v1/keys").await.status, 200);
    assert_eq!(
        api.ask(&key, "GET", "/api/v1/keys", None).await.error().1,
        "FORBIDDEN"
    );
    assert_eq!(
        api.ask("atk_x", "GET", "/api/v1/keys", None)
            .await
            .error()
            .0,
        401
    );
}

#[tokio::test]
async fn who_is_not_known_hears_only_whether_it_is_ready() {
    let api = api();
    let viewer = api.fake.add_key("eve", whole(Role::Viewer));
    api.fake
        .with(|state| state.probe = Some("the disk of db7 is full".to_owned()));
    let nobody = api.ask("", "GET", "/readyz", None).await;
    assert_eq!(
        (nobody.status.as_u16(), &nobody.body["ready"]),
        (503, &json!(false))
    );
    assert!(!nobody.body.to_string().contains("db7"), "{nobody:?}");
    let known = api.ask(&viewer, "GET", "/readyz", None).await;
    assert!(known.body.to_string().contains("db7"));
    assert_eq!(api.ask("", "GET", "/docs", None).await.status, 200);
}

/// What waits is counted over all partitions, and what was let in counts from then on.
#[tokio::test]
async fn a_key_has_so_many_waiting() {
    let api = api();
    api.fake.add_action("shop.echo", |_| ());
    let mut grants = Grants::new([Role::Submitter]);
    grants.max_waiting = Some(3);
    let ann = api.fake.add_key("ann", grants);
    api.fake.with(|state| state.waiting = 2);
    let one = json!({"action_ref": "shop.echo"});
    let batch = api.submits(&ann, &json!([one, one, one])).await;
    let code = |at: usize| batch.body[at]["error"]["code"].clone();
    let full = json!("USER_LIMIT_REACHED");
    assert_eq!(
        (code(0), code(1), code(2)),
        (json!(null), full.clone(), full)
    );
    let refused = api.submits(&ann, &one).await;
    assert_eq!(refused.error(), (429, "USER_LIMIT_REACHED", ""));
    assert!(
        refused
            .body
            .to_string()
            .contains("`max_waiting` of the key allows 3"),
        "{refused:?}"
    );
    // Whoever asks again for what was accepted hears of that, and not of the bound.
    let named = json!({"action_ref": "shop.echo", "request_id": RequestId::fresh()});
    api.fake.with(|state| state.waiting = 0);
    let deadline = Instant::now() + Duration::from_secs(10);
    while api.submits(&ann, &named).await.status == 429 {
        assert!(Instant::now() < deadline, "nobody counts again");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll
    }
    api.fake.with(|state| state.waiting = 3);
    let again = api.submits(&ann, &named).await;
    assert_eq!(
        (again.status, &again.body["repeated"]),
        (StatusCode::OK, &json!(true))
    );

    // What waits no longer is seen at once by whoever would be refused.
    api.fake.with(|state| state.waiting = 0);
    let deadline = Instant::now() + Duration::from_secs(10);
    while api.submits(&ann, &one).await.status != 201 {
        assert!(Instant::now() < deadline, "nobody counts again");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll
    }
}
