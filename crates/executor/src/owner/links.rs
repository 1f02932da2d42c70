//! What lives of workers are told: grants, what is settled, what is to be ended.
//!
//! To each life goes one message after the other: while one is on its way what follows gathers. Nothing here
//! is kept by anybody: a message that nobody received is told so by the bus, and what else is lost shows as a
//! gap, as silence, or with the end of the life. One sync, of what the partition has committed, repairs all
//! of it (ADR 49), so nothing is ever told twice.

mod books;
mod sections;
mod untold;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use attune_core::{ActionId, Bug, Epoch, ExecutionId, PartitionId, Refusal, WorkerId};
use attune_dispatch::{Key, Section, Stream};

use super::backoff::Backoff;
use super::silence::Silence;
use super::{Dispatch, Output, Owner, PublishId, Published, Stage};
use crate::counters::Counter;
use crate::partition::Event;
use crate::queue::Millis;
use sections::{Sections, size};

/// How many bytes may be on their way to workers, or wait for their turn, before commands must wait.
const MAX_BYTES_ON_THE_WAY: usize = 64 * 1024 * 1024;
/// How many bytes go to a life at once, but always one section.
const MAX_BYTES_TOGETHER: usize = 8 * 1024 * 1024;
/// How long what is to be told a life waits whose lease was not read yet.
const NOT_READ: Millis = 50;
/// What is settled waits so long for company: nobody but the worker's memory waits for it.
const SETTLED_AFTER: Millis = 50;

/// What is to be told a life about one partition.
#[derive(Debug, Default)]
struct Part {
    settled: Vec<Key>,
    cancel: Vec<Key>,
    recall: BTreeSet<ActionId>,
    grants: VecDeque<Dispatch>,
    /// Something may be missing there.
    wants_sync: bool,
}

impl Part {
    fn is_urgent(&self) -> bool {
        let calls = !self.cancel.is_empty() || !self.recall.is_empty();
        self.wants_sync || calls || !self.grants.is_empty()
    }

    fn is_empty(&self) -> bool {
        !self.is_urgent() && self.settled.is_empty()
    }
}

/// The way to one life.
#[derive(Debug)]
struct Link {
    parts: BTreeMap<PartitionId, Part>,
    on_the_way: Option<PublishId>,
    /// When what is settled is told, if nothing takes it along before.
    settle_at: Millis,
    /// Nothing is sent before.
    retry_at: Millis,
    backoff: Backoff,
    /// Nobody receives there until the life is heard of again.
    is_cut_off: bool,
    /// It has said that it is there since what is on its way was sent: that this came back tells nothing.
    has_greeted: bool,
    /// What it waits for is the end of a round.
    waits_for_round: bool,
}

impl Link {
    fn new() -> Self {
        Self {
            parts: BTreeMap::new(),
            on_the_way: None,
            settle_at: Millis::MAX,
            retry_at: Millis::MIN,
            backoff: Backoff::new(50, 2_000),
            is_cut_off: false,
            has_greeted: false,
            waits_for_round: false,
        }
    }

    /// When something is to be sent.
    fn due_at(&self) -> Option<Millis> {
        let is_stopped = self.is_cut_off || self.waits_for_round;
        if self.on_the_way.is_some() || is_stopped || self.parts.is_empty() {
            return None;
        }
        let is_urgent = self.parts.values().any(Part::is_urgent);
        let at = if is_urgent {
            Millis::MIN
        } else {
            self.settle_at
        };
        Some(at.max(self.retry_at))
    }
}

/// A message to a life whose fate is not known.
#[derive(Debug)]
struct OnTheWay {
    worker: WorkerId,
    /// The grants of each section, their partition, and its epoch.
    sections: Vec<(PartitionId, Epoch, Vec<Key>)>,
    bytes: usize,
}

/// The ways to all lives.
#[derive(Debug, Default)]
pub(super) struct Links {
    links: BTreeMap<WorkerId, Link>,
    streams: BTreeMap<(PartitionId, WorkerId), Stream>,
    on_the_way: BTreeMap<PublishId, OnTheWay>,
    /// Bytes that wait or are on their way.
    bytes: usize,
    /// Executions that were in a section which the bus does not take: each goes in one of its own.
    alone: BTreeSet<ExecutionId>,
    pub(super) silence: Silence,
}

impl Links {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        let due = self.links.values().filter_map(Link::due_at);
        due.chain([self.silence.look_at()]).min()
    }

    /// Whether so much is on its way that commands must wait.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MAX_BYTES_ON_THE_WAY
    }

    fn part(&mut self, worker: WorkerId, partition: PartitionId) -> &mut Part {
        let link = self.links.entry(worker).or_insert_with(Link::new);
        link.parts.entry(partition).or_default()
    }

    pub(super) fn grant(&mut self, partition: PartitionId, dispatch: Dispatch) {
        self.bytes += size(&dispatch);
        let part = self.part(dispatch.grantee.worker, partition);
        part.grants.push_back(dispatch);
    }

    pub(super) fn cancel(&mut self, partition: PartitionId, worker: WorkerId, key: Key) {
        self.part(worker, partition).cancel.push(key);
    }

    pub(super) fn recall(&mut self, partition: PartitionId, worker: WorkerId, action_id: ActionId) {
        self.part(worker, partition).recall.insert(action_id);
    }

    pub(super) fn settle(
        &mut self,
        now: Millis,
        partition: PartitionId,
        worker: WorkerId,
        key: Key,
    ) {
        self.part(worker, partition).settled.push(key);
        if let Some(link) = self.links.get_mut(&worker) {
            // The first that waits says how long all do.
            let waits = link.settle_at != Millis::MAX;
            link.settle_at = if waits {
                link.settle_at
            } else {
                now + SETTLED_AFTER
            };
        }
    }

    /// Something of a partition may be missing at a life.
    pub(super) fn want_sync(&mut self, partition: PartitionId, worker: WorkerId) {
        if Bug::NoSync.is_planted() {
            return;
        }
        self.part(worker, partition).wants_sync = true;
    }

    /// A life is heard of, or may be there: what waits for it is sent.
    pub(super) fn is_heard(&mut self, worker: WorkerId) {
        if let Some(link) = self.links.get_mut(&worker) {
            link.is_cut_off = false;
        }
    }

    /// A life says that it is there.
    pub(super) fn greets(&mut self, worker: WorkerId) {
        if let Some(link) = self.links.get_mut(&worker) {
            link.has_greeted = link.on_the_way.is_some();
        }
    }

    /// Asks whether messages reach a life, unless one is on its way that will show it.
    pub(super) fn knock(&mut self, partition: PartitionId, worker: WorkerId) {
        let link = self.links.get(&worker);
        if link.is_none_or(|link| link.on_the_way.is_none()) {
            self.want_sync(partition, worker);
        }
    }

    /// Lives that are over are told nothing more; how many grants of each partition are not told so.
    #[must_use]
    pub(super) fn retain(&mut self, lives: impl Fn(WorkerId) -> bool) -> Vec<(PartitionId, usize)> {
        let (bytes, mut untold) = (&mut self.bytes, Vec::new());
        self.links.retain(|worker, link| {
            let keep = lives(*worker) || link.on_the_way.is_some();
            if !keep {
                let grants = link.parts.values().flat_map(|part| &part.grants);
                *bytes -= grants.map(size).sum::<usize>();
                let parts = link.parts.iter();
                untold.extend(parts.map(|(id, part)| (*id, part.grants.len())));
            }
            keep
        });
        self.streams.retain(|(_, worker), _| lives(*worker));
        untold
    }

    /// A round is over: what is in memory is what is stored.
    pub(super) fn round_is_over(&mut self) {
        for link in self.links.values_mut() {
            link.waits_for_round = false;
        }
    }

    /// A partition is served no more: its next owner opens streams of its own.
    pub(super) fn forget(&mut self, partition: PartitionId) {
        for link in self.links.values_mut() {
            if let Some(part) = link.parts.remove(&partition) {
                self.bytes -= part.grants.iter().map(size).sum::<usize>();
            }
        }
        self.streams.retain(|(of, _), _| *of != partition);
    }
}

impl Owner {
    /// Tells what can be told now.
    pub(super) fn go_on_with_links(&mut self, now: Millis) {
        self.roster.lock().wake(now);
        self.look_for_silence(now);
        self.bounce_unsent();
        let links = self.links.links.iter();
        let due = links.filter(|(_, link)| link.due_at().is_some_and(|at| at <= now));
        let due: Vec<WorkerId> = due.map(|(worker, _)| *worker).collect();
        for worker in due {
            self.tell_worker(now, worker);
        }
    }

    /// What waits for a life that nobody reaches goes elsewhere: it never left.
    fn bounce_unsent(&mut self) {
        let mut unsent = Vec::new();
        let links = self.links.links.iter_mut();
        for (worker, link) in links.filter(|(_, link)| link.is_cut_off) {
            for (id, part) in &mut link.parts {
                self.links.bytes -= part.grants.iter().map(size).sum::<usize>();
                let grants: Vec<Key> = part.grants.drain(..).map(|it| key_of(&it)).collect();
                if !grants.is_empty() {
                    unsent.push((*id, *worker, grants));
                }
            }
            link.parts.retain(|_, part| !part.is_empty());
        }
        for (id, worker, grants) in unsent {
            self.told(id, grants.len());
            // Who is granted behind them meanwhile comes behind a sync that names them.
            self.has_lost(id, worker);
            self.bounced(id, worker, grants);
        }
    }

    /// Grants were received by nobody, and are in no queue.
    fn bounced(&mut self, id: PartitionId, worker: WorkerId, grants: Vec<Key>) {
        if self.partition(id).is_some() && !grants.is_empty() {
            let many = grants.len() as u64;
            self.out.push(Output::Count(Counter::Bounced, many));
            self.pending
                .push_back((id, Event::Bounced { worker, grants }));
        }
    }

    /// What was taken back before it was told is not told: its worker would begin it.
    fn drop_taken_back(&mut self, id: PartitionId, worker: WorkerId, part: &mut Part) {
        let Some(partition) = self.partition(id) else {
            return;
        };
        let (before, mut bytes) = (part.grants.len(), 0);
        part.grants.retain(|grant| {
            let is_held = partition.is_granted_to(worker, key_of(grant));
            bytes += if is_held { 0 } else { size(grant) };
            is_held
        });
        self.links.bytes -= bytes;
        self.told(id, before - part.grants.len());
    }

    /// Sends what waits for a life.
    fn tell_worker(&mut self, now: Millis, worker: WorkerId) {
        let Some(link) = self.links.links.get_mut(&worker) else {
            return;
        };
        // Where it listens its lease says, which is perhaps not read yet.
        let Some(pool) = self.roster.lock().pool_of(worker) else {
            link.retry_at = now + NOT_READ;
            return;
        };
        let mut parts = std::mem::take(&mut link.parts);
        let (mut sections, mut bytes) = (Vec::new(), 0);
        let mut later = BTreeMap::new();
        while let Some((partition, mut part)) = parts.pop_first() {
            if bytes >= MAX_BYTES_TOGETHER || !self.may_tell(partition, worker, &part) {
                later.insert(partition, part);
                continue;
            }
            self.drop_taken_back(partition, worker, &mut part);
            if part.is_empty() {
                continue;
            }
            bytes += self.add_sections(partition, worker, &mut part, bytes, &mut sections);
            if !part.is_empty() {
                later.insert(partition, part);
            }
        }
        let id = (!sections.is_empty()).then(|| PublishId(self.number()));
        let Some(link) = self.links.links.get_mut(&worker) else {
            return;
        };
        link.settle_at = match later.values().any(|part| !part.settled.is_empty()) {
            true => link.settle_at,
            false => Millis::MAX,
        };
        link.waits_for_round = id.is_none() && !later.is_empty();
        link.parts = later;
        (link.on_the_way, link.has_greeted) = (id, false);
        let Some(id) = id else {
            return;
        };
        let keys = |section: &Section<Dispatch>| {
            let grants = section.grants.iter();
            let keys = grants.map(|grant| grant.grantee.key());
            (section.partition, section.epoch, keys.collect())
        };
        let sent = OnTheWay {
            worker,
            sections: sections.iter().map(keys).collect(),
            bytes,
        };
        self.links.on_the_way.insert(id, sent);
        self.out.push(Output::Dispatch {
            id,
            pool,
            worker,
            sections,
        });
    }

    /// Whether a life can be told about a partition now: a sync says what is committed, so while a round of
    /// the partition is under way none is made.
    fn may_tell(&self, partition: PartitionId, worker: WorkerId, part: &Part) -> bool {
        let stream = self.links.streams.get(&(partition, worker));
        let needs_sync = stream.is_none_or(Stream::needs_sync) || part.wants_sync;
        !(needs_sync && (self.rounds.touches(partition) || self.rewrites.contains_key(&partition)))
    }

    /// Makes the sections of a partition for a life, as many as fit; how many bytes they have.
    fn add_sections(
        &mut self,
        id: PartitionId,
        worker: WorkerId,
        part: &mut Part,
        before: usize,
        sections: &mut Vec<Section<Dispatch>>,
    ) -> usize {
        let Some(place) = self.places.get(&id) else {
            return 0;
        };
        let (epoch, owner) = (place.epoch, self.options.id);
        let stream = self.links.streams.entry((id, worker)).or_default();
        let needs_sync = std::mem::take(&mut part.wants_sync) || stream.needs_sync();
        let sync = match &place.stage {
            Stage::Serving(partition) if needs_sync => {
                // What was not sent yet comes behind it.
                let again = self.telling.again.all();
                let unsent: BTreeSet<Key> = part.grants.iter().map(key_of).chain(again).collect();
                let granted = partition.granted_to(worker).into_iter();
                part.recall.extend(partition.recalled_from(worker));
                Some(granted.filter(|key| !unsent.contains(key)).collect())
            }
            Stage::Serving(_) => None,
            _ if needs_sync => {
                // What is granted of a partition that is let go its next owner compares.
                let part = std::mem::take(part);
                self.links.bytes -= part.grants.iter().map(size).sum::<usize>();
                self.told(id, part.grants.len());
                return 0;
            }
            _ => None,
        };
        let max_bytes = self.options.cluster.max_message_bytes;
        let mut made = Sections::new(stream, (id, epoch, owner), max_bytes);
        if let Some(held) = sync {
            self.out.push(Output::Count(Counter::Synced, 1));
            made.sync(held);
        }
        made.settled(&mut part.settled);
        let alone = &self.links.alone;
        let is_alone = |grant: &Dispatch| alone.contains(&grant.grantee.execution_id);
        let room = MAX_BYTES_TOGETHER.saturating_sub(before);
        let bytes = made.grants(&mut part.grants, room, is_alone);
        if part.grants.is_empty() {
            made.calls(&mut part.cancel, &mut part.recall);
        }
        sections.extend(made.finish());
        bytes
    }

    /// It is known what came of something that was published.
    pub(super) fn published(&mut self, now: Millis, id: PublishId, published: Published) {
        let Some(sent) = self.links.on_the_way.remove(&id) else {
            return;
        };
        self.links.bytes -= sent.bytes;
        if matches!(published, Published::Confirmed) && !self.links.alone.is_empty() {
            for (execution_id, _) in sent.sections.iter().flat_map(|(.., grants)| grants) {
                self.links.alone.remove(execution_id);
            }
        }
        for (partition, epoch, grants) in &sent.sections {
            // It may have been lost and taken again meanwhile: then what is untold of it are other grants.
            if self
                .places
                .get(partition)
                .is_some_and(|place| place.epoch == *epoch)
            {
                self.told(*partition, grants.len());
            }
        }
        let worker = sent.worker;
        if let Some(link) = self.links.links.get_mut(&worker) {
            link.on_the_way = None;
        }
        match published {
            Published::Confirmed => {
                if let Some(link) = self.links.links.get_mut(&worker) {
                    link.backoff = Backoff::new(50, 2_000);
                }
                self.roster.lock().note_reach(worker, true);
            }
            Published::Unknown => {
                for (partition, ..) in &sent.sections {
                    self.has_lost(*partition, worker);
                }
                if let Some(link) = self.links.links.get_mut(&worker) {
                    link.retry_at = now + link.backoff.next_delay(&mut self.chance);
                }
            }
            Published::Refused(refused) => {
                for (place, refusal) in refused {
                    if let Some((partition, _, grants)) = sent.sections.get(place) {
                        self.refused_by_bus(now, worker, *partition, grants, &refusal);
                    }
                }
            }
        }
    }

    /// A section may be lost.
    fn has_lost(&mut self, partition: PartitionId, worker: WorkerId) {
        if let Some(stream) = self.links.streams.get_mut(&(partition, worker)) {
            stream.has_lost();
            if self.partition(partition).is_some() {
                self.links.want_sync(partition, worker);
            }
        }
    }

    fn refused_by_bus(
        &mut self,
        now: Millis,
        worker: WorkerId,
        partition: PartitionId,
        grants: &[Key],
        refusal: &Refusal,
    ) {
        self.has_lost(partition, worker);
        if let Some(link) = self.links.links.get_mut(&worker) {
            link.retry_at = now + link.backoff.next_delay(&mut self.chance);
        }
        if self.partition(partition).is_none() {
            return;
        }
        if grants.len() > 1 && matches!(refusal, Refusal::TooLarge { .. } | Refusal::Invalid(_)) {
            // Which of them cannot be sent shows when each goes by itself.
            let ids = grants.iter().map(|(execution_id, _)| *execution_id);
            self.links.alone.extend(ids);
            let grants = grants.to_vec();
            self.pending
                .push_back((partition, Event::Bounced { worker, grants }));
            return;
        }
        let why = match refusal {
            // A queue that the life has left may be full beside the one that it reads, which has taken it.
            Refusal::Full => return,
            // Nobody received it, and it is in no queue: what it granted never left. Where this executor may
            // not tell the life at all another pool, or another executor later, can have it.
            Refusal::Unroutable | Refusal::Forbidden(_) => {
                if let Some(link) = self.links.links.get_mut(&worker) {
                    link.is_cut_off = !link.has_greeted;
                }
                self.roster.lock().note_reach(worker, false);
                return self.bounced(partition, worker, grants.to_vec());
            }
            Refusal::TooLarge { bytes, max } => {
                format!("its dispatch has {bytes} bytes, and a message may have {max}")
            }
            Refusal::Invalid(words) => format!("its dispatch cannot be sent: {words}"),
        };
        for (execution_id, attempt) in grants.iter().copied() {
            let event = Event::Undispatchable {
                execution_id,
                attempt,
                why: why.clone(),
            };
            self.pending.push_back((partition, event));
        }
    }

    /// A life has said something: messages reach it.
    pub(super) fn is_heard_of(&mut self, worker: WorkerId) {
        self.links.is_heard(worker);
        self.roster.lock().note_reach(worker, true);
    }
}

fn key_of(dispatch: &Dispatch) -> Key {
    dispatch.grantee.key()
}
