//! The threads, each with a loop of its own. The first of them accepts; connections go to all in
//! turn.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use crate::connection::{Connection, Next, Scratch};
use crate::shared::{Handed, Incoming, Shared, unread};
use crate::shown::Service;

pub(crate) const LISTENING: Token = Token(usize::MAX);
pub(crate) const WOKEN: Token = Token(usize::MAX - 1);
/// How often connections that wait are looked at.
const SWEEP: Duration = Duration::from_millis(250);
/// Before requests that rest are looked at again.
const REST: Duration = Duration::from_millis(2);
/// Before another attempt, where the system gives no descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct Thread<S> {
    shared: Arc<Shared<S>>,
    lane: usize,
    poll: Poll,
    listening: Option<TcpListener>,
    /// When to accept again, after an attempt that failed.
    accept_at: Option<Instant>,
    connections: Slab<Connection>,
    /// Those whose requests rest, the first one first.
    resting: Vec<usize>,
    scratch: Scratch,
}

impl<S: Service> Thread<S> {
    pub fn new(
        shared: Arc<Shared<S>>,
        lane: usize,
        poll: Poll,
        listening: Option<TcpListener>,
    ) -> Self {
        let (connections, scratch) = (Slab::new(), Scratch::default());
        let resting = Vec::new();
        Self { shared, lane, poll, listening, accept_at: None, connections, resting, scratch }
    }

    pub fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut sweep_at = Instant::now() + SWEEP;
        while !self.shared.stopping.load(Ordering::Acquire) {
            let timeout = if !self.resting.is_empty() {
                Some(REST)
            } else if self.accept_at.is_some() {
                Some(ACCEPT_PAUSE)
            } else {
                (!self.connections.is_empty()).then_some(SWEEP)
            };
            if self.poll.poll(&mut events, timeout).is_err() {
                continue; // interrupted
            }
            let turn = AssertUnwindSafe(|| self.turn(&events, &mut sweep_at));
            if catch_unwind(turn).is_err() {
                self.shared.panics.fetch_add(1, Ordering::Relaxed);
                self.look_at_all();
            }
        }
        self.end();
    }

    fn turn(&mut self, events: &Events, sweep_at: &mut Instant) {
        let now = Instant::now();
        self.resume(now);
        let (mut accepts, mut is_woken) = (self.accept_at.is_some_and(|at| now >= at), false);
        for event in events {
            match event.token() {
                LISTENING => accepts = true,
                WOKEN => is_woken = true,
                Token(number) => self.read(number, now, event.is_read_closed()),
            }
        }
        if accepts {
            self.accept(now);
        }
        if is_woken {
            self.take_incoming(now);
        }
        if now >= *sweep_at {
            *sweep_at = now + SWEEP;
            self.sweep(now);
        }
    }

    /// An event that was lost does not come again.
    fn look_at_all(&mut self) {
        let now = Instant::now();
        for number in self.numbers() {
            self.read(number, now, true);
        }
        self.accept(now);
        self.take_incoming(now);
    }

    fn numbers(&self) -> Vec<usize> {
        self.connections.iter().map(|(number, _)| number).collect()
    }

    fn read(&mut self, number: usize, now: Instant, to_end: bool) {
        if self.connections.get(number).is_some_and(|one| one.rests) {
            return; // it is read once it goes on
        }
        self.look(number, now, |connection, shared, scratch| {
            connection.read(shared, scratch, now, to_end)
        });
    }

    /// Those that rest go on, in their order, as far as there is room.
    fn resume(&mut self, now: Instant) {
        for number in std::mem::take(&mut self.resting) {
            self.look(number, now, |connection, shared, scratch| {
                connection.resume(shared, scratch, now)
            });
        }
    }

    fn look(
        &mut self,
        number: usize,
        now: Instant,
        how: impl FnOnce(&mut Connection, &Shared<S>, &mut Scratch) -> Next,
    ) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let Self { shared, scratch, .. } = self;
        let look = AssertUnwindSafe(|| how(connection, shared, scratch));
        let next = catch_unwind(look).unwrap_or_else(|_| {
            shared.panics.fetch_add(1, Ordering::Relaxed);
            Next::HandOver(Vec::new())
        });
        match next {
            Next::Wait => {}
            Next::Rest => self.resting.push(number),
            Next::HandOver(unsent) => self.hand_over(number, unsent, now),
            Next::Close => drop(self.remove(number)),
        }
    }

    fn remove(&mut self, number: usize) -> (TcpStream, Vec<u8>) {
        let mut connection = self.connections.remove(number);
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        let _ = self.poll.registry().deregister(&mut connection.stream);
        connection.into_parts(&self.shared)
    }

    fn hand_over(&mut self, number: usize, unsent: Vec<u8>, now: Instant) {
        let age = now.saturating_duration_since(self.connections[number].since);
        let (stream, received) = self.remove(number);
        let descriptor = OwnedFd::from(std::net::TcpStream::from(stream));
        self.shared.hand_over(Handed { descriptor, received, unsent, age, is_last: false });
    }

    // New connections

    fn accept(&mut self, now: Instant) {
        self.accept_at = None;
        let Some(listening) = &self.listening else { return };
        loop {
            match listening.accept() {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    if self.shared.is_full(stream.as_raw_fd()) {
                        self.shared.hand_over(unread(stream, false));
                        continue;
                    }
                    self.shared.open.fetch_add(1, Ordering::Relaxed);
                    self.shared.give(Incoming { stream, served: false, looks: 0 });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_of_client(&error) => {}
                Err(_) => {
                    self.accept_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn take_incoming(&mut self, now: Instant) {
        for _ in 0..self.shared.lanes[self.lane].closing.swap(0, Ordering::Relaxed) {
            self.make_room();
        }
        let incoming = std::mem::take(&mut *self.shared.lanes[self.lane].incoming.lock());
        for one in incoming {
            if one.looks > 0 && !self.make_room() {
                let looks = one.looks - 1;
                if looks > 0 {
                    let next = (self.lane + 1) % self.shared.lanes.len();
                    self.shared.give_to(next, Incoming { looks, ..one });
                } else {
                    self.shared.open.fetch_sub(1, Ordering::Relaxed);
                    self.shared.hand_over(unread(one.stream, true));
                }
                continue;
            }
            self.add(one, now);
        }
    }

    fn add(&mut self, incoming: Incoming, now: Instant) {
        let Incoming { mut stream, served, .. } = incoming;
        let place = self.connections.vacant_entry();
        let token = Token(place.key());
        if self.poll.registry().register(&mut stream, token, Interest::READABLE).is_ok() {
            place.insert(Connection::new(stream, now, served));
        } else {
            self.shared.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes the one that has been silent for longest, first of those that never sent a whole
    /// request. What it has sent may not have been read yet. Cost O(connections log connections).
    fn make_room(&mut self) -> bool {
        let mut idle: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, one)| one.is_idle())
            .map(|(number, _)| number)
            .collect();
        idle.sort_unstable_by_key(|&number| {
            (self.connections[number].served, self.connections[number].since)
        });
        let Some(number) = idle.into_iter().find(|&number| self.connections[number].is_silent())
        else {
            return false;
        };
        drop(self.remove(number));
        self.shared.closed_for_another.fetch_add(1, Ordering::Relaxed);
        true
    }

    // What waits

    fn sweep(&mut self, now: Instant) {
        let is_late = |one: &Connection| {
            now.saturating_duration_since(one.since) > one.patience(&self.shared)
        };
        let late: Vec<(usize, bool)> = self
            .connections
            .iter()
            .filter(|(_, one)| is_late(one))
            .map(|(number, one)| (number, one.served && one.is_idle()))
            .collect();
        for (number, is_between) in late {
            if is_between {
                drop(self.remove(number));
            } else {
                self.hand_over(number, Vec::new(), now);
            }
        }
    }

    fn end(mut self) {
        let now = Instant::now();
        drop(self.listening.take());
        self.take_incoming(now);
        for number in self.numbers() {
            self.read(number, now, true); // what has come by now is answered
            match self.connections.get(number) {
                Some(one) if one.is_idle() => drop(self.remove(number)),
                Some(_) => self.hand_over(number, Vec::new(), now),
                None => {}
            }
        }
    }
}

/// Whether a client has gone before it was accepted.
fn is_of_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}
