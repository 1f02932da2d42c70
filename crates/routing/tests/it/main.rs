//! The relay alone: what it acknowledges is safe somewhere, whatever the bus answers; and the same
//! inputs always lead to the same outputs.

mod completions;
mod firings;
mod world;
