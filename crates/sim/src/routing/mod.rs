//! The way of firings and completions: from clients and workers through relays to the partitions.
//! The relays are those that production runs; here is what goes wrong around them, and what must
//! have become of everything in the end.

mod plan;
mod relays;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use attune_core::{Promise, Submission};
use attune_executor::owner::Work;
use attune_executor::partition::OnReject;

use crate::bus::{Body, Name, Party};
use crate::forging::is_forged;
use crate::oracle::Violation;
use crate::plan::{Planned, Time};
use crate::world::{Ev, Word, World};

pub use plan::{RoutingFault, RoutingPlan};
pub(crate) use relays::Relay;
pub(crate) use wire::{Wire, requests};

use plan::{EACH, RELAYS};
use relays::LARGE;
use wire::Part;

/// From where relays receive.
const SOURCES: [Name; 3] = [Name::Firings, Name::Completed, Name::Kept];
/// How many items share a message, at most.
const SEVERAL: usize = 4;
/// How often an operator puts back what lies among the dead letters, once all is healed.
const PUT_BACK_EVERY: Time = 1_000;
/// How long after all is healed the relays are replaced by newer ones.
const UPDATE_AFTER: Time = 6_000;
/// How long a message may wait for a relay then that could have read it, and how much longer for
/// each message of a newer version: a relay turns those round before it, a window each second.
const WAITS: Time = 5_000;
const WAITS_FOR_NEWER: Time = 200;
/// How long the broker waits for the heartbeats of a relay.
const HEARTBEATS: Time = 2_000;

/// What happens on this way.
pub(crate) enum RoutingEv {
    Fault(usize),
    /// Items that waited for others go.
    Flush(Name),
    PutBack,
    Update,
}

/// Relays, and what is around them.
#[derive(Default)]
pub(crate) struct Routing {
    pub(crate) relays: Vec<Relay>,
    /// Items that wait for others to share their message.
    pending: BTreeMap<Name, Vec<Part>>,
    /// When each message came that no relay has acknowledged; looked at once.
    came: BTreeMap<(Name, u64), Time>,
    /// The last message that was published.
    last: BTreeMap<Name, Arc<Wire>>,
    /// Queues that take nothing, and until when.
    full: BTreeMap<Name, Time>,
    /// Queues that nobody has declared.
    gone: BTreeSet<Name>,
    letters_full_until: Time,
    letters: Vec<(Name, Wire)>,
    /// What must end among the dead letters, by the marks in it, and what has.
    unusable: BTreeSet<String>,
    buried: BTreeSet<String>,
    /// How many messages of a newer version were published to each topic.
    newer: BTreeMap<Name, usize>,
    /// The relays are newer ones now.
    updated: bool,
}

impl Routing {
    fn bury(&mut self, source: Name, wire: Wire) {
        self.letters.push((source, wire));
    }

    /// Notes when a message came that relays must take up.
    pub(crate) fn note_place(&mut self, name: Name, place: u64, now: Time) {
        if SOURCES.contains(&name) {
            self.came.insert((name, place), now);
        }
    }

    /// Whether nothing is left to do.
    fn is_done(&self) -> bool {
        self.updated && self.letters.is_empty() && self.pending.values().all(Vec::is_empty)
    }
}

impl World {
    pub(crate) fn begin_routing(&mut self) {
        self.routing.relays = (0..RELAYS).map(|_| Relay::new()).collect();
        for relay in 0..RELAYS {
            self.push(0, Ev::Restart(Party::Relay(relay, 0)));
        }
        for n in 0..self.plan.routing.faults.len() {
            let at = self.plan.routing.faults[n].at;
            self.push(at, Ev::Routing(RoutingEv::Fault(n)));
        }
    }

    pub(crate) fn routing_event(&mut self, event: RoutingEv) {
        match event {
            RoutingEv::Fault(n) => self.routing_fault(n),
            RoutingEv::Flush(name) => {
                if let Some(body) = self.packed(name) {
                    self.arrive_at(name, body);
                }
            }
            RoutingEv::PutBack => self.put_back(),
            RoutingEv::Update => self.update_relays(),
        }
    }

    /// Where a message goes first: firings and completions go to the relays, maybe in one message
    /// with others. `None` when it waits for them.
    pub(crate) fn by_relays(&mut self, name: Name, body: Body) -> Option<(Name, Body)> {
        let (source, part) = match &body {
            Body::Submit(submit) if submit.on_reject == OnReject::Record => {
                let mut submission = submit.submission.clone();
                submission.request_id = Some(submit.request_id);
                (Name::Firings, Part::Firing(Box::new(submission)))
            }
            Body::Completed(completion) => {
                let source = match name {
                    Name::Kept => Name::Kept,
                    _ => Name::Completed,
                };
                (source, Part::Completion((**completion).clone()))
            }
            Body::Wire(wire) if self.routing.updated && wire.is_newer() => {
                return Some((name, Body::Wire(Arc::new(wire.readable()))));
            }
            _ => return Some((name, body)),
        };
        let pending = self.routing.pending.entry(source).or_default();
        pending.push(part);
        let (count, first) = (pending.len(), pending.len() == 1);
        if count < SEVERAL && self.rng.chance(self.plan.routing.several) {
            if first {
                self.push(self.now + 5, Ev::Routing(RoutingEv::Flush(source)));
            }
            return None;
        }
        Some((source, self.packed(source)?))
    }

    /// A message of what waits for others.
    fn packed(&mut self, source: Name) -> Option<Body> {
        let parts = self.routing.pending.remove(&source)?;
        if parts.is_empty() {
            return None;
        }
        if parts.len() > 1 {
            *self.seen.faults.entry("several-items").or_default() += 1;
        }
        let wire = Arc::new(Wire::of(self.fresh(), parts));
        self.routing.last.insert(source, Arc::clone(&wire));
        Some(Body::Wire(wire))
    }

    /// Notes the ends of runs that reach their owner's queue.
    pub(crate) fn note_arrival(&mut self, name: Name, body: &Body) {
        if let (Name::Control(_) | Name::ControlKept(_), Body::Wire(wire)) = (name, body)
            && let Some(Work::Completions(completions)) = wire.work()
        {
            for completion in completions.iter().filter(|it| !is_forged(it)) {
                let key = (completion.execution_id, completion.attempt);
                self.flow.ended(key);
            }
        }
    }

    fn routing_fault(&mut self, index: usize) {
        let planned = self.plan.routing.faults[index].clone();
        *self.seen.faults.entry(planned.what.kind()).or_default() += 1;
        let (now, number) = (self.now, planned.id);
        let queue = |partition, commands| match commands {
            true => Name::Commands(partition),
            // Most ends go this way.
            false => Name::ControlKept(partition),
        };
        match planned.what {
            RoutingFault::Crash { relay, down } if self.routing.relays[relay].is_alive() => {
                self.crash_relay(relay);
                self.push(now + down, Ev::Restart(Party::Relay(relay, 0)));
            }
            RoutingFault::Pause { relay, pause } if self.routing.relays[relay].is_alive() => {
                self.routing.relays[relay].paused_until = now + pause;
                let party = self.relay_party(relay);
                self.push(now + HEARTBEATS, Ev::Silent(party));
            }
            RoutingFault::Cut { relay } if self.routing.relays[relay].is_alive() => {
                let party = self.relay_party(relay);
                self.close_all(party);
                self.soon(Ev::To(party, Word::Cut));
            }
            RoutingFault::Full {
                partition,
                commands,
                full,
            } => {
                let name = queue(partition, commands);
                self.routing.full.insert(name, now + full);
            }
            RoutingFault::Gone {
                partition,
                commands,
            } => {
                self.routing.gone.insert(queue(partition, commands));
            }
            RoutingFault::FullLetters { full } => self.routing.letters_full_until = now + full,
            RoutingFault::Garbage { firings, count } => {
                for n in 0..count {
                    let text = format!("garbage-{number}-{n}.");
                    self.publish_unusable(firings, text);
                }
            }
            RoutingFault::Bad => self.fire_unusable(format!("bad-{number}."), true),
            RoutingFault::TooLarge => self.fire_unusable(format!("{LARGE}{number}."), false),
            RoutingFault::Newer { firings, count } => self.publish_newer(firings, count),
            RoutingFault::Restart => self.restart_broker(),
            _ => {}
        }
    }

    /// Everybody builds a new connection.
    fn restart_broker(&mut self) {
        let owners = (0..self.owners.len()).map(|o| Party::Owner(o, self.owners[o].life()));
        let workers = (0..self.workers.len()).map(|w| Party::Worker(w, self.workers[w].life()));
        let relays = (0..RELAYS).map(|r| self.relay_party(r));
        let everybody: Vec<Party> = owners.chain(workers).chain(relays).collect();
        self.routing.pending.remove(&Name::Kept);
        self.bus.empty(Name::Kept);
        for partition in 0..self.plan.partitions {
            self.bus.empty(Name::Calls(partition));
            self.bus.empty(Name::ControlKept(partition));
        }
        for owner in &mut self.owners {
            owner.forget_calls();
        }
        for party in everybody {
            self.close_all(party);
            self.soon(Ev::To(party, Word::Cut));
        }
    }

    fn publish_unusable(&mut self, firings: bool, text: String) {
        let name = if firings {
            Name::Firings
        } else {
            Name::Completed
        };
        self.routing.unusable.insert(text.clone());
        let wire = Wire::bare(text);
        self.soon(Ev::Arrive(name, Body::Wire(Arc::new(wire)), None));
    }

    /// A firing that leads to nothing, which shares its message with the next.
    fn fire_unusable(&mut self, mark: String, is_bad: bool) {
        let mut submission = Submission::new(self.plan.actions[0].name.clone());
        submission.enforcement_id = Some(mark.clone());
        submission.group = is_bad.then(|| "a\0b".to_owned());
        submission.request_id = Some(attune_core::RequestId(self.fresh()));
        self.routing.unusable.insert(mark);
        let pending = self.routing.pending.entry(Name::Firings).or_default();
        pending.push(Part::Firing(Box::new(submission)));
        self.push(self.now + 500, Ev::Routing(RoutingEv::Flush(Name::Firings)));
    }

    /// Copies of the last message, as a newer program would write them, and its successor too.
    fn publish_newer(&mut self, firings: bool, count: usize) {
        let name = if firings { Name::Firings } else { Name::Kept };
        let Some(last) = self.routing.last.get(&name) else {
            return;
        };
        let newer = Arc::new(last.newer());
        for _ in 0..count {
            self.soon(Ev::Arrive(name, Body::Wire(Arc::clone(&newer)), None));
        }
        *self.routing.newer.entry(name).or_default() += count;
        if let Some(Body::Wire(wire)) = self.packed(name) {
            *self.routing.newer.entry(name).or_default() += 1;
            self.soon(Ev::Arrive(name, Body::Wire(Arc::new(wire.newer())), None));
        }
    }

    pub(crate) fn heal_routing(&mut self) {
        self.routing.full.clear();
        self.routing.gone.clear();
        self.routing.letters_full_until = 0;
        self.push(self.now + PUT_BACK_EVERY, Ev::Routing(RoutingEv::PutBack));
        let newer =
            |fault: &Planned<RoutingFault>| matches!(fault.what, RoutingFault::Newer { .. });
        if self.plan.routing.faults.iter().any(newer) {
            self.push(self.now + UPDATE_AFTER, Ev::Routing(RoutingEv::Update));
        } else {
            self.routing.updated = true;
        }
    }

    /// An operator puts back what can be used, as it lies among the dead letters.
    fn put_back(&mut self) {
        for (name, wire) in std::mem::take(&mut self.routing.letters) {
            let text = wire.text().into_owned();
            let unusable = self.routing.unusable.iter();
            let marks: Vec<String> = unusable
                .filter(|mark| text.contains(*mark))
                .cloned()
                .collect();
            if marks.is_empty() {
                let wire = wire.put_back(self.fresh());
                // The broker has it before it leaves the dead letters: it is never nowhere.
                self.arrive(name, Body::Wire(Arc::new(wire)), None);
            } else if wire.firings().len() > 1 {
                let words = format!("{marks:?} took others into the dead letters: {text}");
                self.oracle
                    .blame(self.now, Violation::of(Promise::I1, words));
            }
            self.routing.buried.extend(marks);
        }
        self.push(self.now + PUT_BACK_EVERY, Ev::Routing(RoutingEv::PutBack));
    }

    /// Newer relays take over, who read what the old ones could not. Whatever those could read must
    /// have got past it.
    fn update_relays(&mut self) {
        for name in SOURCES {
            let is_newer = |body: &Body| matches!(body, Body::Wire(wire) if wire.is_newer());
            let newer = self.bus.kept(name).filter(|(_, body)| is_newer(body));
            let newer = newer.count();
            let published = self.routing.newer.get(&name).copied().unwrap_or(0);
            // Each relay may have just made a copy.
            if newer > published + EACH {
                let words =
                    format!("{published} messages wait for a newer relay, and are {newer} by now");
                self.oracle
                    .blame(self.now, Violation::of(Promise::I6, words));
            }
            let newer = Time::try_from(newer).unwrap_or(Time::MAX);
            let patience = WAITS.saturating_add(newer.saturating_mul(WAITS_FOR_NEWER));
            let waits = self.bus.kept(name).find_map(|(place, body)| {
                let came = *self.routing.came.get(&(name, place))?;
                let Body::Wire(wire) = body else { return None };
                let could = !wire.is_newer() && self.now - came > patience;
                could.then(|| wire.text().into_owned())
            });
            if let Some(text) = waits {
                let words = format!("this waits for a relay since long: {text}");
                self.oracle
                    .blame(self.now, Violation::of(Promise::I6, words));
            }
        }
        self.routing.updated = true;
        for relay in 0..RELAYS {
            if self.routing.relays[relay].is_alive() {
                self.crash_relay(relay);
            }
        }
        for name in SOURCES {
            self.bus.rewrite(name, |body| {
                if let Body::Wire(wire) = body
                    && wire.is_newer()
                {
                    *wire = Arc::new(wire.readable());
                }
            });
        }
        for relay in 0..RELAYS {
            self.start_relay(relay);
        }
    }

    pub(crate) fn routing_is_done(&self) -> bool {
        self.routing.is_done()
    }

    /// What cannot be used is among the dead letters, all of it.
    pub(crate) fn end_routing(&mut self) {
        let routing = &self.routing;
        let letters = routing
            .letters
            .iter()
            .map(|(_, wire)| wire.text().into_owned());
        let letters: Vec<String> = letters.collect();
        let lost = routing.unusable.difference(&routing.buried).find(|mark| {
            let is_letter = letters.iter().any(|text| text.contains(*mark));
            // What was never published, because the run ended before.
            !is_letter && !routing.pending.values().any(|parts| !parts.is_empty())
        });
        if let Some(mark) = lost {
            let words = format!("{mark} cannot be used, and is not among the dead letters");
            self.oracle
                .blame(self.now, Violation::of(Promise::I1, words));
        }
    }
}

/// Whether a relay receives from this queue, beside others of its kind.
pub(crate) fn is_shared(name: Name) -> bool {
    matches!(name, Name::Completed | Name::Kept)
}
