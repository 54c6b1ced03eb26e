//! How much of everything there may be.

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
