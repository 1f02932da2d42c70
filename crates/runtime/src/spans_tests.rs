use std::sync::mpsc;

use opentelemetry_sdk::error::OTelSdkError;

use super::*;

const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Gives what it is to export to a test, and takes each batch when the test says so.
#[derive(Debug)]
struct Watched {
    batches: Mutex<mpsc::Sender<Vec<SpanData>>>,
    answers: Mutex<mpsc::Receiver<OTelSdkResult>>,
}

impl Exports for Watched {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.batches.lock().unwrap().send(batch).ok();
        self.answers.lock().unwrap().recv().unwrap_or(Ok(()))
    }
}

type Watch = (mpsc::Receiver<Vec<SpanData>>, mpsc::Sender<OTelSdkResult>);

fn watched(ratio: f64) -> (Spans, Watch) {
    let (batches, taken) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    let exporter = Watched {
        batches: Mutex::new(batches),
        answers: Mutex::new(answers),
    };
    let resource = Resource::builder_empty().build();
    (Spans::to(exporter, &resource, ratio), (taken, answer))
}

fn given() -> TraceParent {
    TraceParent::parse(GIVEN).unwrap()
}

fn span(of: TraceParent, parent: Option<TraceParent>) -> EndedSpan {
    let began = SystemTime::UNIX_EPOCH + Duration::from_secs(7);
    EndedSpan {
        name: "run",
        kind: SpanKind::Internal,
        span: of,
        parent,
        began,
        ended: began + Duration::from_secs(1),
        attributes: vec![Label::new("attune.attempt", 1)],
        failed: Some("exit code 3".to_owned()),
    }
}

fn next(taken: &mpsc::Receiver<Vec<SpanData>>) -> Vec<SpanData> {
    taken.recv_timeout(Duration::from_secs(30)).unwrap()
}

#[test]
fn a_span_is_sent_with_its_times_and_the_one_above() {
    let (spans, (taken, _answer)) = watched(0.0);
    let own = given().below([7; 8]);
    // Nobody wants this one.
    spans.ended(span(
        TraceParent::parse(&GIVEN.replace("-01", "-00")).unwrap(),
        None,
    ));
    spans.ended(span(own, Some(given())));
    let batch = next(&taken);
    assert_eq!(batch.len(), 1);
    let sent = &batch[0];
    assert_eq!(
        sent.span_context.trace_id().to_string(),
        given().trace_id().to_string()
    );
    assert_eq!(sent.span_context.span_id().to_bytes(), [7; 8]);
    assert_eq!(sent.parent_span_id.to_bytes(), given().span_id());
    let began = SystemTime::UNIX_EPOCH + Duration::from_secs(7);
    assert_eq!(
        (sent.start_time, sent.end_time),
        (began, began + Duration::from_secs(1))
    );
    assert_eq!(sent.status, Status::error("exit code 3"));
}

#[test]
fn what_a_collector_does_not_take_is_dropped_and_counted_and_holds_up_nobody() {
    let (spans, (taken, answer)) = watched(0.0);
    let figures = spans.0.as_ref().unwrap().figures.clone();
    spans.ended(span(given(), None));
    // The collector has this batch, and does not answer.
    assert_eq!(next(&taken).len(), 1);
    for _ in 0..WAITING + 9 {
        spans.ended(span(given(), None));
    }
    assert_eq!(figures.dropped.get(), 10);
    assert_eq!(figures.waiting.load(Ordering::Acquire), WAITING);
    answer
        .send(Err(OTelSdkError::InternalFailure("no".to_owned())))
        .unwrap();
    // From here on it takes everything.
    drop(answer);
    spans.end();
    assert_eq!(figures.waiting.load(Ordering::Acquire), 0);
    assert_eq!(figures.dropped.get(), 11);
    assert_eq!(figures.sent.get(), WAITING as u64 - 1);
}

#[test]
fn a_request_begins_a_trace_only_where_chance_has_it() {
    let silent = TraceParent::parse(&GIVEN.replace("-01", "-00"));
    let (never, _) = watched(0.0);
    let (always, _) = watched(1.0);
    assert_eq!(never.of_request(None), None);
    let begun = always.of_request(None).unwrap();
    assert!(begun.is_sampled() && Some(begun) != always.of_request(None));
    for spans in [&never, &always] {
        assert_eq!(spans.of_request(silent), None);
        let below = spans.of_request(Some(given())).unwrap();
        assert_eq!(below.trace_id(), given().trace_id());
        assert_ne!(below.span_id(), given().span_id());
        assert!(spans.wants(&given()) && !spans.wants(&silent.unwrap()));
    }
    // Where nothing is sent, no trace begins.
    let off = Spans::default();
    assert_eq!(off.of_request(Some(given())), None);
    assert!(!off.wants(&given()));
    off.ended(span(given(), None));
    off.end();
}
