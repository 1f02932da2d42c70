//! A window against a list of all starts, which looks through all of them each time.

use proptest::prelude::*;

use super::*;

/// What happens next.
#[derive(Debug, Clone)]
enum Step {
    /// So many ask to start in one round, which is stored so many milliseconds later.
    Round { asking: u32, stored_after: Millis },
    /// Time passes.
    Pass(Millis),
    /// Just so much time passes that the next may start.
    PassUntilOpen,
    /// Another owner goes on, whose clock is behind or ahead by this much.
    Takeover { behind: Millis },
    /// The owner dies when the round is stored and before it is answered.
    DieInCommit { asking: u32, stored_after: Millis },
    /// Another limit.
    Limit(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let asking = prop_oneof![0..4u32, 60..70u32, 0..300u32];
    let stored_after = prop_oneof![0..3 as Millis, 0..5_000 as Millis];
    prop_oneof![
        8 => (asking.clone(), stored_after.clone())
            .prop_map(|(asking, stored_after)| Step::Round { asking, stored_after }),
        3 => (0..2_000 as Millis).prop_map(Step::Pass),
        3 => Just(Step::PassUntilOpen),
        2 => (0..3_000 as Millis).prop_map(|behind| Step::Takeover { behind }),
        1 => (asking, stored_after)
            .prop_map(|(asking, stored_after)| Step::DieInCommit { asking, stored_after }),
        1 => prop_oneof![1..5u32, 60..70u32, 1..300u32].prop_map(Step::Limit),
    ]
}

/// What was written at a time, as somebody reads it by whose clock it is `now`.
fn read_as_of(bytes: &[u8], written_at: Millis, now: Millis) -> Option<Window> {
    let mut window = Window::from_bytes(bytes, written_at)?;
    window.as_of(now);
    Some(window)
}

/// A window, the true times of all its starts, and whether those are what the limits allow.
struct World {
    rate: Rate,
    window: Window,
    /// The true time.
    now: Millis,
    /// By how much the clock of the owner is behind.
    behind: Millis,
    /// When each start was stored, and under which limit it was decided.
    starts: Vec<(Millis, u32)>,
    bytes: Vec<u8>,
    /// When that was written, by the store's clock, which is right.
    written_at: Millis,
}

impl World {
    fn clock(&self) -> Millis {
        self.now - self.behind
    }

    /// Decides a round; tells how many start in it.
    fn decide(&mut self, asking: u32) -> u32 {
        let now = self.clock();
        let mut started = 0;
        while started < asking && self.window.next_time(self.rate) <= now {
            self.window.start(self.rate, now);
            started += 1;
        }
        if started > 0 {
            self.bytes = self.window.to_bytes(0);
        }
        started
    }

    fn store(&mut self, started: u32, after: Millis) {
        self.now += after;
        if started > 0 {
            self.written_at = self.now;
        }
        let start = (self.now, self.rate.max);
        self.starts
            .extend(std::iter::repeat_n(start, started as usize));
    }

    fn load(&mut self) {
        self.window = read_as_of(&self.bytes, self.written_at, self.clock()).unwrap();
    }

    fn judge(&self) {
        for (index, (time, max)) in self.starts.iter().enumerate() {
            let since = time - self.rate.window;
            let before = self.starts[..=index].iter();
            let within = before.filter(|(other, _)| *other > since).count();
            assert!(
                within <= *max as usize,
                "{within} of {max} within {} ms before {time}",
                self.rate.window
            );
        }
    }
}

fn run(window: Millis, max: u32, steps: Vec<Step>) {
    let mut world = World {
        rate: Rate { max, window },
        window: Window::default(),
        now: 1_000_000,
        behind: 0,
        starts: Vec::new(),
        bytes: Window::default().to_bytes(0),
        written_at: 0,
    };
    for step in steps {
        match step {
            Step::Round {
                asking,
                stored_after,
            } => {
                let started = world.decide(asking);
                world.store(started, stored_after);
                let answered = world.clock() + 1;
                world.window.settle(world.rate, answered);
            }
            Step::Pass(time) => world.now += time,
            Step::PassUntilOpen => {
                let wait = world.window.next_time(world.rate).max(world.clock()) - world.clock();
                assert!(wait <= world.rate.window + 5_000 + world.rate.window / 32);
                world.now += wait;
                assert!(world.window.next_time(world.rate) <= world.clock());
            }
            Step::Takeover { behind } => {
                // The clock of an owner is the store's, or a little behind; whoever knows it better goes on
                // from when things were written.
                world.behind = behind;
                world.load();
            }
            Step::DieInCommit {
                asking,
                stored_after,
            } => {
                let started = world.decide(asking);
                world.store(started, stored_after);
                world.now += 1;
                world.load();
            }
            Step::Limit(max) => world.rate.max = max,
        }
    }
    // Every limit was in force when the last of its starts was decided, and earlier ones count.
    world.judge();
}

proptest! {
    #![proptest_config(crate::thorough())]

    #[test]
    fn never_more_than_its_limit_in_any_stretch(
        window in prop_oneof![1..5 as Millis, 900..1_100 as Millis, 1_000..100_000 as Millis],
        max in prop_oneof![1..5u32, 60..70u32, 1..300u32],
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        run(window, max, steps);
    }

    #[test]
    fn what_is_stored_is_read(
        marks in proptest::collection::vec((0..10_000 as Millis, 1..9u32), 0..100),
        fresh in 0..5u32,
    ) {
        let rate = Rate { max: 500, window: 1_000_000 };
        let mut window = Window::default();
        let mut now = 5_000_000;
        for (later, count) in marks {
            now += later;
            for _ in 0..count {
                window.start(rate, now);
            }
            window.settle(rate, now);
        }
        let read = read_as_of(&window.to_bytes(0), 0, Millis::MAX).unwrap();
        prop_assert!(read.marks.len() <= window.marks.len());
        prop_assert_eq!(read.over_at(rate), window.over_at(rate));
        for _ in 0..fresh {
            window.start(rate, now);
        }
        let bytes = window.to_bytes(0);
        prop_assert!(bytes.len() <= 13 + 8 * MOST_MARKS);
        let read = read_as_of(&bytes, now + 70, Millis::MAX).unwrap();
        let total = |window: &Window| window.marks.iter().map(|(_, count)| count).sum::<u32>();
        prop_assert_eq!(total(&read), total(&window) + fresh);
        if fresh > 0 {
            prop_assert!(read.marks.back().unwrap().0 >= now + 70, "as of when it was written");
        }
    }
}

#[test]
fn the_next_time_is_exact_where_each_start_has_its_own() {
    let rate = Rate {
        max: 2,
        window: 1_000,
    };
    let mut window = Window::default();
    assert_eq!(window.next_time(rate), Millis::MIN);
    for at in [10_000, 10_400] {
        assert!(window.next_time(rate) <= at);
        window.start(rate, at);
        window.settle(rate, at);
    }
    assert_eq!(window.next_time(rate), 11_000);
    let one = Rate { max: 1, ..rate };
    assert_eq!(window.next_time(one), 11_400, "a lowered limit counts all");
    let longer = Rate {
        window: 5_000,
        ..rate
    };
    assert_eq!(
        window.next_time(longer),
        15_000,
        "and so does a longer window"
    );
    assert_eq!(window.over_at(rate), 11_400);
}

#[test]
fn a_slice_costs_no_more_than_a_sixty_fourth() {
    let rate = Rate {
        max: 65,
        window: 64_000,
    };
    let mut window = Window::default();
    for _ in 0..65 {
        window.start(rate, 500_500);
    }
    window.settle(rate, 500_500);
    let open = window.next_time(rate);
    assert!((564_500..=565_500).contains(&open), "{open}");
}

#[test]
fn what_is_of_the_future_counts_as_of_now() {
    let rate = Rate {
        max: 1,
        window: 1_000,
    };
    let mut window = Window::default();
    window.start(rate, 3_600_000);
    window.settle(rate, 3_600_000);
    let read = read_as_of(&window.to_bytes(0), 3_600_000, 5_000).unwrap();
    assert_eq!(read.next_time(rate), 6_000, "by the clock of who goes on");
}

/// A start that is stored much later than whatever comes next is decided counts, and is not forgotten.
#[test]
fn what_lies_far_ahead_of_its_round_is_not_taken_for_old() {
    let rate = Rate {
        max: 1,
        window: 1_000,
    };
    let mut window = Window::default();
    window.start(rate, 0);
    window.settle(rate, 3 * TO_COME);
    window.start(rate, 10);
    let read = read_as_of(&window.to_bytes(0), 10, 500).unwrap();
    assert_eq!(read.next_time(rate), 1_500);
}

#[test]
fn what_was_ahead_is_put_right() {
    let marks = [(1_000, 1), (5_000, 2), (6_000, 1)];
    let mut window = Window {
        marks: marks.into(),
        ..Window::default()
    };
    let whole = window.clone();
    let ahead = window.as_of(2_000);
    assert_eq!(ahead, &marks[1..]);
    assert_eq!(window.marks, [(1_000, 1), (2_000, 3)]);
    // Somebody has started since.
    let rate = Rate {
        max: 9,
        window: 10_000,
    };
    window.start(rate, 2_500);
    window.settle(rate, 2_500);
    window.put_right(2_000, &ahead);
    assert_eq!(
        window.marks,
        [(1_000, 1), (2_500, 1), (5_000, 2), (6_000, 1)]
    );
    window.marks.remove(1);
    assert_eq!(window.marks, whole.marks);
}

#[test]
fn what_is_no_window_is_not_read() {
    let right = Window::default().to_bytes(0);
    assert_eq!(read_as_of(&right, 0, 0), Some(Window::default()));
    let mut other = right.clone();
    other[0] = 2;
    for wrong in [
        &[][..],
        &right[1..],
        &[&right[..], &[1, 2, 3]].concat(),
        &other,
    ] {
        assert_eq!(read_as_of(wrong, 0, 0), None);
    }
}
