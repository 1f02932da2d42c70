//! How much of a topic waits.

/// What waits in the queue of a topic, and who receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Depth {
    /// Messages that nobody was given yet.
    pub messages: u32,
    /// Who is subscribed.
    pub consumers: u32,
}
