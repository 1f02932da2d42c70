//! Tests of the in-process bus and of what is built on the port.

mod memory;
