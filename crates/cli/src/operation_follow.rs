//! Waiting for the end of an operation, and what is said to whoever waits.
//!
//! An operation goes on whether anybody waits or not, and for as long as a partition has no executor it
//! cannot end: so the wait has an end of its own, and says who is missing.

use std::io::{self, Write as _};
use std::time::Duration;

use attune_api_types::{Cluster, OperationFilter, OperationState, OperationView};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::Failure;
use super::http::{CallError, Http};

/// How often it is asked how far an operation is.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// After so long it is said that it goes on by itself.
const TOLD_AFTER: Duration = Duration::from_secs(3);
/// How long the look at the end of the wait may take.
const LAST_LOOK: Duration = Duration::from_millis(500);
/// How long finding out who is missing may take.
const REMARKS: Duration = Duration::from_secs(1);
/// How much longer than the wait the first answer may take.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// How wide the bar is.
const BAR: usize = 30;

/// How long whoever asks is willing to wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// In whole seconds, as it was asked for.
    seconds: u64,
    until: Instant,
}

impl Patience {
    /// So many seconds from now on.
    pub(super) fn of(seconds: u64) -> Self {
        Self {
            seconds,
            until: Instant::now() + Duration::from_secs(seconds),
        }
    }

    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.until
    }

    /// When whoever asks for something gives up on the answer: the server takes its time for the first.
    pub(super) fn for_the_first_answer(self) -> Instant {
        self.until + FIRST_ANSWER
    }
}

/// An operation, and where it is not over, what to say of that.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) now: OperationView,
    pub(super) not_over: Option<String>,
}

/// Waits for the end of an operation, as long as the patience lasts. Where it is `expected` how many
/// executions it is about, people see a bar.
pub(super) async fn to_its_end(
    http: &Http,
    mut now: OperationView,
    patience: Patience,
    expected: Option<u64>,
) -> Result<Followed, Failure> {
    let mut bar = Bar::new(expected);
    let told_at = Instant::now() + TOLD_AFTER;
    let mut told = false;
    while now.state == OperationState::Running && !patience.is_over() {
        bar.show(&now);
        sleep_until((Instant::now() + LOOK_EVERY).min(patience.until)).await;
        if !told && Instant::now() >= told_at && !patience.is_over() {
            told = true;
            let missing = missing(http, &now).await;
            bar.end();
            // Nobody is harmed when it is not read.
            drop(writeln!(
                io::stderr(),
                "attune: {}",
                goes_on(&now, patience.seconds, &missing)
            ));
        }
        match look(http, &now, patience).await {
            Ok(later) => now = later,
            Err(error @ CallError::Refused(_)) => return Err(error.into()),
            // It goes on without anybody who looks, and may be seen again in a moment.
            Err(error) if patience.is_over() => {
                bar.end();
                return Err(Failure::unknown(cannot_be_seen(&now, &error)));
            }
            Err(_) => {}
        }
    }
    bar.end();
    let not_over = match now.state {
        OperationState::Done => None,
        OperationState::Running => {
            let missing = missing(http, &now).await;
            Some(not_over(&now, patience.seconds, &missing))
        }
    };
    Ok(Followed { now, not_over })
}

/// One look. That the last one gets no answer in time is the end of the wait, and no failure.
async fn look(
    http: &Http,
    now: &OperationView,
    patience: Patience,
) -> Result<OperationView, CallError> {
    let path = format!("/operations/{}", now.id);
    let answer = http.get(&path, &[]);
    match timeout_at(patience.until + LAST_LOOK, answer).await {
        Ok(answer) => answer,
        Err(_) => Ok(now.clone()),
    }
}

/// How whoever has an operation's number looks at it.
pub(super) fn how_to_look(operation: &OperationView) -> String {
    format!(
        "`attune operations show {}` says how far it is",
        operation.id
    )
}

fn cannot_be_seen(operation: &OperationView, error: &CallError) -> String {
    format!(
        "operation {} goes on by itself, and it cannot be seen how far it is: {error}; later {}",
        operation.id,
        how_to_look(operation)
    )
}

/// What whoever waits for it should know.
fn goes_on(operation: &OperationView, seconds: u64, missing: &Missing) -> String {
    format!(
        "operation {} goes on by itself, whether this command waits ({seconds} s at most: --wait) or not; \
         {}{}",
        operation.id,
        how_to_look(operation),
        missing.words(operation)
    )
}

/// What whoever waits no longer should know.
fn not_over(operation: &OperationView, seconds: u64, missing: &Missing) -> String {
    let after = match seconds {
        0 => String::new(),
        seconds => format!(" after {seconds} s"),
    };
    format!(
        "operation {} is not over{after}, and goes on by itself; {}{}",
        operation.id,
        how_to_look(operation),
        missing.words(operation)
    )
}

/// Who is missing that should carry an operation out.
#[derive(Debug, PartialEq, Eq)]
enum Missing {
    /// It could not be seen.
    Unknown,
    Nobody,
    /// No executor lives.
    Executors,
    /// Of so many partitions that it is about, so many have no executor.
    Owners {
        of: usize,
        without: usize,
    },
}

impl Missing {
    fn words(&self, operation: &OperationView) -> String {
        let cannot_be_stored = "a worker has not given back what it was granted ahead, or what it does cannot be stored \
                                (`attune queues` says which of the queues there)";
        match self {
            Self::Executors => {
                "; no executor lives (`attune cluster`): nothing is done until one is started"
                    .to_owned()
            }
            Self::Owners { of, without } => format!(
                "; {without} of the {of} partitions that it is about have no executor (`attune cluster`): \
                 what it does there waits for one"
            ),
            Self::Nobody | Self::Unknown if operation.matched > 0 => String::new(),
            Self::Nobody => format!("; nothing is found yet: it may be that {cannot_be_stored}"),
            Self::Unknown => format!(
                "; nothing is found yet: it waits where a partition has no executor (`attune cluster`), and \
                 where {cannot_be_stored}"
            ),
        }
    }
}

/// What is to be said of an operation that is not over, if somebody is missing.
pub(super) async fn who_is_missing(http: &Http, operation: &OperationView) -> Option<String> {
    let words = missing(http, operation).await.words(operation);
    let words = words.trim_start_matches("; ");
    (!words.is_empty()).then(|| words.to_owned())
}

async fn missing(http: &Http, operation: &OperationView) -> Missing {
    match timeout(REMARKS, http.get::<Cluster>("/cluster", &[])).await {
        Ok(Ok(cluster)) => missing_of(&cluster, operation),
        _ => Missing::Unknown,
    }
}

fn missing_of(cluster: &Cluster, operation: &OperationView) -> Missing {
    if cluster
        .executors
        .iter()
        .all(|it| it.lease_remaining_ms == 0)
    {
        return Missing::Executors;
    }
    let (Ok(count), Some(filter)) = (
        u16::try_from(cluster.partitions.len()),
        filter_of(&operation.filter),
    ) else {
        return Missing::Unknown;
    };
    let concerned = filter.partitions(count);
    let of = concerned.len();
    let without = cluster
        .partitions
        .iter()
        .filter(|it| concerned.contains(&it.partition))
        .filter(|it| it.owner.is_none() || it.lease_remaining_ms == 0)
        .count();
    match without {
        0 => Missing::Nobody,
        without => Missing::Owners { of, without },
    }
}

/// A filter as the server goes by it; `None` where a later release says what this one cannot read.
pub(super) fn filter_of(filter: &OperationFilter) -> Option<attune_core::OperationFilter> {
    let action = filter.action.as_ref().map(|it| it.parse());
    Some(attune_core::OperationFilter {
        action: action.transpose().ok()?,
        pack: filter.pack.clone(),
        user: filter.user.clone(),
        labels: filter.labels.clone(),
        priority: filter.priority,
        ids: filter.ids.iter().copied().collect(),
        all: filter.all,
    })
}

/// A bar on stderr, for people.
struct Bar {
    expected: Option<u64>,
    was_shown: bool,
}

impl Bar {
    fn new(expected: Option<u64>) -> Self {
        Self {
            expected,
            was_shown: false,
        }
    }

    fn show(&mut self, now: &OperationView) {
        if let Some(expected) = self.expected {
            self.was_shown = true;
            // Nobody is harmed when it is not seen.
            drop(write!(io::stderr(), "\r{}", bar(now.matched, expected)));
        }
    }

    fn end(&self) {
        if self.was_shown {
            drop(write!(io::stderr(), "\r\x1b[K"));
        }
    }
}

fn bar(matched: u64, expected: u64) -> String {
    let expected = expected.max(matched).max(1);
    let filled = usize::try_from(matched * BAR as u64 / expected).unwrap_or(BAR);
    format!(
        "[{}{}] {matched} of about {expected}",
        "#".repeat(filled),
        "-".repeat(BAR - filled)
    )
}

#[cfg(test)]
mod tests {
    use attune_api_types::{ExecutorView, OperationName, PartitionView};
    use attune_core::{Epoch, ExecutionId, OperationId, OwnerId, PartitionId, RequestId};
    use chrono::DateTime;

    use super::*;

    fn operation(filter: OperationFilter) -> OperationView {
        OperationView {
            id: OperationId(7),
            kind: OperationName::Clear,
            filter,
            unknown: None,
            priority: None,
            include_running: false,
            who: "ann".to_owned(),
            reason: None,
            created: DateTime::from_timestamp(1_800_000_000, 0).unwrap(),
            request_id: RequestId::fresh(),
            state: OperationState::Running,
            partitions: 4,
            partitions_done: 0,
            matched: 0,
            done: 0,
            skipped: 0,
        }
    }

    fn all() -> OperationFilter {
        OperationFilter {
            all: true,
            ..OperationFilter::default()
        }
    }

    /// Four partitions, of which the first so many have a living owner.
    fn cluster(owned: u16) -> Cluster {
        let owner = OwnerId::fresh();
        let partitions = (0..4).map(|number| PartitionView {
            partition: PartitionId(number),
            owner: Some(owner),
            owner_name: Some("one".to_owned()),
            epoch: Epoch(3),
            lease_remaining_ms: if number < owned { 9_000 } else { 0 },
        });
        Cluster {
            executors: vec![ExecutorView {
                id: owner,
                name: "one".to_owned(),
                partitions: 4,
                lease_remaining_ms: if owned > 0 { 9_000 } else { 0 },
                cut_off: false,
            }],
            partitions: partitions.collect(),
            workers: Vec::new(),
            workers_left_out: 0,
        }
    }

    #[test]
    fn it_is_seen_who_is_missing() {
        let of = |owned, filter| missing_of(&cluster(owned), &operation(filter));
        assert_eq!(of(0, all()), Missing::Executors);
        assert_eq!(of(4, all()), Missing::Nobody);
        assert_eq!(of(3, all()), Missing::Owners { of: 4, without: 1 });
        // Only the partitions that it is about count.
        let action = |name: &str| OperationFilter {
            action: Some(name.to_owned()),
            ..OperationFilter::default()
        };
        let home = PartitionId::of("core.echo", 4).0;
        assert_eq!(of(home + 1, action("core.echo")), Missing::Nobody);
        if home > 0 {
            let without = Missing::Owners { of: 1, without: 1 };
            assert_eq!(of(home, action("core.echo")), without);
        }
        assert_eq!(of(4, action("no ref")), Missing::Unknown);
        let nobody = Cluster {
            executors: Vec::new(),
            ..cluster(0)
        };
        assert_eq!(missing_of(&nobody, &operation(all())), Missing::Executors);
    }

    #[test]
    fn whoever_waits_is_told_how_to_look_and_who_is_missing() {
        let one = operation(all());
        assert_eq!(
            not_over(&one, 60, &Missing::Executors),
            "operation 7 is not over after 60 s, and goes on by itself; `attune operations show 7` says how far \
             it is; no executor lives (`attune cluster`): nothing is done until one is started"
        );
        let words = not_over(&one, 0, &Missing::Owners { of: 4, without: 1 });
        assert!(
            words.starts_with("operation 7 is not over, and goes on"),
            "{words}"
        );
        assert!(words.contains("1 of the 4 partitions"), "{words}");
        let words = goes_on(&one, 60, &Missing::Unknown);
        assert!(words.contains("(60 s at most: --wait)"), "{words}");
        assert!(
            words.contains("nothing is found yet: it waits where"),
            "{words}"
        );
        // Of what is under way there is nothing more to say.
        let mut later = one;
        later.matched = 3;
        let words = not_over(&later, 1, &Missing::Nobody);
        assert!(words.ends_with("says how far it is"), "{words}");
    }

    #[test]
    fn a_filter_is_read_as_the_server_reads_it() {
        let filter = OperationFilter {
            user: Some("ann".to_owned()),
            ids: vec![ExecutionId(9), ExecutionId(9)],
            ..OperationFilter::default()
        };
        let read = filter_of(&filter).unwrap();
        assert_eq!(read.to_string(), "user ann, ids 9");
    }

    #[test]
    fn a_bar_is_as_full_as_what_was_found() {
        assert_eq!(bar(0, 10), format!("[{}] 0 of about 10", "-".repeat(30)));
        assert!(bar(5, 10).starts_with(&format!("[{}-", "#".repeat(15))));
        // More may come than was counted before.
        assert_eq!(bar(20, 10), format!("[{}] 20 of about 20", "#".repeat(30)));
    }
}
