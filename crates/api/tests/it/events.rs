//! What happens, as it is told to whoever listens.

use attune_bus::{Bus as _, MemoryBus, Outgoing, Topic};
use attune_core::ActionId;
use attune_core::policy::EventKind;
use attune_messages::encode;
use attune_messages::v1::ActionEvent;
use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode, header};
use chrono::DateTime;
use futures_util::StreamExt as _;
use tower::ServiceExt as _;
use uuid::Uuid;

use crate::harness::Api;

async fn listen(api: &Api, query: &str) -> BodyDataStream {
    let request = Request::get(format!("/api/v1/events{query}"));
    let request = request.body(Body::empty()).unwrap();
    let response = api.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "text/event-stream"
    );
    response.into_body().into_data_stream()
}

async fn heard(listener: &mut BodyDataStream) -> String {
    let bytes = listener.next().await.unwrap().unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn tell(bus: &MemoryBus, kind: EventKind, action_ref: &str) {
    let at = DateTime::from_timestamp_millis(1_767_323_045_678).unwrap();
    let event = ActionEvent::new(kind, at, ActionId(7), action_ref.to_owned());
    let (id, topic) = (Uuid::now_v7(), Topic::Event(kind));
    let body = encode(id, at, &[event]);
    bus.publish(vec![Outgoing::new(topic, id, body)])
        .await
        .unwrap();
}

#[tokio::test]
async fn each_hears_what_it_asks_for() {
    let api = Api::new();
    let bus = api.fake.with(|state| state.bus.clone());
    api.fake.add_action("a.b", |_| ());
    let unknown = api.get("/api/v1/events?action=a.none").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert_eq!(unknown.body["error"]["code"], "UNKNOWN_ACTION");
    let mut all = listen(&api, "").await;
    let mut some = listen(&api, "?action=a.b&kind=finished,paused").await;
    tell(&bus, EventKind::Finished, "a.c").await;
    tell(&bus, EventKind::Started, "a.b").await;
    tell(&bus, EventKind::Paused, "a.b").await;
    for kind in ["finished", "started", "paused"] {
        let said = heard(&mut all).await;
        assert!(
            said.starts_with(&format!("event: {kind}\ndata: {{")),
            "{said}"
        );
    }
    let expected = "event: paused\ndata: {\"kind\":\"paused\",\"at\":\"2026-01-02T03:04:05.678Z\",\
        \"action_id\":7,\"action_ref\":\"a.b\"}\n\n";
    assert_eq!(heard(&mut some).await, expected);
}

#[tokio::test]
async fn what_cannot_be_listened_to_is_refused_and_so_is_one_too_many() {
    let api = Api::new();
    for (query, field) in [
        ("kind=ended", "kind"),
        ("action=x", "action"),
        ("from=1", "from"),
    ] {
        let answer = api.get(&format!("/api/v1/events?{query}")).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", field), "{query}");
    }
    let mut listeners = Vec::new();
    for _ in 0..64 {
        listeners.push(listen(&api, "").await);
    }
    let answer = api.get("/api/v1/events").await;
    assert_eq!(answer.error(), (503, "OVERLOADED", ""));
    // Who goes makes room.
    listeners.pop();
    listeners.push(listen(&api, "").await);
}

#[tokio::test]
async fn without_a_bus_nobody_listens_and_who_does_is_told_by_the_end() {
    let api = Api::new();
    let bus = api.fake.with(|state| state.bus.clone());
    let mut listener = listen(&api, "").await;
    bus.close().await;
    assert!(listener.next().await.is_none());
    let answer = api.get("/api/v1/events").await;
    assert_eq!(answer.error(), (503, "NO_EVENTS", ""));
}
