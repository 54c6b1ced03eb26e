//! Listens for HTTP clients and answers plain queries (`heads`) without Python. A connection on
//! which anything else comes, or comes slowly, is handed over with all that has come of it, to the
//! server that knows all of HTTP. So this side answers 200 or nothing, and words no error.
//!
//!     handle              starting and stopping; what is handed over and given back
//!     threads             the loops: accepting, reading, who waits too long
//!     shared              what they share
//!     connection          one request after the other
//!     shown               what is answered from, as it was when it was last looked at
//!     counts              what was answered
//!     admitted            whose requests Python has let through

#![deny(clippy::all)]
#![forbid(unsafe_code)]

mod admitted;
mod connection;
pub mod counts;
mod handle;
mod shared;
pub mod shown;
mod threads;

pub use handle::Listener;
pub use shared::Handed;

use std::time::Duration;

/// `schemas/limits.py` has the values.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Of a request's body; a larger one is handed over.
    pub body_bytes: usize,
    /// Of all requests of which a part has come.
    pub bodies_bytes: usize,
    /// From a request's first byte to its last, and from a connection to its first byte.
    pub request: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// Connections, those that were handed over included.
    pub connections: usize,
    /// The highest descriptor that one may have.
    pub descriptor: i32,
    /// Whether queries with a `traceparent` are answered; else they are handed over.
    pub answers_traced: bool,
}
