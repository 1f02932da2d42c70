//! Publishing on one channel.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use attune_bus::{PublishError, Refusal, Refused};
use futures_util::stream::{FuturesUnordered, StreamExt};
use lapin::message::BasicReturnMessage;
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, ErrorKind};
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use crate::barred::{Barred, Pass, Route, Scope};
use crate::cause::Closed;
use crate::link::Life;
use crate::message::Prepared;
use crate::pace::Pace;
use crate::publisher::{Answer, CALLS_HELD, Job, PublisherTask};
use crate::trial::{self, Tried};
use crate::window::{Became, CallId, Sent, Verdict, Window};

/// How often it is seen whether calls that wait may be written now, whatever is confirmed.
const LOOK: Duration = Duration::from_millis(100);
/// After so many times the time in which it should have been confirmed, a message that was not
/// ends its connection, although others are confirmed: perhaps the next one serves it.
const STUCK: u32 = 10;
/// How often a blocked connection is looked at whose oldest call is over its deadline.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many messages may be tried at a time on channels of their own.
const MAX_TRIALS: usize = 8;

type Confirming = Pin<Box<dyn Future<Output = (u64, lapin::Result<Confirmation>)> + Send>>;
type Trying = Pin<Box<dyn Future<Output = (Trial, Tried)> + Send>>;

/// Why publishing on a channel ended.
pub(crate) enum End {
    /// Something is wrong with the connection.
    Life(String),
    /// The broker closed the channel, and said why unless that was missed; the connection goes on.
    Channel(Option<Closed>),
}

/// What went wrong with a publish.
enum Fault {
    /// The channel was closed, and why is said to those whose confirm is waited for.
    Stray,
    Channel(Closed),
    Life(String),
}

/// A message on its way by a channel of its own.
struct Trial {
    call: CallId,
    id: Uuid,
    route: Route,
    is_hint: bool,
}

/// Publishing on one channel, which lives as long as its connection unless the broker closes it.
pub(crate) struct Session {
    channel: Channel,
    life: Arc<Life>,
    barred: Arc<Barred>,
    window: Window<Answer>,
    pace: Pace,
    confirming: FuturesUnordered<Confirming>,
    trying: FuturesUnordered<Trying>,
    fault: Option<Fault>,
    /// How long a trial may take.
    timeout: Duration,
    /// A confirm was observed since calls were last settled.
    news: bool,
    /// When something was confirmed last.
    confirmed: Instant,
}

impl Session {
    pub(crate) fn new(channel: Channel, life: Arc<Life>, task: &PublisherTask) -> Self {
        Self {
            channel,
            life,
            barred: Arc::clone(&task.barred),
            window: Window::new(),
            pace: Pace::default(),
            confirming: FuturesUnordered::new(),
            trying: FuturesUnordered::new(),
            fault: None,
            timeout: task.timeout,
            news: false,
            confirmed: Instant::now(),
        }
    }

    /// Writes and collects confirms until the bus closes and everything is confirmed (`Ok`) or
    /// it cannot go on.
    pub(crate) async fn run(&mut self, task: &mut PublisherTask) -> Result<(), End> {
        let life = Arc::clone(&self.life);
        let mut closing = None;
        let mut look = Instant::now();
        loop {
            task.take_up(closing.is_some());
            self.write_held(&mut task.held).await;
            self.judge_fault()?;
            if std::mem::take(&mut self.news) {
                self.settle();
                self.judge_fault()?;
                // There may be room now, and what was woken meanwhile is seen below.
                continue;
            }
            if closing.is_some() && self.window.is_empty() {
                return Ok(());
            }
            // When nothing gets a confirm for so long, this connection is ill one way or the
            // other. Blocked ones are kept (the next would be blocked as well): they recover, and
            // what is held is bounded.
            let overdue = self.overdue(task.timeout).map(|at| look.max(at));
            tokio::select! {
                biased;
                cause = life.failed() => return Err(End::Life(cause)),
                () = task.closing.cancelled(), if closing.is_none() => {
                    task.jobs.close();
                    closing = Some(Instant::now() + task.timeout);
                }
                () = sleep_until(closing.unwrap_or(look)), if closing.is_some() => {
                    let cause = "closed before everything was confirmed";
                    return Err(End::Life(cause.to_owned()));
                }
                Some(done) = self.confirming.next(), if !self.confirming.is_empty() => {
                    self.observe(done);
                }
                Some(done) = self.trying.next(), if !self.trying.is_empty() => {
                    self.tried(done);
                }
                Some(job) = task.jobs.recv(),
                    if closing.is_none() && task.held.len() < CALLS_HELD =>
                {
                    task.held.push_back(job);
                }
                () = sleep(LOOK), if !task.held.is_empty() => {}
                () = sleep_until(overdue.unwrap_or(look)), if overdue.is_some() => {
                    if life.blocked().is_none() {
                        let cause = "the broker has not confirmed in time";
                        return Err(End::Life(cause.to_owned()));
                    }
                    look = Instant::now() + PATIENCE;
                }
            }
        }
    }

    /// Ends what cannot go on.
    fn judge_fault(&mut self) -> Result<(), End> {
        let is_over = match self.fault {
            None => !self.channel.status().connected() && self.confirming.is_empty(),
            Some(Fault::Stray) => self.confirming.is_empty(),
            Some(_) => true,
        };
        if !is_over {
            return Ok(());
        }
        Err(match self.fault.take() {
            None | Some(Fault::Stray) => End::Channel(None),
            Some(Fault::Channel(closed)) => End::Channel(Some(closed)),
            Some(Fault::Life(cause)) => End::Life(cause),
        })
    }

    /// Until when something must be confirmed.
    fn overdue(&self, timeout: Duration) -> Option<Instant> {
        let oldest = self.window.oldest()?;
        Some((oldest.max(self.confirmed) + timeout).min(oldest + STUCK * timeout))
    }

    /// Writes what may be written now, in the order in which the calls came. One that has to wait
    /// for a queue holds up only those behind it that go there as well.
    async fn write_held(&mut self, held: &mut VecDeque<Job>) {
        self.pace.look(Instant::now());
        let mut waited_for: HashSet<ShortString> = HashSet::new();
        let mut place = 0;
        while self.pace.has_room()
            && self.channel.status().connected()
            && let Some(job) = held.get_mut(place)
        {
            self.write(job, &waited_for).await;
            if job.messages.is_empty() {
                held.remove(place);
            } else {
                waited_for.extend(job.keys.iter().cloned());
                place += 1;
            }
        }
    }

    /// Writes messages of a call as long as there is room, and as their queues take them.
    async fn write(&mut self, job: &mut Job, waited_for: &HashSet<ShortString>) {
        let may_go = |pace: &Pace, message: &Prepared| {
            let key = &message.routing_key;
            pace.has_room() && pace.takes(key) && !waited_for.contains(key)
        };
        while let Some(message) = job.messages.pop_front_if(|next| may_go(&self.pace, next)) {
            if !self.channel.status().connected() {
                // Why is said to those that are not confirmed. The call has not begun, or its outcome is
                // unknown anyway.
                job.messages.push_front(message);
                return;
            }
            let call = self.begin(job);
            let is_last = job.messages.is_empty();
            let now = Instant::now();
            match self.barred.pass(&message.route(), message.is_hint, now) {
                Pass::Free => self.write_one(call, message, now).await,
                Pass::Trial if self.trying.len() < MAX_TRIALS => self.try_one(call, message),
                Pass::Trial => {
                    let why = "too many messages are tried at the moment".to_owned();
                    self.refuse(call, message.id, Refusal::Forbidden(why));
                }
                Pass::Refused(why) => self.refuse(call, message.id, why),
            }
            if is_last {
                self.window.finish(call);
                // What was refused right here may be all there was in it.
                self.news = true;
            }
        }
    }

    async fn write_one(&mut self, call: CallId, message: Prepared, now: Instant) {
        let (key, bytes) = (message.routing_key.clone(), message.body.len());
        let sent = Sent {
            id: message.id,
            to: message.route(),
            bytes,
            is_hint: message.is_hint,
            at: now,
        };
        let sequence = self.window.push(call, sent);
        self.pace.sent(&key, sequence, bytes, now);
        let mut confirming: Confirming =
            Box::pin(publish_one(self.channel.clone(), message, sequence));
        // lapin takes the frames in the first poll, so polling here, one by one, is what
        // keeps the order. That they are written, and confirmed, is awaited later and
        // concurrently: waiting for one confirm at a time costs a sync to disk each.
        match futures_util::poll!(confirming.as_mut()) {
            // Seldom, but a fast broker can have confirmed it before this poll is over.
            Poll::Ready(done) => self.observe(done),
            Poll::Pending => self.confirming.push(confirming),
        }
    }

    fn refuse(&mut self, call: CallId, message_id: Uuid, why: Refusal) {
        self.window.hold(call);
        let refused = Refused { message_id, why };
        self.window.release(call, Became::Refused(refused));
    }

    /// Sends a message that goes a way on which others were refused.
    fn try_one(&mut self, call: CallId, message: Prepared) {
        self.window.hold(call);
        let trial = Trial {
            call,
            id: message.id,
            route: message.route(),
            is_hint: message.is_hint,
        };
        let (life, limit) = (Arc::clone(&self.life), self.timeout);
        self.trying.push(Box::pin(async move {
            let tried = trial::publish(&life, message, limit).await;
            (trial, tried)
        }));
    }

    /// Takes into account what became of a message that was tried.
    fn tried(&mut self, (trial, tried): (Trial, Tried)) {
        let refused = |why| {
            let message_id = trial.id;
            Became::Refused(Refused { message_id, why })
        };
        let became = match tried {
            Tried::Unknown(why) => Became::Unknown(why),
            Tried::Closed(closed) => match self.scope_of(&closed, &trial.route) {
                Some(scope) => refused(self.bar(scope, trial.is_hint, &closed)),
                // Nothing was taken on a channel that was closed because of its only message, but why
                // is not known: it is not said to be refused.
                None => Became::Unknown(closed.text),
            },
            Tried::Judged(refusal) => {
                if self.barred.taken(&trial.route) {
                    tracing::info!(
                        bus.exchange = %trial.route.exchange,
                        bus.routing_key = %trial.route.key,
                        "the broker takes what it had refused for lack of a right"
                    );
                }
                refusal.map_or(Became::Kept, refused)
            }
        };
        self.window.release(trial.call, became);
        self.news = true;
    }

    fn scope_of(&self, closed: &Closed, route: &Route) -> Option<Scope> {
        let scope = closed
            .lacks_right()
            .then(|| Scope::said(&closed.text, route));
        scope.flatten()
    }

    /// Nothing goes this way for a while; answers what its messages are refused with.
    fn bar(&self, scope: Scope, is_hint: bool, closed: &Closed) -> Refusal {
        let now = Instant::now();
        let (why, is_due) = self.barred.refused(scope, is_hint, &closed.text, now);
        if is_due {
            tracing::warn!(
                reason = %why,
                "the broker refuses messages; it is tried again ever more rarely"
            );
        }
        why
    }

    /// Begins a call, unless it has begun.
    fn begin(&mut self, job: &mut Job) -> CallId {
        match job.answer.take() {
            Some(answer) => *job.call.insert(self.window.begin(answer)),
            None => job
                .call
                .expect("a call gives its answer away when it begins"),
        }
    }

    fn observe(&mut self, (sequence, confirmation): (u64, lapin::Result<Confirmation>)) {
        let confirmation = match confirmation {
            Ok(confirmation) => confirmation,
            Err(error) => return self.note_fault(&error),
        };
        // An unroutable message is acked as well: `is_ack` alone means nothing.
        let verdict = if confirmation.is_ack() {
            Verdict::Acked
        } else {
            Verdict::Nacked
        };
        let returned = confirmation.take_message();
        let key = self.window.confirmed(sequence, verdict, returned.is_none());
        if let Some(key) = key {
            self.pace.confirmed(&key, sequence);
        }
        self.news = true;
        self.confirmed = Instant::now();
        if let Some(returned) = returned {
            self.observe_return(&returned);
        }
    }

    /// Notes why a message has no confirm. What the broker said counts for more than that the channel was
    /// closed.
    fn note_fault(&mut self, error: &lapin::Error) {
        let fault = match (Closed::of(error), error.kind()) {
            (Some(closed), _) => Fault::Channel(closed),
            (None, ErrorKind::InvalidChannelState(..)) => Fault::Stray,
            (None, _) => Fault::Life(error.to_string()),
        };
        if matches!(self.fault, None | Some(Fault::Stray)) {
            self.fault = Some(fault);
        }
    }

    fn observe_return(&mut self, returned: &BasicReturnMessage) {
        let id = returned
            .properties
            .message_id()
            .as_ref()
            .map(|id| id.as_str());
        let known = id
            .and_then(|id| id.parse::<Uuid>().ok())
            .is_some_and(|id| self.window.returned(id, returned.routing_key.as_str()));
        if !known {
            tracing::error!(
                message.id = id.unwrap_or("none"),
                bus.routing_key = %returned.routing_key,
                "the broker returned a message that is not in flight"
            );
        }
    }

    /// Answers the calls that are settled.
    fn settle(&mut self) {
        self.observe_all_completed();
        self.news = false;
        for (answer, refused) in self.window.settled() {
            let result = match refused.is_empty() {
                true => Ok(()),
                false => Err(PublishError::Refused(refused)),
            };
            // Fails when the caller has gone, which is its right.
            answer.send(result).ok();
        }
        for (answer, why) in self.window.lost() {
            answer.send(Err(PublishError::Unconfirmed(why))).ok();
        }
    }

    /// Observes every confirm that lapin has completed so far, so that no return hides behind
    /// one that is not looked at yet; see [`crate::window`].
    ///
    /// `FuturesUnordered` says `Pending` also when it only wants to yield, and then wakes its
    /// waker at once. So it is polled with a waker of our own until it says `Pending` and has not
    /// woken: then its list of woken futures was empty. lapin completes confirms on one thread
    /// and wakes on the spot, so whatever it completed before one that was seen is on that list.
    fn observe_all_completed(&mut self) {
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        loop {
            match self.confirming.poll_next_unpin(&mut context) {
                Poll::Ready(Some(done)) => self.observe(done),
                Poll::Ready(None) => return,
                Poll::Pending if woken.0.swap(false, Ordering::SeqCst) => {}
                Poll::Pending => return,
            }
        }
    }

    /// The broker has closed the channel: answers what is known, and whether it is known why.
    pub(crate) fn close(&mut self, closed: &Closed) -> bool {
        // What was confirmed before is certain.
        self.observe_all_completed();
        let known = if let Some((bytes, max)) = closed.too_large() {
            let why = Refusal::TooLarge { bytes, max };
            self.window.refuse_size(bytes, &why)
        } else if let Some((scope, is_hint)) = self.culprit(closed) {
            let why = self.bar(scope.clone(), is_hint, closed);
            self.window.refuse_last(|route| scope.holds(route), why)
        } else {
            false
        };
        self.settle();
        known
    }

    /// What the user may not do, and whether nobody misses that.
    fn culprit(&self, closed: &Closed) -> Option<(Scope, bool)> {
        let mut routes = self.window.routes();
        routes.find_map(|(route, is_hint)| Some((self.scope_of(closed, route)?, is_hint)))
    }

    /// Tells everybody who still waits that the outcome is unknown.
    pub(crate) fn abandon(self, cause: &str) {
        for answer in self.window.into_owners() {
            answer
                .send(Err(PublishError::Unconfirmed(cause.to_owned())))
                .ok();
        }
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn publish_one(
    channel: Channel,
    message: Prepared,
    sequence: u64,
) -> (u64, lapin::Result<Confirmation>) {
    (sequence, message.publish_on(&channel).await)
}
