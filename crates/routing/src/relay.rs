//! A relay: what to do with a message, and bringing it there.

use std::time::Duration;

use uuid::Uuid;

use crate::forwarder::{Bounds, Forwarder};
use crate::port::{Input, Now, Output};
use crate::router::Router;
use crate::rules::Rules;

/// Decides what becomes of the messages of one topic; see the [crate].
pub struct Relay<R: Rules> {
    router: Router<R>,
    forwarder: Forwarder<R>,
}

impl<R: Rules> Relay<R> {
    /// Nothing yet. `ids` makes the ids of messages, a new one each time.
    pub fn new(rules: R, bounds: Bounds, ids: impl FnMut() -> Uuid + Send + 'static) -> Self {
        Self {
            router: Router::new(rules, bounds.max_message_bytes, Box::new(ids)),
            forwarder: Forwarder::new(bounds),
        }
    }

    /// Takes what happened into account and says what to do.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Output<R::Note>> {
        let mut outputs = Vec::new();
        match input {
            Input::Delivered(arrived) => {
                let (mut received, mut changed) = (0, 0);
                for arrived in arrived {
                    let routed = self.router.route(now.wall, &arrived);
                    received += routed.received;
                    changed += routed.changed;
                    self.forwarder.take(now, &arrived, routed.parts);
                }
                outputs.push(Output::Taken { received, changed });
            }
            Input::Answered(call, answer) => {
                let ids = self.router.ids();
                self.forwarder
                    .answered(now, call, answer, ids, &mut outputs);
            }
            Input::Timer => {}
            Input::Stop => self.forwarder.stop(),
        }
        self.forwarder.go_on(now, self.router.ids(), &mut outputs);
        outputs
    }

    /// By what it decides.
    pub fn rules(&self) -> &R {
        self.router.rules()
    }

    /// Whether everything that was published is answered.
    pub fn is_quiet(&self) -> bool {
        self.forwarder.is_quiet()
    }

    /// Whether the bus was closed.
    pub fn is_closed(&self) -> bool {
        self.forwarder.is_closed()
    }

    /// Whether more messages should be given to it.
    pub fn wants_more(&self) -> bool {
        self.forwarder.wants_more()
    }

    /// When it wants to be stepped next without anything having happened.
    pub fn wake_at(&self) -> Option<Duration> {
        self.forwarder.wake_at()
    }

    /// What an operator must know, if anything.
    pub fn trouble(&self) -> Option<String> {
        self.forwarder.trouble()
    }
}
