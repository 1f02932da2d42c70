//! In the place of the clock of leases: the one that a scenario moves.

pub(crate) use crate::time::{Instant as BootInstant, sleep_until};
