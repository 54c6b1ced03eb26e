//! What the threads of a listener share, and what they tell each other.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mio::Waker;
use mio::net::TcpStream;
use parking_lot::Mutex;
use routing::boards::Boards;

use crate::admitted::Admitted;
use crate::bounds::Bounds;
use crate::counts::Queries;
use crate::shown::Shown;

/// A connection that is another server's from here on.
pub struct Handed {
    pub descriptor: OwnedFd,
    /// What has come of a request.
    pub received: Vec<u8>,
    /// What is still to be sent of an answer.
    pub unsent: Vec<u8>,
    /// How long it has waited.
    pub age: Duration,
    /// Whether this side has found no room for it either.
    pub is_last: bool,
}

/// A connection for one of the threads.
pub(crate) struct Incoming {
    pub stream: TcpStream,
    pub served: bool,
    /// How many threads are to look for one to close in its place; none where there is room.
    pub looks: usize,
}

/// What a thread is told by others.
pub(crate) struct Lane {
    pub incoming: Mutex<Vec<Incoming>>,
    /// How many of its connections are to make room for others.
    pub closing: AtomicUsize,
    pub waker: Waker,
}

impl Lane {
    pub fn new(waker: Waker) -> Self {
        Self { incoming: Mutex::default(), closing: AtomicUsize::new(0), waker }
    }
}

/// What all threads share.
pub(crate) struct Shared<S> {
    pub shown: Shown<S>,
    pub bounds: Bounds,
    pub admitted: Admitted,
    /// As answers name them.
    pub states: Vec<String>,
    /// Of `/query`, `/query_by_hash`, `/route` and `/feedback`.
    pub queries: [Mutex<Queries>; 4],
    /// What decisions go by; None: none is made here.
    pub boards: Option<Arc<Boards>>,
    pub held: AtomicUsize,
    pub open: AtomicUsize,
    /// Connections that are another server's.
    pub others: AtomicUsize,
    /// Counted since they were last taken.
    pub closed_for_another: AtomicUsize,
    pub panics: AtomicUsize,
    pub stopping: AtomicBool,
    pub handed: Mutex<VecDeque<Handed>>,
    /// A byte for whoever takes what is handed over.
    bell: UnixStream,
    pub lanes: Vec<Lane>,
    next_lane: AtomicUsize,
}

impl<S> Shared<S> {
    #[expect(clippy::too_many_arguments, reason = "they are what the threads share")]
    pub fn new(
        shown: Shown<S>,
        bounds: Bounds,
        needs_keys: bool,
        states: Vec<String>,
        queries: &Queries,
        boards: Option<Arc<Boards>>,
        bell: UnixStream,
        lanes: Vec<Lane>,
    ) -> Self {
        Self {
            shown,
            bounds,
            admitted: Admitted::new(needs_keys),
            states,
            queries: std::array::from_fn(|_| Mutex::new(queries.clone())),
            boards,
            held: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
            closed_for_another: AtomicUsize::new(0),
            panics: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            handed: Mutex::default(),
            bell,
            lanes,
            next_lane: AtomicUsize::new(0),
        }
    }

    /// Takes room for a request's body.
    pub fn has_room(&self, bytes: usize) -> bool {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if held > self.bounds.bodies_bytes {
            self.give_back(bytes);
            return false;
        }
        true
    }

    pub fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    pub fn hand_over(&self, handed: Handed) {
        let mut queue = self.handed.lock();
        queue.push_back(handed);
        if queue.len() == 1 {
            // It holds thousands of bytes that nobody has read; then somebody was told often enough.
            let _ = (&self.bell).write(&[1]);
        }
    }

    pub fn is_full(&self, descriptor: RawFd) -> bool {
        let open = self.open.load(Ordering::Relaxed) + self.others.load(Ordering::Relaxed);
        open >= self.bounds.connections || descriptor > self.bounds.descriptor
    }

    /// Whose turn it is: each lane's after the other.
    pub fn next_lane(&self) -> usize {
        self.next_lane.fetch_add(1, Ordering::Relaxed) % self.lanes.len()
    }

    pub fn give(&self, incoming: Incoming) {
        self.give_to(self.next_lane(), incoming);
    }

    pub fn give_to(&self, lane: usize, incoming: Incoming) {
        let lane = &self.lanes[lane];
        lane.incoming.lock().push(incoming);
        // It fails where the thread has ended: then what is given is closed with the listener.
        let _ = lane.waker.wake();
    }
}

/// One on which no request has come.
pub(crate) fn unread(stream: TcpStream, is_last: bool) -> Handed {
    let descriptor = OwnedFd::from(std::net::TcpStream::from(stream));
    let (received, unsent) = (Vec::new(), Vec::new());
    Handed { descriptor, received, unsent, age: Duration::ZERO, is_last }
}
