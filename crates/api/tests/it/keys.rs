//! Keys: what is known of them, how much they may ask for, how they are made and ended, and lives of workers.

use std::sync::Arc;
use std::time::Duration;

use attune_identity::{Grants, Key, Rate, Role};
use attune_runtime::Metrics;
use axum::http::header;
use serde_json::{Value, json};

use crate::harness::until;
use crate::keyed::{api, whole};

#[tokio::test(start_paused = true)]
async fn a_key_has_a_rate() {
    let api = api();
    api.fake.add_action("core.echo", |_| ());
    let mut grants = Grants::new([Role::Submitter]);
    grants.rates.submit = Some(Rate {
        per_second: 2,
        burst: 4,
    });
    let key = api.fake.add_key("ann", grants);
    let other = api.fake.add_key("bob", Grants::new([Role::Submitter]));
    let one = json!({"action_ref": "core.echo"});
    let batch = json!([one, one, one]);
    assert_eq!(api.submits(&key, &batch).await.status, 200);
    let refused = api.submits(&key, &batch).await;
    assert_eq!(refused.error(), (429, "RATE_LIMITED", ""));
    assert_eq!(refused.header(header::RETRY_AFTER), "1");
    assert_eq!(api.submits(&other, &batch).await.status, 200);
    assert_eq!(
        api.fake.with(|state| state.submitted.len()),
        6,
        "of the refused one nothing"
    );
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(api.submits(&key, &batch).await.status, 200);
    tokio::time::advance(Duration::from_secs(10)).await;
    let burst = json!([one, one, one, one]);
    assert_eq!(
        api.submits(&key, &burst).await.status,
        200,
        "as many as at once"
    );
}

#[tokio::test]
async fn who_is_not_let_in_is_counted() {
    let api = api();
    let metrics = Metrics::new();
    let figures = api.fake.with(|state| Arc::clone(&state.figures));
    figures.export(&metrics.meter("api"));
    let mut grants = whole(Role::Viewer);
    grants.rates.read = Some(Rate {
        per_second: 1,
        burst: 1,
    });
    let key = api.fake.add_key("ann", grants);
    let path = "/api/v1/executions";
    let submission = json!({"action_ref": "core.echo"});
    for (key, method, body, status) in [
        ("", "GET", None, 401),
        ("no key", "GET", None, 401),
        (key.as_str(), "POST", Some(&submission), 403),
        (key.as_str(), "GET", None, 200),
        (key.as_str(), "GET", None, 429),
    ] {
        assert_eq!(api.ask(key, method, path, body).await.status, status);
    }
    let text = metrics.render();
    for line in [
        "api_auth_failures_total{reason=\"unauthenticated\"} 2",
        "api_auth_failures_total{reason=\"forbidden\"} 1",
        "api_rate_limited_total{route=\"/api/v1/executions\"} 1",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
}

#[tokio::test]
async fn keys_are_made_rotated_and_revoked() {
    let api = api();
    let admin = api.fake.add_key("root", whole(Role::Admin));
    let asked = json!({"name": "ci", "roles": ["submitter"], "actions": ["shop.*"], "lifetime_seconds": 60});
    let made = api.ask(&admin, "POST", "/api/v1/keys", Some(&asked)).await;
    assert_eq!(made.status, 201, "{made:?}");
    let key = made.body["key"].as_str().unwrap();
    assert_eq!(
        api.ask(key, "GET", "/api/v1/executions", None).await.status,
        200
    );
    let twice = api.ask(&admin, "POST", "/api/v1/keys", Some(&asked)).await;
    assert_eq!(twice.error(), (409, "CONFLICT", ""));
    let path = format!("/api/v1/keys/{}", made.body["id"].as_str().unwrap());
    let rotate = format!("{path}/rotate");
    let rotated = api
        .ask(
            &admin,
            "POST",
            &rotate,
            Some(&json!({"overlap_seconds": 60})),
        )
        .await;
    assert_eq!(rotated.status, 201);
    let fresh = rotated.body["key"].as_str().unwrap();
    for key in [key, fresh] {
        assert_eq!(
            api.ask(key, "GET", "/api/v1/executions", None).await.status,
            200
        );
    }
    assert_eq!(api.ask(&admin, "DELETE", &path, None).await.status, 204);
    let list = api.ask(&admin, "GET", "/api/v1/keys", None).await;
    let states: Vec<_> = list.body["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["state"].clone())
        .collect();
    assert_eq!(states, ["good", "revoked", "good"]);
    for secret in [key, fresh, &admin] {
        assert!(
            !list.body.to_string().contains(&secret[17..]),
            "no secret is told again"
        );
    }
    for (body, field) in [
        (json!({"name": "a b", "roles": ["viewer"]}), "name"),
        (json!({"name": "a", "roles": []}), "roles"),
        (json!({"name": "a", "roles": ["root"]}), "roles.0"),
        (json!({"name": "a", "roles": ["author"]}), "pools"),
        (
            json!({"name": "a", "roles": ["viewer"], "actions": ["*.x"]}),
            "actions.0",
        ),
        (
            json!({"name": "a", "roles": ["viewer"], "lifetime_seconds": 0}),
            "lifetime_seconds",
        ),
        (
            json!({"name": "a", "roles": ["viewer"], "rates": {"read": {"per_second": 0, "burst": 1}}}),
            "rates.read",
        ),
    ] {
        let answer = api.ask(&admin, "POST", "/api/v1/keys", Some(&body)).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", field), "{body}");
    }
    let unknown = api
        .ask(&admin, "DELETE", "/api/v1/keys/000000000000", None)
        .await;
    assert_eq!(unknown.error(), (404, "UNKNOWN_KEY", ""));
}

/// A life of a worker is of whoever has registered it.
#[tokio::test]
async fn nobody_ends_the_life_of_anothers_worker() {
    let api = api();
    let mut grants = Grants::new([Role::Worker]);
    grants.pools = vec!["batch".parse().unwrap()];
    let ann = api.fake.add_key("ann", grants.clone());
    let bob = api.fake.add_key("bob", grants);
    let worker = attune_core::WorkerId::fresh();
    let lease = |pool: &str| json!({"worker": worker, "name": "w", "pool": pool, "slots": 1, "lease_seconds": 60});
    let post = async |key: &str, path: &str, body: Value| {
        let path = format!("/api/v1/worker/{path}");
        api.ask(key, "POST", &path, Some(&body)).await
    };
    let elsewhere = post(&ann, "lease", lease("default")).await;
    assert_eq!(elsewhere.error(), (403, "FORBIDDEN", ""));
    assert_eq!(post(&ann, "lease", lease("batch")).await.status, 200);
    let owner = api.fake.with(|state| state.leases[0].principal.clone());
    assert_eq!(owner.as_deref(), Some("ann"));
    let retire = json!({"worker": worker});
    assert_eq!(
        post(&bob, "retire", retire.clone()).await.error(),
        (403, "FORBIDDEN", "")
    );
    assert_eq!(post(&ann, "retire", retire).await.status, 204);
}

/// A key that was revoked is refused once what is known of it is old; and who guesses has to wait, but not
/// whose key is known.
#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_key_is_read_again() {
    let api = api();
    let key = api.fake.add_key("ann", whole(Role::Viewer));
    let looks = async || {
        api.ask(&key, "GET", "/api/v1/executions", None)
            .await
            .status
    };
    for _ in 0..20 {
        assert_eq!(looks().await, 200);
    }
    assert_eq!(api.fake.with(|state| state.key_reads), 1);
    until(|| api.fake.with(|state| state.keys[0].last_used.is_some())).await;

    for _ in 0..30 {
        let guess = Key::fresh().unwrap().expose();
        let answer = api.ask(&guess, "GET", "/api/v1/executions", None).await;
        assert!(matches!(answer.status.as_u16(), 401 | 429), "{answer:?}");
    }
    let reads = api.fake.with(|state| state.key_reads);
    assert!(reads <= 12, "guesses ask the store: {reads}");
    let guess = Key::fresh().unwrap().expose();
    let answer = api.ask(&guess, "GET", "/api/v1/executions", None).await;
    assert_eq!(answer.error(), (429, "RATE_LIMITED", ""));
    assert_eq!(answer.header(header::RETRY_AFTER), "60");
    assert_eq!(looks().await, 200);

    // The store is away: who was let in a moment ago is let in for a while.
    api.fake.with(|state| state.store_down = true);
    tokio::time::advance(Duration::from_secs(30)).await;
    let answer = api.ask(&key, "GET", "/metrics", None).await;
    assert_eq!(answer.error().1, "FORBIDDEN");
    tokio::time::advance(Duration::from_secs(40)).await;
    let answer = api.ask(&key, "GET", "/metrics", None).await;
    assert_eq!(answer.error().1, "STORE_UNAVAILABLE");
    api.fake.with(|state| state.store_down = false);
    assert_eq!(looks().await, 200);

    api.fake
        .with(|state| state.keys[0].standing = attune_store::KeyStanding::Revoked);
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(looks().await, 401);
}

/// Who listens was let in once; that does not outlast its key.
#[tokio::test(start_paused = true)]
async fn a_stream_of_events_ends_with_its_key() {
    let api = api();
    let key = api.fake.add_key("eve", whole(Role::Viewer));
    assert_eq!(
        api.ask(&key, "GET", "/api/v1/actions", None).await.status,
        200
    );
    api.fake
        .with(|state| state.keys[0].standing = attune_store::KeyStanding::Revoked);
    // What was known a moment ago lets it in; the whole answer is there when the server has ended it.
    let heard = api.ask(&key, "GET", "/api/v1/events", None).await;
    assert_eq!((heard.status.as_u16(), heard.body), (200, json!(":\n\n")));
}
