//! The seeded simulator: the executor's real core, and its real folding of effects into batches,
//! under every fault that can be drawn from a seed.
//!
//! Nothing here has a thread, a socket or a clock. [`Plan`] draws from the seed what clients do
//! and what goes wrong; [`run`] lets it happen in virtual time, one event after the other:
//! several owners, stale ones among them; a store that keeps its fences but may fail, hang, or
//! write without being able to say so; a broker that delays, doubles and gives back; workers
//! that die, stand still, and report late or twice. After every step an oracle of plain lists
//! judges the promises; at some point everything is healed, and then all must end.
//!
//! One seed is one run, the same to the bit whenever it is repeated. [`shrink`] makes a failing
//! run short. Bugs can be planted ([`Plant`]) to see that they are found.

mod beside;
mod bus;
mod check;
mod client;
mod clocks;
mod explaining;
mod faults;
mod flow;
mod forging;
mod former;
mod groups;
mod happened;
mod holds;
mod idle;
mod lasting;
mod operations;
mod oracle;
mod overflow;
mod owner;
mod plan;
mod policies;
mod rates;
mod refusals;
mod results;
mod retries;
mod rng;
mod routing;
mod said;
mod shadow;
mod shares;
mod shrink;
mod store;
mod trace;
mod ways;
mod worker;
mod world;

pub use check::{Options, Report, check};
pub use oracle::{Rule, Violation};
pub use plan::{ActionShape, Fault, Noise, Op, Plan, Planned, Plant, Reads, Time};
pub use routing::{RoutingFault, RoutingPlan};
pub use shrink::shrink;
pub use world::{Outcome, Seen, run};
