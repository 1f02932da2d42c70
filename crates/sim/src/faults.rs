//! What goes wrong, and coming back from it.

use crate::bus::{Body, Name, Party};
use crate::plan::{Fault, Time};
use crate::trace::Note;
use crate::world::{Ev, WALL, Word, World};
use std::sync::Arc;

/// How long the broker waits for the heartbeats of a party.
pub(crate) const HEARTBEATS: Time = 2_000;
/// How long nobody sees an owner that hands over what it has.
const HIDDEN: Time = 6_000;
/// How long an owner takes to hand everything over, at most.
const LEAVING: Time = 8_000;

impl World {
    pub(crate) fn fault(&mut self, index: usize) {
        let planned = self.plan.faults[index].clone();
        self.note(Note::Fault(planned.id));
        *self.seen.faults.entry(planned.what.kind()).or_default() += 1;
        let now = self.now;
        match planned.what {
            Fault::CrashOwner { owner, down } if self.owners[owner].is_alive() => {
                self.crash_owner(owner);
                self.push(now + down, Ev::Restart(Party::Owner(owner, 0)));
            }
            Fault::PauseOwner { owner, pause } if self.owners[owner].is_alive() => {
                // It may stand still already, and for longer.
                let until = &mut self.owners[owner].paused_until;
                *until = (*until).max(now + pause);
                self.flow.excuse(now + pause);
                let party = Party::Owner(owner, self.owners[owner].life());
                self.push(now + HEARTBEATS, Ev::Silent(party));
            }
            Fault::BlindOwner { owner, blind } => {
                self.owners[owner].blind = Some((now, now + blind));
                self.holds.clock_stands(WALL + now + blind, blind);
                self.flow.excuse(now + blind);
            }
            Fault::HandOver { owner } if self.owners[owner].is_alive() => {
                let id = self.owners[owner].id();
                self.store.hidden.insert(id, now + HIDDEN);
                self.flow.excuse(now + HIDDEN);
            }
            Fault::StopOwner { owner, down } if self.owners[owner].is_alive() => {
                let party = Party::Owner(owner, self.owners[owner].life());
                self.owners[owner].leaves = true;
                self.soon(Ev::To(party, Word::Leave));
                self.flow.excuse(now + LEAVING);
                self.push(now + down, Ev::Restart(Party::Owner(owner, 0)));
            }
            Fault::Refuse { refuse } => self.refuse_until = now + refuse,
            Fault::Reload { owner } => self.owners[owner].break_commit = true,
            Fault::CutOwner { owner } if self.owners[owner].is_alive() => {
                let party = Party::Owner(owner, self.owners[owner].life());
                self.close_all(party);
                self.soon(Ev::To(party, Word::Cut));
            }
            Fault::CrashWorker { worker, down } if self.workers[worker].is_alive() => {
                self.crash_worker(worker);
                self.push(now + down, Ev::Restart(Party::Worker(worker, 0)));
            }
            Fault::CutWorker { worker } if self.workers[worker].is_alive() => {
                let party = Party::Worker(worker, self.workers[worker].life());
                self.soon(Ev::To(party, Word::Cut));
            }
            Fault::StopWorker { worker, down } if self.workers[worker].is_alive() => {
                let party = Party::Worker(worker, self.workers[worker].life());
                self.soon(Ev::To(party, Word::Stops(down)));
            }
            Fault::PauseWorker { worker, pause } if self.workers[worker].is_alive() => {
                let until = &mut self.workers[worker].paused_until;
                *until = (*until).max(now + pause);
                let party = Party::Worker(worker, self.workers[worker].life());
                self.push(now + HEARTBEATS, Ev::Silent(party));
            }
            Fault::StoreDown { down } => self.store_down_until = now + down,
            Fault::Replay if !self.completions.is_empty() => {
                let completion =
                    Arc::clone(&self.completions[self.rng.index(self.completions.len())]);
                let name = Name::Control(completion.execution_id.partition().0);
                self.soon(Ev::Arrive(name, Body::Completed(completion), None));
            }
            Fault::Forge => self.forge(),
            fault => self.begin_lasting(&fault),
        }
    }

    /// What is dead starts again.
    pub(crate) fn restart(&mut self, party: Party) {
        match party {
            Party::Owner(owner, _) if !self.owners[owner].is_alive() => {
                // It declares what it needs before it begins.
                match self.lasting.without_bus(owner, self.now) {
                    Some((_, until)) => self.push(until, Ev::Restart(party)),
                    None => self.start_owner(owner),
                }
            }
            // It takes longer to leave than it was to be away.
            Party::Owner(owner, _) if self.owners[owner].leaves => {
                self.push(self.now + LEAVING, Ev::Restart(party));
            }
            Party::Relay(relay, _) if !self.routing.relays[relay].is_alive() => {
                self.start_relay(relay);
            }
            Party::Worker(worker, _) if !self.workers[worker].is_alive() => {
                let dead_until = self.lasting.dead_until(self.plan.pool_of(worker));
                if dead_until > self.now {
                    self.push(dead_until, Ev::Restart(party));
                } else {
                    self.start_worker(worker);
                }
            }
            _ => {}
        }
    }
}
