//! The threads, each with a loop of its own. The first of them accepts; connections go to all in
//! turn.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;
use slab::Slab;

use crate::Bounds;
use crate::connection::{Connection, Next, Scratch};
use crate::counts::Queries;
use crate::shown::{Service, Shown};

const LISTENING: Token = Token(usize::MAX);
const WOKEN: Token = Token(usize::MAX - 1);
/// How often connections that wait are looked at.
const SWEEP: Duration = Duration::from_millis(250);
/// How often what answers say is asked anew, and the pause between two changes that are looked at.
const REFRESH: Duration = Duration::from_millis(100);
const REFRESH_PAUSE: Duration = Duration::from_millis(5);
/// Before another attempt, where the system gives no descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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
struct Incoming {
    stream: TcpStream,
    served: bool,
    /// How many threads are to look for one to close in its place; none where there is room.
    looks: usize,
}

/// What a thread is told by others.
struct Lane {
    incoming: Mutex<Vec<Incoming>>,
    /// How many of its connections are to make room for others.
    closing: AtomicUsize,
    waker: Waker,
}

/// What all threads share.
pub struct Shared<S> {
    pub shown: Shown<S>,
    pub bounds: Bounds,
    /// As answers name them.
    pub states: Vec<String>,
    /// Of `/query` and of `/query_by_hash`.
    pub queries: [Mutex<Queries>; 2],
    held: AtomicUsize,
    open: AtomicUsize,
    /// Connections that are another server's.
    others: AtomicUsize,
    /// Counted since they were last taken.
    closed_for_another: AtomicUsize,
    panics: AtomicUsize,
    stopping: AtomicBool,
    handed: Mutex<VecDeque<Handed>>,
    /// A byte for whoever takes what is handed over.
    bell: UnixStream,
    lanes: Vec<Lane>,
    next_lane: AtomicUsize,
}

impl<S> Shared<S> {
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

    fn hand_over(&self, handed: Handed) {
        let mut queue = self.handed.lock();
        queue.push_back(handed);
        if queue.len() == 1 {
            // It holds thousands of bytes that nobody has read; then somebody was told often enough.
            let _ = (&self.bell).write(&[1]);
        }
    }

    fn is_full(&self, descriptor: RawFd) -> bool {
        let open = self.open.load(Ordering::Relaxed) + self.others.load(Ordering::Relaxed);
        open >= self.bounds.connections || descriptor > self.bounds.descriptor
    }

    fn give(&self, incoming: Incoming) {
        let lane = self.next_lane.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        self.give_to(lane, incoming);
    }

    fn give_to(&self, lane: usize, incoming: Incoming) {
        let lane = &self.lanes[lane];
        lane.incoming.lock().push(incoming);
        // It fails where the thread has ended: then what is given is closed with the listener.
        let _ = lane.waker.wake();
    }
}

/// Listens until it is stopped.
pub struct Listener<S> {
    shared: Arc<Shared<S>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    refresher: std::thread::Thread,
    /// To be read where `bell` was rung.
    rung: UnixStream,
}

impl<S: Service + 'static> Listener<S> {
    /// Begins to accept on a socket that listens.
    pub fn start(
        listening: std::net::TcpListener,
        threads: usize,
        service: S,
        bounds: Bounds,
        states: Vec<String>,
        queries: &Queries,
    ) -> io::Result<Self> {
        listening.set_nonblocking(true)?;
        let (bell, rung) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rung.set_nonblocking(true)?;
        let polls: Vec<Poll> =
            (0..threads.max(1)).map(|_| Poll::new()).collect::<io::Result<_>>()?;
        let lane = |poll: &Poll| {
            let waker = Waker::new(poll.registry(), WOKEN)?;
            Ok(Lane { incoming: Mutex::default(), closing: AtomicUsize::new(0), waker })
        };
        let lanes = polls.iter().map(lane).collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared {
            shown: Shown::new(service),
            bounds,
            states,
            queries: [Mutex::new(queries.clone()), Mutex::new(queries.clone())],
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
        });
        let mut listening = Some(TcpListener::from_std(listening));
        let mut started = Vec::new();
        for (lane, poll) in polls.into_iter().enumerate() {
            let mut listening = listening.take();
            if let Some(socket) = &mut listening {
                poll.registry().register(socket, LISTENING, Interest::READABLE)?;
            }
            let thread = Thread {
                shared: shared.clone(),
                lane,
                poll,
                listening,
                accept_at: None,
                connections: Slab::new(),
                scratch: Scratch::default(),
            };
            let name = format!("listener-{lane}");
            started.push(std::thread::Builder::new().name(name).spawn(|| thread.run())?);
        }
        let refreshed = shared.clone();
        let name = "listener-refresh".into();
        let refreshing =
            std::thread::Builder::new().name(name).spawn(move || refresh(&refreshed))?;
        let refresher = refreshing.thread().clone();
        started.push(refreshing);
        Ok(Self { shared, threads: Mutex::new(started), refresher, rung })
    }
}

impl<S> Listener<S> {
    /// What was handed over since the last call.
    pub fn take(&self) -> Vec<Handed> {
        let mut bytes = [0; 64];
        while matches!((&self.rung).read(&mut bytes), Ok(came) if came > 0) {}
        self.shared.handed.lock().drain(..).collect()
    }

    /// Can be read when there is something to take.
    pub fn bell(&self) -> RawFd {
        self.rung.as_raw_fd()
    }

    /// Takes back a connection on which no request is under way. One that has no room is taken in
    /// the place of another, or handed over for good.
    pub fn give(&self, stream: std::net::TcpStream, served: bool, has_room: bool) {
        if stream.set_nonblocking(true).is_err() {
            return; // it is closed
        }
        let looks = if has_room { 0 } else { self.shared.lanes.len() };
        let stream = TcpStream::from_std(stream);
        self.shared.open.fetch_add(1, Ordering::Relaxed);
        self.shared.give(Incoming { stream, served, looks });
    }

    /// Closes a connection that is idle, where there is one, for another server's.
    pub fn close_idle(&self) {
        let shared = &self.shared;
        let lane = shared.next_lane.fetch_add(1, Ordering::Relaxed) % shared.lanes.len();
        shared.lanes[lane].closing.fetch_add(1, Ordering::Relaxed);
        let _ = shared.lanes[lane].waker.wake();
    }

    pub fn change(&self) {
        self.shared.shown.change();
        self.refresher.unpark();
    }

    /// How many connections are another server's now.
    pub fn note_others(&self, count: usize) {
        self.shared.others.store(count, Ordering::Relaxed);
    }

    /// How many connections are this one's.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Bytes of bodies of which only a part has come.
    pub fn held_bytes(&self) -> usize {
        self.shared.held.load(Ordering::Relaxed)
    }

    /// What was answered since the last call, of `/query` and of `/query_by_hash`.
    pub fn take_counted(&self) -> [Queries; 2] {
        self.shared.queries.each_ref().map(|queries| queries.lock().take())
    }

    /// Since the last call: connections that were closed for another one, and requests that were
    /// handed over for a panic.
    pub fn take_ended(&self) -> (usize, usize) {
        let Shared { closed_for_another, panics, .. } = &*self.shared;
        (closed_for_another.swap(0, Ordering::Relaxed), panics.swap(0, Ordering::Relaxed))
    }

    /// Accepts no more, closes what is idle, and hands over what is not.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        for lane in &self.shared.lanes {
            let _ = lane.waker.wake();
        }
        self.refresher.unpark();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

/// Asks again what answers say, as long as there are queries.
fn refresh<S: Service>(shared: &Shared<S>) {
    while !shared.stopping.load(Ordering::Acquire) {
        let asks = AssertUnwindSafe(|| shared.shown.refresh());
        let is_used = catch_unwind(asks).unwrap_or(false);
        std::thread::sleep(REFRESH_PAUSE);
        // Where there are no queries, the next one asks itself.
        std::thread::park_timeout(if is_used { REFRESH } else { 10 * REFRESH });
    }
}

struct Thread<S> {
    shared: Arc<Shared<S>>,
    lane: usize,
    poll: Poll,
    listening: Option<TcpListener>,
    /// When to accept again, after an attempt that failed.
    accept_at: Option<Instant>,
    connections: Slab<Connection>,
    scratch: Scratch,
}

impl<S: Service> Thread<S> {
    fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut sweep_at = Instant::now() + SWEEP;
        while !self.shared.stopping.load(Ordering::Acquire) {
            let is_waiting = !self.connections.is_empty() || self.accept_at.is_some();
            let timeout =
                is_waiting.then_some(if self.accept_at.is_some() { ACCEPT_PAUSE } else { SWEEP });
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
        let Some(connection) = self.connections.get_mut(number) else { return };
        let Self { shared, scratch, .. } = self;
        let read = AssertUnwindSafe(|| connection.read(shared, scratch, now, to_end));
        let next = catch_unwind(read).unwrap_or_else(|_| {
            shared.panics.fetch_add(1, Ordering::Relaxed);
            Next::HandOver(Vec::new())
        });
        match next {
            Next::Wait => {}
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
    /// request. Cost O(connections).
    fn make_room(&mut self) -> bool {
        let idle = self.connections.iter().filter(|(_, one)| one.is_idle());
        let Some((number, _)) = idle.min_by_key(|(_, one)| (one.served, one.since)) else {
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

fn unread(stream: TcpStream, is_last: bool) -> Handed {
    let descriptor = OwnedFd::from(std::net::TcpStream::from(stream));
    let (received, unsent) = (Vec::new(), Vec::new());
    Handed { descriptor, received, unsent, age: Duration::ZERO, is_last }
}

/// Whether a client has gone before it was accepted.
fn is_of_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}
