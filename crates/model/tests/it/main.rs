//! The protocols hold; each variant that leaves something out does not.

#![cfg(test)]

mod dispatch;
mod ownership;
