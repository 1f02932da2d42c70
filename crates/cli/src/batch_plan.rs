//! Which lines of a file are sent next: decisions only, no I/O and no clock.
//!
//! The lines of one action keep their order, because the queue is first in, first out: of each
//! action, lines are in at most one batch that is under way. Lines of different actions go side
//! by side. A line that was refused for now (its queue is full, the server is away) holds back
//! the later lines of its action and nothing else; those that were in the same batch and found
//! room stay accepted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use attune_api_types::{ErrorDetail, Submitted};

/// The bounds of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// How many lines it holds at most.
    pub(super) lines: usize,
    /// How many bytes it holds at most; a line that is larger goes alone.
    pub(super) bytes: usize,
    /// A line that is refused for now is given up after so long.
    pub(super) give_up_after: Duration,
}

/// A line to be sent.
#[derive(Debug)]
pub(super) struct Item {
    /// The action's ref.
    pub(super) action_ref: String,
    /// The submission in JSON.
    pub(super) body: String,
}

/// What became of a line in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    Accepted(Submitted),
    /// The server refused it for good, or kept refusing it for too long.
    Refused(ErrorDetail),
    /// Nobody could say whether it was accepted, for too long.
    Unknown(ErrorDetail),
}

/// What one attempt gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Attempt {
    Final(Fate),
    /// Try again after a pause; `unknown` when it may have been accepted.
    Later {
        detail: ErrorDetail,
        pause: Duration,
        unknown: bool,
    },
}

/// A batch under way: the places of its lines, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch(pub(super) Vec<usize>);

#[derive(Debug, Default)]
struct Lane {
    /// The places of the lines that are still to be sent, in order.
    waiting: VecDeque<usize>,
    under_way: bool,
    /// Nothing of this action is sent before.
    not_before: Option<Instant>,
}

/// All lines of a file and where they stand.
#[derive(Debug)]
pub(super) struct Plan {
    bounds: Bounds,
    items: Vec<Item>,
    fates: Vec<Option<Fate>>,
    /// When a line was first refused for now.
    first_refused: BTreeMap<usize, Instant>,
    /// Lines that may have been accepted already.
    maybe: Vec<bool>,
    lanes: Vec<Lane>,
    lane_of: Vec<usize>,
    open: usize,
}

impl Plan {
    pub(super) fn new(items: Vec<Item>, bounds: Bounds) -> Self {
        let mut lanes: Vec<Lane> = Vec::new();
        let mut by_ref: BTreeMap<String, usize> = BTreeMap::new();
        let mut lane_of = Vec::with_capacity(items.len());
        for (place, item) in items.iter().enumerate() {
            let lane = *by_ref.entry(item.action_ref.clone()).or_insert_with(|| {
                lanes.push(Lane::default());
                lanes.len() - 1
            });
            lanes[lane].waiting.push_back(place);
            lane_of.push(lane);
        }
        Self {
            bounds,
            fates: items.iter().map(|_| None).collect(),
            maybe: vec![false; items.len()],
            first_refused: BTreeMap::new(),
            open: items.len(),
            items,
            lanes,
            lane_of,
        }
    }

    /// The next lines in the order of the file, of actions with nothing under way.
    pub(super) fn next_batch(&mut self, now: Instant) -> Option<Batch> {
        let mut heads: BinaryHeap<Reverse<usize>> = self
            .lanes
            .iter()
            .filter(|lane| !lane.under_way && lane.not_before.is_none_or(|at| at <= now))
            .filter_map(|lane| lane.waiting.front().copied().map(Reverse))
            .collect();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(Reverse(place)) = heads.pop() {
            let size = self.items[place].body.len() + 1;
            let fits = batch.is_empty()
                || (batch.len() < self.bounds.lines && bytes + size <= self.bounds.bytes);
            if !fits {
                break;
            }
            bytes += size;
            batch.push(place);
            let lane = &mut self.lanes[self.lane_of[place]];
            lane.waiting.pop_front();
            lane.under_way = true;
            heads.extend(lane.waiting.front().copied().map(Reverse));
        }
        (!batch.is_empty()).then_some(Batch(batch))
    }

    /// The body of a request with these lines.
    pub(super) fn body(&self, batch: &Batch) -> String {
        let bodies: Vec<&str> = batch
            .0
            .iter()
            .map(|place| self.items[*place].body.as_str())
            .collect();
        format!("[{}]", bodies.join(","))
    }

    /// Takes over what the attempt gave for each line of a batch.
    pub(super) fn settle(&mut self, batch: Batch, attempts: Vec<Attempt>, now: Instant) {
        debug_assert_eq!(batch.0.len(), attempts.len());
        // From the last to the first, so that what goes back stands in its old order.
        for (place, attempt) in batch.0.into_iter().zip(attempts).rev() {
            self.lanes[self.lane_of[place]].under_way = false;
            match attempt {
                Attempt::Final(fate) => self.close(place, fate),
                Attempt::Later {
                    detail,
                    pause,
                    unknown,
                } => {
                    self.maybe[place] |= unknown;
                    let since = *self.first_refused.entry(place).or_insert(now);
                    let left = (since + self.bounds.give_up_after).saturating_duration_since(now);
                    if left.is_zero() {
                        let maybe = self.maybe[place];
                        let fate = if maybe {
                            Fate::Unknown(detail)
                        } else {
                            Fate::Refused(detail)
                        };
                        self.close(place, fate);
                        continue;
                    }
                    let lane = &mut self.lanes[self.lane_of[place]];
                    lane.waiting.push_front(place);
                    // The last try comes when the time is over.
                    let at = now + pause.min(left);
                    lane.not_before = Some(lane.not_before.map_or(at, |other| other.max(at)));
                }
            }
        }
    }

    /// The server takes less at once than thought: a batch was too large, its lines go again.
    pub(super) fn shrink(&mut self, batch: Batch) {
        self.bounds.lines = (batch.0.len() / 2).max(1);
        for place in batch.0.into_iter().rev() {
            let lane = &mut self.lanes[self.lane_of[place]];
            lane.under_way = false;
            lane.waiting.push_front(place);
        }
    }

    fn close(&mut self, place: usize, fate: Fate) {
        self.fates[place] = Some(fate);
        self.open -= 1;
    }

    /// When the next action that has to pause may go on.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        let pausing = self
            .lanes
            .iter()
            .filter(|lane| !lane.under_way && !lane.waiting.is_empty());
        pausing.filter_map(|lane| lane.not_before).min()
    }

    /// How many lines have no fate yet.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// What became of each line, in order; `None` for those that were never settled.
    pub(super) fn into_fates(self) -> Vec<Option<Fate>> {
        self.fates
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use attune_core::{ExecutionId, RequestId, Status};

    use super::*;

    fn detail(code: &'static str) -> ErrorDetail {
        ErrorDetail {
            code: Cow::Borrowed(code),
            message: code.to_owned(),
            field: None,
            retry_after_seconds: None,
            request_id: None,
        }
    }

    fn accepted() -> Attempt {
        Attempt::Final(Fate::Accepted(Submitted {
            id: ExecutionId(1),
            status: Status::Queued,
            position: None,
            repeated: false,
            priority: None,
            request_id: RequestId::fresh(),
        }))
    }

    fn later(seconds: u64, unknown: bool) -> Attempt {
        let pause = Duration::from_secs(seconds);
        Attempt::Later {
            detail: detail("QUEUE_FULL"),
            pause,
            unknown,
        }
    }

    /// One line for each letter, which is its action.
    fn plan(actions: &str, lines: usize) -> Plan {
        let items = actions
            .chars()
            .map(|letter| Item {
                action_ref: letter.to_string(),
                body: "x".repeat(9),
            })
            .collect();
        Plan::new(
            items,
            Bounds {
                lines,
                bytes: 1000,
                give_up_after: Duration::from_secs(10),
            },
        )
    }

    fn places(batch: Option<Batch>) -> Vec<usize> {
        batch.map(|batch| batch.0).unwrap_or_default()
    }

    #[test]
    fn lines_go_in_order_and_an_action_is_in_one_batch_at_a_time() {
        let (mut plan, now) = (plan("aabab", 3), Instant::now());
        let first = plan.next_batch(now).unwrap();
        assert_eq!(first.0, [0, 1, 2]);
        assert_eq!(plan.next_batch(now), None);
        plan.settle(first, vec![accepted(), accepted(), accepted()], now);
        assert_eq!(places(plan.next_batch(now)), [3, 4]);
    }

    #[test]
    fn other_actions_go_side_by_side() {
        let (mut plan, now) = (plan("aaab", 3), Instant::now());
        assert_eq!(places(plan.next_batch(now)), [0, 1, 2]);
        assert_eq!(places(plan.next_batch(now)), [3]);
        assert_eq!(plan.next_batch(now), None);
        assert_eq!(plan.next_wake(), None);
    }

    #[test]
    fn a_full_queue_holds_back_its_own_action_only() {
        let (mut plan, now) = (plan("aabaab", 3), Instant::now());
        let first = plan.next_batch(now).unwrap();
        plan.settle(
            first,
            vec![later(2, false), later(1, false), accepted()],
            now,
        );
        assert_eq!(places(plan.next_batch(now)), [5]);
        assert_eq!(plan.next_batch(now), None);
        let wake = plan.next_wake().unwrap();
        assert_eq!(wake, now + Duration::from_secs(2));
        assert_eq!(places(plan.next_batch(wake)), [0, 1, 3]);
    }

    #[test]
    fn a_line_is_given_up_in_the_end() {
        let (mut plan, start) = (plan("ab", 2), Instant::now());
        // The last try is made when the time is over, and not the longest pause before.
        for after in [0, 4, 8, 10] {
            let now = start + Duration::from_secs(after);
            let wake = plan.next_wake().unwrap_or(start);
            assert_eq!(wake, now);
            let batch = plan.next_batch(now).unwrap();
            plan.settle(batch, vec![later(4, false), later(4, now == start)], now);
        }
        assert_eq!(plan.open(), 0);
        assert_eq!(
            plan.into_fates(),
            [
                Some(Fate::Refused(detail("QUEUE_FULL"))),
                // It may have been accepted by the first attempt.
                Some(Fate::Unknown(detail("QUEUE_FULL"))),
            ]
        );
    }

    #[test]
    fn batches_are_bounded_in_bytes_and_shrink() {
        let (mut plan, now) = (plan("aaaaaa", 100), Instant::now());
        plan.bounds.bytes = 45;
        let batch = plan.next_batch(now).unwrap();
        assert_eq!(batch.0, [0, 1, 2, 3]);
        assert_eq!(
            plan.body(&batch),
            format!("[{}]", ["xxxxxxxxx"; 4].join(","))
        );
        plan.shrink(batch);
        let smaller = plan.next_batch(now).unwrap();
        assert_eq!(smaller.0, [0, 1]);
        assert_eq!(plan.open(), 6);
        // A line that is larger than the bound goes alone.
        plan.shrink(smaller);
        plan.bounds.bytes = 1;
        assert_eq!(places(plan.next_batch(now)), [0]);
    }
}
