//! One connection: the bytes of one request, its answer, the bytes of the next.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use heads::Head;
use mio::net::TcpStream;
use prefix_index::answers::{self, Form, Kind};
use prefix_index::core::Core;
use prefix_index::names::ScopeRef;
use routing::boards::Boards;

use crate::admitted::Admission;
use crate::shared::Shared;
use crate::shown::Service;

/// Room for a request whose head has not come.
const FIRST_BYTES: usize = 16 * 1024;
/// Buffers that a thread keeps for the next requests, and how large they may be.
const SPARE_MAX: usize = 4;
const SPARE_BYTES_MAX: usize = 1024 * 1024;
const CONTENT_TYPES: [&str; 3] = ["application/json", "application/msgpack", "application/json"];

/// What is to become of a connection.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// More may come.
    Wait,
    /// It has a whole request, which is answered a little later: see `resume`.
    Rest,
    /// It is to be handed over, with this much of an answer that is still to be sent.
    HandOver(Vec<u8>),
    Close,
}

/// What one thread keeps for its connections.
#[derive(Default)]
pub struct Scratch {
    spare: Vec<Vec<u8>>,
    date: (u64, String),
}

impl Scratch {
    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| vec![0; FIRST_BYTES])
    }

    fn keep(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && buffer.len() <= SPARE_BYTES_MAX {
            self.spare.push(buffer);
        }
    }

    /// As HTTP writes it, to the second.
    fn date(&mut self) -> &str {
        let now = SystemTime::now();
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if self.date.0 != seconds {
            self.date = (seconds, httpdate::fmt_http_date(now));
        }
        &self.date.1
    }
}

pub struct Connection {
    pub stream: TcpStream,
    /// What has come of a request: so many bytes of the buffer, which is empty between two.
    buffer: Vec<u8>,
    filled: usize,
    /// Of the request, once its head has come; else 0.
    whole: usize,
    /// What of it counts towards the bound of all.
    held: usize,
    /// When it was made, last began a request, or was last answered.
    pub since: Instant,
    pub served: bool,
    /// Whether its request rests.
    pub rests: bool,
}

impl Connection {
    pub fn new(stream: TcpStream, now: Instant, served: bool) -> Self {
        let buffer = Vec::new();
        let (filled, whole, held, rests) = (0, 0, 0, false);
        Self { stream, buffer, filled, whole, held, since: now, served, rests }
    }

    /// Whether nothing has come that is yet to be read; an end is nothing.
    pub fn is_silent(&self) -> bool {
        !matches!(self.stream.peek(&mut [0]), Ok(1..))
    }

    /// Whether no byte of a request has come.
    pub fn is_idle(&self) -> bool {
        self.filled == 0
    }

    /// How long it may go on like this.
    pub fn patience<S>(&self, shared: &Shared<S>) -> Duration {
        let is_between = self.served && self.is_idle();
        if is_between { shared.bounds.idle } else { shared.bounds.request }
    }

    /// What has come, and its stream.
    pub fn into_parts<S>(mut self, shared: &Shared<S>) -> (TcpStream, Vec<u8>) {
        self.let_go(shared);
        self.buffer.truncate(self.filled);
        (self.stream, self.buffer)
    }

    fn let_go<S>(&mut self, shared: &Shared<S>) {
        shared.give_back(self.held);
        self.held = 0;
    }

    /// Its stream can be read; `to_end` where the client sends no more, as no other event says that.
    pub fn read<S: Service>(
        &mut self,
        shared: &Shared<S>,
        scratch: &mut Scratch,
        now: Instant,
        to_end: bool,
    ) -> Next {
        loop {
            if self.buffer.is_empty() {
                self.buffer = scratch.buffer();
            }
            // One more than the request has, to see what comes behind it.
            let room = if self.whole > 0 { self.whole + 1 } else { self.filled + 1 };
            if self.buffer.len() < room {
                self.buffer.resize(room.max(FIRST_BYTES), 0);
            }
            let space = &mut self.buffer[self.filled..];
            let space_bytes = space.len();
            let came = match self.stream.read(space) {
                Ok(0) => return self.left(),
                Ok(came) => came,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.rest(scratch);
                    return Next::Wait;
                }
                Err(_) => return self.left(),
            };
            if self.filled == 0 {
                self.since = now;
            }
            self.filled += came;
            let next = self.take(shared, scratch);
            // A shorter read than there was room for has taken all that was there, but for the end.
            if next != Next::Wait || (came < space_bytes && !to_end) {
                self.rest(scratch);
                return next;
            }
        }
    }

    /// The client has gone. That it left in the middle of a request is the server's to count.
    fn left(&self) -> Next {
        if self.whole > 0 { over() } else { Next::Close }
    }

    /// Between two requests it has no buffer.
    fn rest(&mut self, scratch: &mut Scratch) {
        if self.filled == 0 && !self.buffer.is_empty() {
            scratch.keep(std::mem::take(&mut self.buffer));
        }
    }

    /// Something of a request has come.
    fn take<S: Service>(&mut self, shared: &Shared<S>, scratch: &mut Scratch) -> Next {
        if self.filled < self.whole {
            return Next::Wait;
        }
        let received = &self.buffer[..self.filled];
        let Some(head) = heads::read_head(received) else {
            return if heads::may_become_plain(received) { Next::Wait } else { over() };
        };
        self.whole = head.body_at + head.body_len;
        if received.len() < self.whole {
            if head.body_len > shared.bounds.body_bytes || !shared.has_room(head.body_len) {
                return over();
            }
            self.held = head.body_len;
            return Next::Wait;
        }
        if received.len() > self.whole {
            return over(); // another request behind it
        }
        if let Some(boards) = booking(&head, shared)
            && !boards.admits()
        {
            let before = std::mem::replace(&mut self.rests, true);
            boards.rested.fetch_add(u64::from(!before), Ordering::Relaxed);
            return Next::Rest;
        }
        self.rests = false;
        let Some(answer) = answer(received, &head, shared, scratch) else {
            return over();
        };
        self.let_go(shared);
        self.filled = 0;
        self.whole = 0;
        self.since = Instant::now();
        self.served = true;
        self.send(answer)
    }

    /// Looks again at a request that rests; it rests on where that is so.
    pub fn resume<S: Service>(
        &mut self,
        shared: &Shared<S>,
        scratch: &mut Scratch,
        now: Instant,
    ) -> Next {
        if self.is_idle() {
            return Next::Wait;
        }
        match self.take(shared, scratch) {
            Next::Wait => self.read(shared, scratch, now, true), // what has come meanwhile
            next => next,
        }
    }

    fn send(&mut self, mut answer: Vec<u8>) -> Next {
        let mut sent = 0;
        while sent < answer.len() {
            match self.stream.write(&answer[sent..]) {
                Ok(0) => return Next::Close,
                Ok(went) => sent += went,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Next::HandOver(answer.split_off(sent));
                }
                Err(_) => return Next::Close,
            }
        }
        Next::Wait
    }
}

fn over() -> Next {
    Next::HandOver(Vec::new())
}

/// Where what is answered has to be booked.
fn booking<'s, S>(head: &Head, shared: &'s Shared<S>) -> Option<&'s Boards> {
    let books = matches!(head.path, heads::Path::Route | heads::Path::Feedback);
    shared.boards.as_deref().filter(|_| books)
}

/// The whole answer; None where the request is unusual, or not to be answered here now.
fn answer<S: Service>(
    received: &[u8],
    head: &Head,
    shared: &Shared<S>,
    scratch: &mut Scratch,
) -> Option<Vec<u8>> {
    let is_query = matches!(head.path, heads::Path::Query | heads::Path::QueryByHash);
    if head.is_traced && !(is_query && shared.bounds.answers_traced) {
        return None; // it is to have a span; a decision keeps its context even where there are none
    }
    let started = Instant::now();
    let admission = shared.admitted.find(head.authorization, head.path, started)?;
    let body = &received[head.body_at..];
    let (text, tokens, hit_tokens) = match head.path {
        heads::Path::Feedback => feedback(body, head, &admission, shared, scratch)?,
        heads::Path::Route => {
            route(body, head, &admission, &*shared.shown.core()?, shared, scratch)?
        }
        heads::Path::Query | heads::Path::QueryByHash => {
            query(body, head, &admission, &*shared.shown.core()?, shared, scratch)?
        }
    };
    let seconds = started.elapsed().as_secs_f64();
    let mut queries = shared.queries[head.path as usize].lock();
    queries.count(seconds, tokens, hit_tokens);
    drop(queries);
    admission.use_up();
    Some(text)
}

/// An answer with its tokens, and those of the longest match.
type Counted = (Vec<u8>, usize, u64);

fn query<S: Service>(
    body: &[u8],
    head: &Head,
    admission: &Admission,
    core: &Core,
    shared: &Shared<S>,
    scratch: &mut Scratch,
) -> Option<Counted> {
    let position = core.positions.text(); // before it is asked: at least this
    if position.is_empty() {
        return None;
    }
    let form = match head.form {
        heads::Form::Json => Form::Json,
        heads::Form::Msgpack => Form::Msgpack,
        heads::Form::Octets => Form::Octets,
    };
    let by_hash = head.path == heads::Path::QueryByHash;
    let kind = Kind { form, by_hash, url_query: head.url_query, tenants: admission.tenants() };
    let answered = answers::answer(body, kind, core)?;
    let state = shared.states.get(shared.shown.state(&answered.scope)?)?;
    if let (Some(audited), Some(queue)) = (&answered.audited, core.audit.get()) {
        queue.push(audited, unix_s(), state);
    }
    let mut text = begin("200 OK", head, scratch, answered.text.len());
    text.extend_from_slice(b"\r\nreprise-position: ");
    text.extend_from_slice(&position);
    text.extend_from_slice(b"\r\nreprise-state: ");
    text.extend_from_slice(state.as_bytes());
    end(&mut text, head, &answered.text);
    Some((text, answered.tokens, answered.hit_tokens))
}

fn route<S: Service>(
    body: &[u8],
    head: &Head,
    admission: &Admission,
    core: &Core,
    shared: &Shared<S>,
    scratch: &mut Scratch,
) -> Option<Counted> {
    let boards = shared.boards.as_ref()?;
    (head.form == heads::Form::Json && head.url_query.is_empty()).then_some(())?;
    let state = |scope: &ScopeRef| Some(shared.states.get(shared.shown.state(scope)?)?.as_str());
    let routed = routing::route::route(boards, body, core, admission.tenants(), unix_s(), state)?;
    let mut text = begin("200 OK", head, scratch, routed.text.len());
    end(&mut text, head, &routed.text);
    Some((text, routed.tokens, routed.held))
}

fn feedback<S>(
    body: &[u8],
    head: &Head,
    admission: &Admission,
    shared: &Shared<S>,
    scratch: &mut Scratch,
) -> Option<Counted> {
    let boards = shared.boards.as_ref()?;
    (head.form == heads::Form::Json && head.url_query.is_empty()).then_some(())?;
    let accepted = routing::reports::take(boards, body, admission.tenants(), unix_s())?;
    let answer = format!("{{\"accepted\":{accepted},\"repeated\":0,\"unknown\":0}}");
    let mut text = begin("202 Accepted", head, scratch, answer.len());
    end(&mut text, head, answer.as_bytes());
    Some((text, 0, 0))
}

fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The head of an answer up to its type.
fn begin(status: &str, head: &Head, scratch: &mut Scratch, body_bytes: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(320 + body_bytes);
    let content_type = CONTENT_TYPES[head.form as usize];
    for part in
        ["HTTP/1.1 ", status, "\r\ndate: ", scratch.date(), "\r\ncontent-type: ", content_type]
    {
        text.extend_from_slice(part.as_bytes());
    }
    text
}

/// The rest of it, and the body.
fn end(text: &mut Vec<u8>, head: &Head, body: &[u8]) {
    // To a vector, which takes all of it.
    let _ = write!(text, "\r\ncontent-length: {}\r\n", body.len());
    if let Some(request_id) = head.request_id {
        text.extend_from_slice(b"x-request-id: ");
        text.extend_from_slice(request_id);
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"\r\n");
    text.extend_from_slice(body);
}
