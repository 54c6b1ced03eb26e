//! The listener, as whoever starts it sees it: the threads, and what is asked of them.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Poll, Waker};
use parking_lot::Mutex;
use routing::boards::Boards;

use crate::admitted::Rights;
use crate::bounds::Bounds;
use crate::counts::Queries;
use crate::shared::{Handed, Incoming, Lane, Shared};
use crate::shown::{Service, Shown};
use crate::threads::{LISTENING, Thread, WOKEN};

/// How often what answers say is asked anew, and the pause between two changes that are looked at.
const REFRESH: Duration = Duration::from_millis(100);
const REFRESH_PAUSE: Duration = Duration::from_millis(5);

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
    #[expect(clippy::too_many_arguments, reason = "they are what it is told once")]
    pub fn start(
        listening: std::net::TcpListener,
        threads: usize,
        service: S,
        bounds: Bounds,
        needs_keys: bool,
        states: Vec<String>,
        queries: &Queries,
        boards: Option<Arc<Boards>>,
    ) -> io::Result<Self> {
        listening.set_nonblocking(true)?;
        let (bell, rung) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rung.set_nonblocking(true)?;
        let polls: Vec<Poll> =
            (0..threads.max(1)).map(|_| Poll::new()).collect::<io::Result<_>>()?;
        let lane = |poll: &Poll| {
            let waker = Waker::new(poll.registry(), WOKEN)?;
            Ok(Lane::new(waker))
        };
        let lanes = polls.iter().map(lane).collect::<io::Result<_>>()?;
        let shown = Shown::new(service);
        let shared =
            Arc::new(Shared::new(shown, bounds, needs_keys, states, queries, boards, bell, lanes));
        let mut listening = Some(TcpListener::from_std(listening));
        let mut started = Vec::new();
        for (lane, poll) in polls.into_iter().enumerate() {
            let mut listening = listening.take();
            if let Some(socket) = &mut listening {
                poll.registry().register(socket, LISTENING, Interest::READABLE)?;
            }
            let thread = Thread::new(shared.clone(), lane, poll, listening);
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
        let lane = &self.shared.lanes[self.shared.next_lane()];
        lane.closing.fetch_add(1, Ordering::Relaxed);
        let _ = lane.waker.wake();
    }

    pub fn change(&self) {
        self.shared.shown.change();
        self.refresher.unpark();
    }

    /// Requests with that `Authorization` field are answered here for so long, as far as it has
    /// rights, if they are about these tenants; None: about any.
    pub fn admit(
        &self,
        field: &[u8],
        holds: Duration,
        rights: Rights,
        tenants: Option<Vec<String>>,
    ) {
        self.shared.admitted.admit(field, Instant::now() + holds, rights, tenants);
    }

    /// None is any more, until it is let through again.
    pub fn forget_admitted(&self) {
        self.shared.admitted.forget(Instant::now());
    }

    /// How many requests of each field were answered since the last call.
    pub fn take_admitted(&self) -> Vec<(Vec<u8>, u64)> {
        self.shared.admitted.take_counts(Instant::now())
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

    /// What was answered since the last call, of `/query`, `/query_by_hash`, `/route` and `/feedback`.
    pub fn take_counted(&self) -> [Queries; 4] {
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
