//! What an owner commits and says (O1 to O6).

use super::message::{Content, Report, Seen};
use super::state::{Key, LAST_ATTEMPT, Lease, Life, Row, State, granted};
use super::{Knowledge, Protocol, Variant};

impl State {
    /// O1: the sections of a stream are numbered in the order of their commits.
    pub(super) fn send(&mut self, owner: usize, life: Life, content: Content) {
        let Self {
            owners, sections, ..
        } = self;
        let owner = &mut owners[owner];
        let stream = &mut owner.streams[life];
        sections.push(super::Section {
            life,
            epoch: owner.epoch,
            number: stream.next,
            content,
            delivered: false,
        });
        stream.next += 1;
    }

    /// O5: says all that the owner knows this life to hold.
    pub(super) fn sync(&mut self, owner: usize, life: Life) {
        let held = granted(self.rows_of(owner))
            .filter(|(_, holder)| *holder == life)
            .map(|(key, _)| key)
            .collect();
        self.send(owner, life, Content::Sync(held));
        self.owners[owner].streams[life].open = true;
    }

    /// Writes a row, and into the memory of a stale owner whose commit was not refused.
    pub(super) fn write(&mut self, owner: usize, execution: usize, row: Row) {
        self.rows[execution] = row;
        if owner != self.current() {
            self.owners[owner].remembered[execution] = row;
        }
    }

    /// The section that this worker must take next is lost. The worker will ask, or does not show
    /// that it has seen it, so the owner can know.
    pub(super) fn is_cut_off(&self, life: Life) -> bool {
        let owner = &self.owners[self.current()];
        let worker = &self.workers[life];
        let follows = worker.epoch == owner.epoch;
        let expected = if follows { worker.next } else { 0 };
        owner.streams[life].next > expected
            && !self.sections.iter().any(|section| {
                section.life == life
                    && section.epoch == owner.epoch
                    && section.number >= expected
                    && (matches!(section.content, Content::Sync(_))
                        || (section.number == expected && follows))
            })
    }

    /// Whether these are in a settlement of this owner that is on its way.
    fn is_being_settled(&self, owner: usize, life: Life, key: Key) -> bool {
        self.sections.iter().any(|section| {
            section.life == life
                && section.epoch == self.owners[owner].epoch
                && matches!(&section.content, Content::Settled(keys) if keys.contains(&key))
        })
    }
}

impl Protocol {
    /// The first that waits, as its next attempt, and to whom it may be granted (O2, O3).
    pub(super) fn grants(&self, state: &State, owner: usize) -> Vec<(Key, Life)> {
        let rows = state.rows_of(owner);
        let first = rows
            .iter()
            .enumerate()
            .find_map(|(execution, row)| match row {
                Row::Queued(attempt) => Some(Key {
                    execution,
                    attempt: attempt + 1,
                }),
                _ => None,
            })
            .filter(|key| key.attempt <= LAST_ATTEMPT);
        let Some(key) = first else {
            return Vec::new();
        };
        let many = granted(rows).count();
        let plain = many < self.bounds.limit;
        let ahead = many < self.bounds.limit + self.bounds.ahead;
        let has_all =
            |life| self.is(Variant::SpreadsLane) || granted(rows).all(|(_, holder)| holder == life);
        (0..state.workers.len())
            .filter(|&life| {
                state.owners[owner].streams[life].open
                    && state.workers[life].lease != Lease::Lost
                    && (state.closing[life].is_none() || self.is(Variant::GrantsUnseen))
                    && (plain || (ahead && has_all(life)))
            })
            .map(|life| (key, life))
            .collect()
    }

    /// O6: what may be taken back without a word of its worker.
    pub(super) fn may_revoke(&self, state: &State, life: Life) -> bool {
        !self.is(Variant::NeverRevokes)
            && (state.workers[life].lease == Lease::Lost || self.is(Variant::RevokesEarly))
    }

    /// O4: an end or a return counts if its attempt holds; every report is answered.
    pub(super) fn hear(&self, state: &mut State, owner: usize, report: &Report) {
        let life = report.life;
        let current = owner == state.current();
        let mut settled = Vec::new();
        for &key in &report.keys {
            let holds =
                state.rows_of(owner)[key.execution] == Row::Granted(key.attempt, report.life);
            let counts = holds || self.is(Variant::TakesAnyReport);
            if counts && (current || self.is(Variant::NoFence)) {
                self.commit(state, owner, key, report);
            }
            // Without that record of the worker a settlement would change nothing.
            if state.workers[life].knows(key)
                && (current || (holds && self.is(Variant::SettlesFirst)))
            {
                settled.push(key);
            }
        }
        if current {
            self.lift_mark(state, report);
        }
        let said = settled
            .iter()
            .all(|key| state.is_being_settled(owner, life, *key));
        if !said
            && state.owners[owner].streams[life].open
            && state.workers[life].lease == Lease::Live
        {
            state.send(owner, life, Content::Settled(settled));
        }
    }

    fn commit(&self, state: &mut State, owner: usize, key: Key, report: &Report) {
        if report.ended {
            return state.write(owner, key.execution, Row::Ended);
        }
        state.note_given_back(key);
        let attempt = if self.is(Variant::SameAttempt) {
            key.attempt - 1
        } else {
            key.attempt
        };
        state.write(owner, key.execution, Row::Queued(attempt));
        self.mark(state, report.life);
    }

    /// O3: something came back from this worker. The mark is set once: until it is lifted nothing
    /// is granted that the worker would have to see.
    pub(super) fn mark(&self, state: &mut State, life: Life) {
        let stream = state.owners[state.current()].streams[life];
        let needed = match self.bounds.knowledge {
            Knowledge::Asked => 0,
            // What earlier owners have granted is in the first sync.
            Knowledge::Reported if !stream.open => 1,
            Knowledge::Reported => stream.next,
        };
        state.closing[life].get_or_insert(needed);
    }

    /// O3: lifts the mark if this report shows that all before it was seen. It names all that is
    /// returned, so what came back is heard with it.
    fn lift_mark(&self, state: &mut State, report: &Report) {
        let mark = &mut state.closing[report.life];
        let enough = match report.seen {
            Seen::Less => false,
            Seen::Enough => mark.is_some(),
            Seen::All => *mark == Some(0),
        };
        if enough && self.bounds.knowledge == Knowledge::Reported {
            *mark = None;
        }
    }
}
