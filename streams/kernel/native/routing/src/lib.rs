//! Plain decisions of `POST /route`, made without Python: the default policy over what the index
//! holds, what targets carry, and what decisions say they will hold. And plain reports of them.
//!
//!     bodies              a plain body, read in one pass
//!     boards              what decisions go by, as Python has published it, and their own effects
//!     policy              who is chosen: `routing.policies.decide` with `least-delay`
//!     predictions         who will hold a prompt soon: `routing.observed.predicted_blocks`
//!     decided             those that Python has yet to book, and what they have added to loads
//!     answers             those that are given again, by the id of their request
//!     record, document    a decision as the routing log has it, and as its client is told
//!     route               one decision, from its body to its answer
//!     reports             what came of those, as clients tell it
//!
//! Python is the specification, and the owner of all that a decision reads. It publishes that, books
//! what was decided here a moment later (`routing/decisions/kernel_decisions.py`), and decides
//! whatever is unusual itself: here None says so.

#![deny(clippy::all)]
#![forbid(unsafe_code)]

mod answers;
pub mod boards;
pub mod bodies;
pub mod decided;
mod document;
pub mod open_decisions;
pub mod policy;
pub mod predictions;
mod record;
pub mod reports;
pub mod route;
