//! Who keeps its slot between two tries.

use super::*;

impl Replay<'_> {
    /// The try of a holder has ended, and it keeps its slot until then.
    pub(super) fn keep(&mut self, record: u32, (id, attempt): Key, until: i64) {
        match self.holders.get(&id) {
            Some((held, _)) if *held == attempt => {
                self.kept.insert(id, (until, record));
            }
            _ => {
                let what =
                    format!("execution {id} keeps a slot that attempt {attempt} does not hold");
                self.break_promise(Promise::I2, what, [record]);
            }
        }
    }

    /// Its next attempt begins in the slot that it has kept, whatever the limit is by now, and whoever waits.
    pub(super) fn go_on(&mut self, record: u32, key: Key, bounds: Bounds, at: Option<i64>) {
        let (id, attempt) = key;
        self.granted += 1;
        self.bounds = Some(bounds);
        let Some((until, before)) = self.kept.remove(&id) else {
            return;
        };
        if let Some(early) = at.map(|at| until - at).filter(|early| *early > 0) {
            let what = format!("execution {id} was tried again {early} ms before its next try");
            self.break_promise(Promise::I3, what, [before, record]);
        }
        let held = self.holders.insert(id, (attempt, record));
        if let Some((held, first)) = held.filter(|(held, _)| held.next() != attempt) {
            let what = format!("execution {id} goes on with attempt {attempt} after {held}");
            self.break_promise(Promise::I2, what, [first, record]);
        }
    }
}
