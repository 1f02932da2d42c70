//! Why a message bus does not take a message: ports and everybody who decides what follows speak of it.

/// Why the bus does not take a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody has ever subscribed to its topic or declared it.
    #[error("nobody has declared its topic")]
    Unroutable,
    /// What is kept for its topic is at its bound, or the broker cannot keep it right now.
    #[error("its topic has no room")]
    Full,
    /// Whoever publishes lacks the right, as these words say. It was not taken, and may be once the right is
    /// given.
    #[error("it may not be published: {0}")]
    Forbidden(String),
    /// It is larger than this bus carries.
    #[error("it has {bytes} bytes; at most {max} are allowed")]
    TooLarge {
        /// How large its body is.
        bytes: usize,
        /// How large a body may be.
        max: usize,
    },
    /// This bus can never carry it, for this reason.
    #[error("it cannot be carried: {0}")]
    Invalid(String),
}

impl Refusal {
    /// Whether the same message will be refused for ever: publishing it again is of no use. The
    /// others end when somebody subscribes, when there is room again, or when a right is given.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::Invalid(_))
    }
}
