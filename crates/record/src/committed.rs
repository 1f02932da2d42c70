//! The moment at which a decision is a fact.

use crate::record::Record;

impl Record {
    /// The same record of an owner, this process, with the number and the time of the commit that
    /// made it true;
    /// kinds that owners do not commit stay as they are.
    #[must_use]
    pub fn committed(mut self, number: u64, now_ns: i64) -> Self {
        match &mut self {
            Self::Accepted { round, t_ns, .. }
            | Self::Held { round, t_ns, .. }
            | Self::Granted { round, t_ns, .. }
            | Self::Ended { round, t_ns, .. }
            | Self::Revoked { round, t_ns, .. }
            | Self::Limit { round, t_ns, .. }
            | Self::Totals { round, t_ns, .. } => (*round, *t_ns) = (number, now_ns),
            Self::Grouped(one) => (one.round, one.t_ns) = (number, now_ns),
            Self::HandedOn(one) => (one.round, one.t_ns) = (number, now_ns),
            Self::Moved(one) => (one.round, one.t_ns) = (number, now_ns),
            Self::Policy(one) => (one.round, one.t_ns) = (number, now_ns),
            Self::Operated(page) => (page.round, page.t_ns) = (number, now_ns),
            Self::Acquired { pid, t_ns, .. } => {
                (*pid, *t_ns) = (Some(std::process::id()), now_ns);
            }
            Self::StaleCompletion { t_ns, .. } => *t_ns = now_ns,
            _ => {}
        }
        self
    }
}
