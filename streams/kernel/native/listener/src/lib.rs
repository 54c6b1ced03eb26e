//! Listens for HTTP clients and answers plain queries, and plain decisions, (`heads`) without Python. A connection on
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
//!     bounds              how much of all that there may be

#![deny(clippy::all)]
#![forbid(unsafe_code)]

mod admitted;
mod bounds;
mod connection;
pub mod counts;
mod handle;
mod shared;
pub mod shown;
mod threads;

pub use admitted::Rights;
pub use bounds::Bounds;
pub use handle::Listener;
pub use shared::Handed;
