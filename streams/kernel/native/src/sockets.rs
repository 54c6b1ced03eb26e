//! The class `SocketReader`: what has arrived at a ZeroMQ socket, without Python code for each
//! frame. `bridge.sockets.reader` says what it must do, and has the addresses of libzmq's functions.
//!
//! pyzmq lets other Python threads run at each frame. Where these are busy, a thread that receives
//! three frames a message waits for the interpreter three times a message.

// The functions of a library that Python has loaded are called by their addresses.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit, transmute};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::messages::{MessageRun, Messages};

const DONTWAIT: c_int = 1;
const EINTR: c_int = 4;
const EAGAIN: c_int = 11;

/// The clock is looked at behind the first of so many messages, and behind each of so many bytes.
const LOOK_MESSAGES: usize = 16;
const LOOK_BYTES: usize = 1024;

/// The major version of libzmq whose `zmq_msg_t` is known here.
const MAJOR: c_int = 4;

/// `zmq_msg_t` of every libzmq of that version: 64 bytes, as pointers are aligned.
#[repr(C, align(8))]
struct Message([u8; 64]);

type Init = unsafe extern "C" fn(*mut Message) -> c_int;
type Receive = unsafe extern "C" fn(*mut Message, *mut c_void, c_int) -> c_int;
type Data = unsafe extern "C" fn(*mut Message) -> *const u8;
type Size = unsafe extern "C" fn(*const Message) -> usize;
type More = unsafe extern "C" fn(*const Message) -> c_int;
type Close = unsafe extern "C" fn(*mut Message) -> c_int;
type Errno = unsafe extern "C" fn() -> c_int;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int);

/// What was taken, a `MessageRun` or the frames of one message each; the bytes of each of these; how
/// many messages, and the bytes of all; whether nothing more has arrived, whether the last message has
/// too many frames, and the errno that ended it, or 0.
type Taken<'py> = (Bound<'py, PyList>, Vec<usize>, usize, usize, bool, bool, c_int);

#[pyclass(frozen, module = "streams.kernel._native")]
pub struct SocketReader {
    init: Init,
    receive: Receive,
    data: Data,
    size: Size,
    more: More,
    close: Close,
    errno: Errno,
    frames_max: usize,
    run_bytes_max: usize,
}

/// One frame, which libzmq has to be told to release.
struct Frame<'a> {
    reader: &'a SocketReader,
    message: Message,
}

impl Drop for Frame<'_> {
    fn drop(&mut self) {
        // SAFETY: it was initialised.
        unsafe { (self.reader.close)(&mut self.message) };
    }
}

impl Frame<'_> {
    fn bytes(&mut self) -> &[u8] {
        // SAFETY: libzmq keeps so many bytes there until the message is closed; none where that
        // points nowhere.
        unsafe {
            let size = (self.reader.size)(&self.message);
            if size == 0 {
                return &[];
            }
            std::slice::from_raw_parts((self.reader.data)(&mut self.message), size)
        }
    }

    fn more(&self) -> bool {
        // SAFETY: it was initialised.
        unsafe { (self.reader.more)(&self.message) != 0 }
    }
}

#[pymethods]
impl SocketReader {
    /// `addresses`: of the functions `zmq_msg_init`, `_recv`, `_data`, `_size`, `_more`, `_close`,
    /// `zmq_errno` and `zmq_version`; `run_bytes_max`: of a message in a run. An OSError where libzmq is of another major version.
    #[new]
    fn new(addresses: [usize; 8], frames_max: usize, run_bytes_max: usize) -> PyResult<Self> {
        if addresses.contains(&0) {
            return Err(PyValueError::new_err("Expected the addresses of functions, got 0"));
        }
        let [init, receive, data, size, more, close, errno, version] = addresses;
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: it is the address of libzmq's function of this type, as the caller promises, which
        // writes three numbers.
        unsafe { transmute::<usize, Version>(version)(&mut major, &mut minor, &mut patch) };
        if major != MAJOR {
            let got = format!("Expected libzmq {MAJOR}, got {major}.{minor}.{patch}");
            return Err(PyOSError::new_err(got));
        }
        // SAFETY: they are those of libzmq's functions of these types, as the caller promises.
        unsafe {
            Ok(Self {
                init: transmute::<usize, Init>(init),
                receive: transmute::<usize, Receive>(receive),
                data: transmute::<usize, Data>(data),
                size: transmute::<usize, Size>(size),
                more: transmute::<usize, More>(more),
                close: transmute::<usize, Close>(close),
                errno: transmute::<usize, Errno>(errno),
                frames_max,
                run_bytes_max,
            })
        }
    }

    /// `socket`: the address of an open libzmq socket that no other thread uses.
    fn read<'py>(
        &self,
        py: Python<'py>,
        socket: usize,
        messages_max: usize,
        bytes_max: usize,
        seconds: f64,
    ) -> PyResult<Taken<'py>> {
        let until = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 60.0));
        let mut taken = Reading::new(py);
        while taken.messages < messages_max && taken.size_bytes < bytes_max {
            let mark = taken.run.mark();
            let (mut apart, mut count, before) = (None, 0, taken.size_bytes);
            loop {
                let mut frame = match self.frame(socket) {
                    Ok(frame) => frame,
                    Err(errno) => {
                        taken.run.forget(&mark);
                        taken.size_bytes = before;
                        let is_all = errno == EAGAIN;
                        return taken.end(is_all, false, if is_all { 0 } else { errno });
                    }
                };
                let more = frame.more();
                let bytes = frame.bytes();
                taken.size_bytes += bytes.len();
                count += 1;
                if apart.is_some() || !taken.run.push(&mark, bytes, more, self.run_bytes_max) {
                    let frames = match apart.take() {
                        Some(frames) => frames,
                        None => taken.run.take_back(py, &mark)?,
                    };
                    frames.append(PyBytes::new(py, bytes))?;
                    apart = Some(frames);
                }
                if !more {
                    break;
                }
                if count > self.frames_max {
                    taken.push(apart, before)?;
                    return taken.end(false, true, 0);
                }
            }
            taken.push(apart, before)?;
            // To look at the clock takes as long as a frame.
            let is_due =
                taken.messages % LOOK_MESSAGES == 1 || taken.size_bytes - before >= LOOK_BYTES;
            if is_due && Instant::now() >= until {
                break;
            }
        }
        taken.end(false, false, 0)
    }
}

/// What is being taken from a socket.
struct Reading<'py> {
    py: Python<'py>,
    items: Bound<'py, PyList>,
    sizes: Vec<usize>,
    /// The last ones, which are no item yet.
    run: Messages,
    messages: usize,
    size_bytes: usize,
    /// Of the items.
    listed_bytes: usize,
}

impl<'py> Reading<'py> {
    fn new(py: Python<'py>) -> Self {
        let (items, run) = (PyList::empty(py), Messages::default());
        let (messages, size_bytes, listed_bytes) = (0, 0, 0);
        Self { py, items, sizes: Vec::new(), run, messages, size_bytes, listed_bytes }
    }

    /// The message is whole, which begins behind so many bytes: it is in the run, or it is `apart`.
    fn push(&mut self, apart: Option<Bound<'py, PyList>>, before: usize) -> PyResult<()> {
        self.messages += 1;
        if let Some(frames) = apart {
            self.end_run(before)?;
            self.list(frames.into_any(), self.size_bytes)?;
        }
        Ok(())
    }

    /// Lists the run, which ends behind so many bytes of all.
    fn end_run(&mut self, end_bytes: usize) -> PyResult<()> {
        let run = mem::take(&mut self.run);
        match run.len() {
            0 => Ok(()),
            1 => self.list(run.message(self.py, 0)?.into_any(), end_bytes),
            _ => self.list(Bound::new(self.py, MessageRun::of(run))?.into_any(), end_bytes),
        }
    }

    fn list(&mut self, item: Bound<'py, PyAny>, end_bytes: usize) -> PyResult<()> {
        self.items.append(item)?;
        self.sizes.push(end_bytes - self.listed_bytes);
        self.listed_bytes = end_bytes;
        Ok(())
    }

    fn end(mut self, is_all: bool, is_broken: bool, errno: c_int) -> PyResult<Taken<'py>> {
        self.end_run(self.size_bytes)?;
        Ok((self.items, self.sizes, self.messages, self.size_bytes, is_all, is_broken, errno))
    }
}

impl SocketReader {
    /// The next frame that has arrived, or errno.
    fn frame(&self, socket: usize) -> Result<Frame<'_>, c_int> {
        let mut message = MaybeUninit::<Message>::uninit();
        // SAFETY: `init` writes all of it, and cannot fail.
        let message = unsafe {
            (self.init)(message.as_mut_ptr());
            message.assume_init()
        };
        let mut frame = Frame { reader: self, message };
        loop {
            // SAFETY: the socket is open, and only this thread uses it, as the caller promises.
            let taken =
                unsafe { (self.receive)(&mut frame.message, socket as *mut c_void, DONTWAIT) };
            if taken >= 0 {
                return Ok(frame);
            }
            // SAFETY: it takes nothing.
            let errno = unsafe { (self.errno)() };
            if errno != EINTR {
                return Err(errno);
            }
        }
    }
}
