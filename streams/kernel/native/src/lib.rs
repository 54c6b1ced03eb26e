//! The Python module `streams.kernel._native`: the prefix index (`index/`) and the packing of what
//! engines publish (`wire/`) for Python.
//!
//!     python              the class `Kernel`
//!     audits              the class `AuditQueue`, of answers that are kept
//!     boards              the class `RouteBoards`, of what decisions without Python go by (`routing/`)
//!     listeners           the class `Listener`, of what listens for HTTP (`listener/`, `heads/`)
//!     messages            the class `MessageRun`, of many messages in one buffer
//!     packers             the classes `ArrayPacker` and `BatchPacker`
//!     sockets             the class `SocketReader`, of what arrives by ZeroMQ
//!     convert, tuples     Python values in and out
//!     gil                 when a call lets other Python threads run

#![deny(clippy::all)]
#![deny(unsafe_code)]

mod audits;
mod boards;
mod convert;
mod gil;
mod listeners;
mod messages;
mod packers;
mod python;
mod sockets;
mod tuples;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::audits::AuditQueue;
    #[pymodule_export]
    use crate::boards::RouteBoards;
    #[pymodule_export]
    use crate::listeners::Listener;
    #[pymodule_export]
    use crate::messages::MessageRun;
    #[pymodule_export]
    use crate::packers::{ArrayPacker, BatchPacker};
    #[pymodule_export]
    use crate::python::{ChangeSelection, ContextDump, Kernel};
    #[pymodule_export]
    use crate::sockets::SocketReader;
}
