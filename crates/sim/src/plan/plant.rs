//! Bugs that are planted around the owner; those inside of it are built in, see `scripts/plants`.

/// A bug that is planted to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// The store takes what stale owners write.
    NoFence,
    /// Owners take the broker's word for a message that may have been delivered as one that was not.
    BounceDelivered,
    /// Every completion frees a slot, however often it comes.
    Counter,
    /// Owners acknowledge what they receive before they have stored what follows from it.
    AckFirst,
    /// The broker gives back what was not acknowledged behind what waits.
    RequeueLast,
    /// Owners say that something is refused before the broker has their acknowledgement.
    RefuseFirst,
    /// Owners tell before they have committed.
    TellFirst,
    /// An owner that takes a partition again goes on with what it had received in its last epoch.
    StaleInbox,
    /// An owner writes a round again in the same epoch when its outcome is unknown.
    SameEpoch,
    /// Whoever gives up on a store call drops it: its connection goes back to the pool inside a
    /// transaction, where the next write is confirmed and never committed.
    CancelDb,
    /// Owners take the result of an attempt that has lost its slot for that of the next one.
    StaleResult,
    /// A worker forgets an end when the broker has confirmed it.
    ForgetConfirmed,
    /// A worker writes down what has begun only when it has ended.
    MapAfterStart,
    /// A worker says with the end of its lease that nothing had begun.
    RetireUnbegun,
    /// A client does not ask again when the broker has lost its call or the answer.
    AskOnce,
}

impl Plant {
    /// All of them, by the names they have on the command line.
    pub const ALL: [(&'static str, Self); 15] = [
        ("no-fence", Self::NoFence),
        ("bounce-delivered", Self::BounceDelivered),
        ("counter", Self::Counter),
        ("ack-first", Self::AckFirst),
        ("nack-requeue", Self::RequeueLast),
        ("refuse-first", Self::RefuseFirst),
        ("tell-first", Self::TellFirst),
        ("stale-inbox", Self::StaleInbox),
        ("same-epoch", Self::SameEpoch),
        ("cancel-db", Self::CancelDb),
        ("stale-result", Self::StaleResult),
        ("forget-confirmed", Self::ForgetConfirmed),
        ("map-after-start", Self::MapAfterStart),
        ("retire-unbegun", Self::RetireUnbegun),
        ("ask-once", Self::AskOnce),
    ];
}
