//! The head of a plain `POST /query`, `/query_by_hash`, `/route` or `/feedback`: of a request that has
//! nothing to ask but what its body says.
//!
//! Anything else gives None, and the server that knows all of HTTP reads it from its first byte.

#![deny(clippy::all)]
#![forbid(unsafe_code)]

/// More fields, or a longer head, are left to the server.
const FIELDS_MAX: usize = 24;
pub const HEAD_BYTES_MAX: usize = 4096;
/// Fields that ask for more than an answer.
const NOT_PLAIN: [&str; 8] = [
    "te",
    "expect",
    "origin",
    "upgrade",
    "trailer",
    "content-encoding",
    "proxy-connection",
    "transfer-encoding",
];
const REQUEST_ID_BYTES_MAX: usize = 256;
const PLAIN_STARTS: [&[u8]; 3] = [b"POST /query", b"POST /route", b"POST /feedback"];
/// The objective of a request that is to be routed.
const OBJECTIVE: &str = "x-llm-d-slo-ttft-ms";

/// What a body is, by its Content-Type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    Json,
    Msgpack,
    /// Tokens or hashes and nothing else, as `application/octet-stream`.
    Octets,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Path {
    Query,
    QueryByHash,
    Route,
    Feedback,
}

pub struct Head<'a> {
    /// Where the body begins.
    pub body_at: usize,
    pub body_len: usize,
    pub form: Form,
    pub path: Path,
    pub request_id: Option<&'a [u8]>,
    pub authorization: Option<&'a [u8]>,
    /// What stands behind the `?` of the URL.
    pub url_query: &'a [u8],
    /// Whether it has a `traceparent`, whatever that says.
    pub is_traced: bool,
}

/// The head at the start of what came; None where it is incomplete, too.
pub fn read_head(received: &[u8]) -> Option<Head<'_>> {
    let received = &received[..received.len().min(HEAD_BYTES_MAX)];
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(body_at) = request.parse(received).ok()? else {
        return None;
    };
    if request.method != Some("POST") || request.version != Some(1) {
        return None;
    }
    let (path, url_query) = read_target(request.path?)?;
    if !has_plain_lines(&received[..body_at]) {
        return None;
    }
    let (mut body_len, mut request_id, mut form) = (None, None, None);
    let mut authorization = None;
    let mut is_traced = false;
    for field in request.headers {
        match field.name.len() {
            // By length first: most fields are none of these.
            14 if is(field, "content-length") => once(&mut body_len, number(field.value)?)?,
            12 if is(field, "content-type") => {
                let named = match field.value {
                    b"application/json" => Form::Json,
                    b"application/msgpack" => Form::Msgpack,
                    b"application/octet-stream" => Form::Octets,
                    _ => return None,
                };
                once(&mut form, named)?;
            }
            12 if is(field, "x-request-id") => {
                let is_plain = field.value.iter().all(|byte| (0x20..0x7f).contains(byte));
                if !is_plain || !(1..=REQUEST_ID_BYTES_MAX).contains(&field.value.len()) {
                    return None;
                }
                once(&mut request_id, field.value)?;
            }
            13 if is(field, "authorization") => once(&mut authorization, field.value)?,
            11 if is(field, "traceparent") => is_traced = true,
            10 if is(field, "connection") => {
                field.value.eq_ignore_ascii_case(b"keep-alive").then_some(())?;
            }
            19 if path == Path::Route && is(field, OBJECTIVE) => return None,
            2 | 6 | 7 | 16 | 17 if NOT_PLAIN.iter().any(|name| is(field, name)) => return None,
            _ => {}
        }
    }
    let (body_len, form) = (body_len?, form?);
    Some(Head { body_at, body_len, form, path, request_id, authorization, url_query, is_traced })
}

/// Whether what came is the beginning of a head that may yet be a plain one.
pub fn may_become_plain(received: &[u8]) -> bool {
    let begins = |start: &&[u8]| {
        let known = received.len().min(start.len());
        received[..known] == start[..known]
    };
    if !PLAIN_STARTS.iter().any(begins) || received.len() >= HEAD_BYTES_MAX {
        return false;
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let parsed = httparse::Request::new(&mut fields).parse(received);
    matches!(parsed, Ok(httparse::Status::Partial)) && has_plain_lines(received)
}

/// What is asked, and what stands behind the `?`; None for another path.
fn read_target(target: &str) -> Option<(Path, &[u8])> {
    let (path, url_query) = target.split_once('?').unwrap_or((target, ""));
    let path = match path {
        "/query" => Path::Query,
        "/query_by_hash" => Path::QueryByHash,
        "/route" => Path::Route,
        "/feedback" => Path::Feedback,
        _ => return None,
    };
    Some((path, url_query.as_bytes()))
}

fn is(field: &httparse::Header, name: &str) -> bool {
    field.name.eq_ignore_ascii_case(name)
}

fn once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

fn number(digits: &[u8]) -> Option<usize> {
    let is_number = (1..=9).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| digits.iter().fold(0, |all, digit| 10 * all + usize::from(digit - b'0')))
}

/// `httparse` also takes lines that end with LF alone, and leaves out blanks before the end.
fn has_plain_lines(head: &[u8]) -> bool {
    head.iter().enumerate().all(|(at, &byte)| match byte {
        b'\n' => at > 0 && head[at - 1] == b'\r',
        b'\r' => at > 0 && !matches!(head[at - 1], b' ' | b'\t'),
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &str) -> Vec<u8> {
        format!("POST /query HTTP/1.1\r\n{fields}\r\nbody").into_bytes()
    }

    const PLAIN: &str = "Host: h\r\nContent-Type: application/json\r\nContent-Length: 4\r\n";

    #[test]
    fn a_plain_head_is_read() {
        let received = head(&format!("{PLAIN}User-Agent: x\r\nX-Request-ID: a b\r\n"));
        let read = read_head(&received).unwrap();
        assert_eq!(&received[read.body_at..], b"body");
        assert_eq!((read.body_len, read.request_id), (4, Some(&b"a b"[..])));
        assert_eq!((read.form, read.path, read.url_query), (Form::Json, Path::Query, &b""[..]));
        let packed = "Content-Length: 4\r\ncontent-type: application/msgpack\r\n";
        assert_eq!(read_head(&head(packed)).unwrap().form, Form::Msgpack);
        let octets = format!(
            "POST /query?model=m&a=?b HTTP/1.1\r\n{}\r\n",
            PLAIN.replace("/json", "/octet-stream")
        );
        let read = read_head(octets.as_bytes()).unwrap();
        assert_eq!((read.form, read.url_query), (Form::Octets, &b"model=m&a=?b"[..]));
        let by_hash = format!("POST /query_by_hash HTTP/1.1\r\n{PLAIN}\r\n").into_bytes();
        assert_eq!(read_head(&by_hash).unwrap().path, Path::QueryByHash);
        let route = format!("POST /route HTTP/1.1\r\n{PLAIN}\r\n").into_bytes();
        assert_eq!(read_head(&route).unwrap().path, Path::Route);
        let feedback = format!("POST /feedback HTTP/1.1\r\n{PLAIN}\r\n").into_bytes();
        assert_eq!(read_head(&feedback).unwrap().path, Path::Feedback);
        let objective = format!("{PLAIN}X-LLM-D-SLO-TTFT-MS: 1\r\n");
        let route = format!("POST /route HTTP/1.1\r\n{objective}\r\n").into_bytes();
        assert!(read_head(&route).is_none(), "it has an objective");
        assert!(read_head(&head(&objective)).is_some(), "which says nothing to a query");
        let received = head(&format!("{PLAIN}Connection: Keep-Alive\r\nAuthorization: x\r\n"));
        let read = read_head(&received).unwrap();
        assert_eq!((read.request_id, read.authorization), (None, Some(&b"x"[..])));
        assert!(!read.is_traced);
    }

    #[test]
    fn a_trace_is_seen_whatever_its_context_says() {
        for value in ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x"] {
            let received = head(&format!("{PLAIN}TraceParent: {value}\r\n"));
            assert!(read_head(&received).unwrap().is_traced, "{value:?}");
        }
        assert!(!read_head(&head(&format!("{PLAIN}X-Trace-Ids: x\r\n"))).unwrap().is_traced);
    }

    #[test]
    fn fields_as_long_as_one_that_counts_are_passed_over() {
        let fields = "Accept: */*\r\nReferer: x\r\nUser-Agent: x\r\nX-Client-Tag: x\r\n\
                      Accept-Charset: utf-8\r\nX-Forwarded-For1: x\r\nX-Forwarded-Port1: x\r\n";
        let received = head(&format!("{PLAIN}{fields}"));
        let read = read_head(&received).unwrap();
        assert_eq!((read.body_len, read.request_id), (4, None));
    }

    #[test]
    fn a_head_behind_an_empty_line_is_not_plain() {
        for blank in ["\n", "\r\n"] {
            let received = [blank.as_bytes(), &head(PLAIN)].concat();
            assert!(read_head(&received).is_none(), "{blank:?}");
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_server() {
        let long = format!("X: {}\r\n", "x".repeat(HEAD_BYTES_MAX));
        let many = "X: x\r\n".repeat(FIELDS_MAX);
        let id = format!("X-Request-ID: {}\r\n", "x".repeat(REQUEST_ID_BYTES_MAX + 1));
        for field in [
            "Transfer-Encoding: chunked\r\n",
            "Expect: 100-continue\r\n",
            "Connection: close\r\n",
            "Connection: upgrade\r\n",
            "Proxy-Connection: close\r\n",
            "Upgrade: h2c\r\n",
            "TE: trailers\r\n",
            "Trailer: x\r\n",
            "Origin: http://x\r\n",
            "Content-Encoding: gzip\r\n",
            "Content-Length: 4\r\n",
            "Content-Type: application/json\r\n",
            "Authorization: a\r\nAuthorization: a\r\n",
            "X-Request-ID: a\r\nX-Request-ID: a\r\n",
            "X-Request-ID: \u{e9}\r\n",
            "X-Request-ID:\r\n",
            "A: b\n",
            "A: b \r\n",
            "A: b\t\r\n",
            "A : b\r\n",
            " folded\r\n",
            &long,
            &many,
            &id,
        ] {
            assert!(read_head(&head(&format!("{PLAIN}{field}"))).is_none(), "{field}");
        }
        for fields in [
            "",
            "Content-Type: application/json\r\n",
            "Content-Length: 4\r\n",
            "Content-Type: application/json; charset=utf-8\r\nContent-Length: 4\r\n",
            "Content-Type: application/x-msgpack\r\nContent-Length: 4\r\n",
            "Content-Type: application/json\r\nContent-Length: -4\r\n",
            "Content-Type: application/json\r\nContent-Length: 4, 4\r\n",
            "Content-Type: application/json\r\nContent-Length: 1234567890\r\n",
            "Content-Type: application/json\r\nContent-Length:\r\n",
        ] {
            assert!(read_head(&head(fields)).is_none(), "{fields}");
        }
        for line in [
            "GET /query HTTP/1.1",
            "POST /query HTTP/1.0",
            "POST /query/ HTTP/1.1",
            "POST /query%3f HTTP/1.1",
            "POST http://h/query HTTP/1.1",
            "POST  /query HTTP/1.1",
        ] {
            let received = format!("{line}\r\n{PLAIN}\r\nbody").into_bytes();
            assert!(read_head(&received).is_none(), "{line}");
        }
    }

    #[test]
    fn a_beginning_that_is_of_no_plain_head_is_told_at_once() {
        let long = format!("POST /query HTTP/1.1\r\nA: {}", "x".repeat(HEAD_BYTES_MAX));
        for begin in [
            "G",
            "POST /health",
            "POST /routing",
            "POST /query HTTP/1.1\n",
            "POST /query HTTP/1.1\r\nA: b\nC",
            "POST /query HTTP/1.1\r\nA\r\n",
            "POST /query HTTP/2.1",
            "POST /query HTTP/1.1\r\n\r\n",
            &long,
        ] {
            assert!(!may_become_plain(begin.as_bytes()), "{begin}");
        }
    }

    #[test]
    fn a_head_that_has_not_come_whole_is_not_read() {
        let received = head(PLAIN);
        let whole = read_head(&received).unwrap().body_at;
        for end in 0..received.len() {
            assert_eq!(read_head(&received[..end]).is_some(), end >= whole, "{end}");
            assert_eq!(may_become_plain(&received[..end]), end < whole, "{end}");
        }
    }
}
