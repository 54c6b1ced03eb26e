//! What came of decisions, as clients tell it: plain bodies of `POST /feedback`, about decisions that
//! were made here and that Python has been told nothing of. Anything else gives None, and Python
//! takes it; so what is accepted here must mean the same in `routing/http/requests.py`, and be new to
//! `routing.overlay.bookings`.

use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use msgpack::write;
use prefix_index::scan::{once, read_objects};

use crate::boards::Boards;
use crate::decided::{Effect, Item, What};
use crate::open_decisions::OPEN_S;

/// As `FEEDBACK_MAX`, `FEEDBACK_BYTES_MAX`, `ROUTE_TOKENS_MAX` and `ReportedMs` there.
const REPORTS_MAX: usize = 1024;
const REPORTS_BYTES_MAX: usize = 2 * 1024 * 1024;
const TOKENS_MAX: u64 = (1 << 31) - 1;
const MS_MAX: f64 = 86_400_000.0;

/// As `FeedbackReport` of `schemas/routing_records.py` has them.
const FIELDS: usize = 15;

/// What is told here; the rest has Python look at more than this.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    Dispatched,
    FirstToken,
    Completed,
}

impl Event {
    fn named(name: &str) -> Option<Self> {
        match name {
            "dispatched" => Some(Self::Dispatched),
            "first_token" => Some(Self::FirstToken),
            "completed" => Some(Self::Completed),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Dispatched => "dispatched",
            Self::FirstToken => "first_token",
            Self::Completed => "completed",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

#[derive(Default)]
struct Fields<'a> {
    decision_id: Option<&'a str>,
    event: Option<&'a str>,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    output_tokens: Option<u64>,
    queue_ms: Option<f64>,
    prefill_ms: Option<f64>,
    ttft_ms: Option<f64>,
    tbt_ms: Option<f64>,
}

struct Told<'a> {
    number: u64,
    event: Event,
    fields: Fields<'a>,
}

/// Takes all reports of a body, and says how many these are; None where Python has to take them. Those
/// that wait are bounded by the decisions that are open, of each three at most.
///
/// `tenants`: whose decisions they may be about; None: everybody's. `now`: Unix seconds.
pub fn take(boards: &Boards, body: &[u8], tenants: Option<&[String]>, now: f64) -> Option<usize> {
    let reports = read(body, &boards.run_name)?;
    let mut inner = boards.inner.lock();
    let mut seen: HashMap<u64, u8> = HashMap::new();
    for one in &reports {
        let open = inner.open.known.get(&one.number)?;
        tenants
            .is_none_or(|known| known.iter().any(|name| **name == *open.tenant_id))
            .then_some(())?;
        (now - open.time <= OPEN_S).then_some(())?;
        let seen = seen.entry(one.number).or_insert(open.seen);
        let is_new = *seen & (one.event.bit() | Event::Completed.bit()) == 0;
        is_new.then_some(())?;
        *seen |= one.event.bit();
    }
    for one in &reports {
        let Some(open) = inner.open.known.get_mut(&one.number) else { continue };
        let has_begun = open.seen & Event::FirstToken.bit() != 0;
        let ends = one.event == Event::Completed;
        open.seen |= one.event.bit();
        let effect = Effect {
            target: open.target,
            time: if open.time > now { open.time } else { now },
            work_s: open.work_s,
            uncached: open.uncached,
            tokens: open.tokens,
            what: What::Told { begins: !has_begun, ends, end_at: open.end_at },
        };
        if ends {
            inner.open.known.remove(&one.number);
        }
        if one.event != Event::Dispatched {
            inner.effects.push(effect);
        }
        inner.open.told.insert(one.number);
        let behind = inner.effects.next();
        inner.waiting.push(Item::Report(encode(one, now)), behind);
    }
    boards.note_waiting(inner.waiting.len());
    boards.reported.fetch_add(reports.len() as u64, Ordering::Relaxed);
    Some(reports.len())
}

fn read<'a>(body: &'a [u8], run_name: &str) -> Option<Vec<Told<'a>>> {
    (body.len() <= REPORTS_BYTES_MAX).then_some(())?;
    let found = read_objects(body, REPORTS_MAX, |one: &mut Fields, name, scanner| match name {
        "decision_id" => once(&mut one.decision_id, scanner.string()?),
        "event" => once(&mut one.event, scanner.string()?),
        "prompt_tokens" => once(&mut one.prompt_tokens, scanner.integer()?),
        "cached_tokens" => once(&mut one.cached_tokens, scanner.integer()?),
        "output_tokens" => once(&mut one.output_tokens, scanner.integer()?),
        "queue_ms" => once(&mut one.queue_ms, scanner.float()?),
        "prefill_ms" => once(&mut one.prefill_ms, scanner.float()?),
        "ttft_ms" => once(&mut one.ttft_ms, scanner.float()?),
        "tbt_ms" => once(&mut one.tbt_ms, scanner.float()?),
        _ => None,
    })?;
    found.into_iter().map(|one| check(one, run_name)).collect()
}

fn check<'a>(fields: Fields<'a>, run_name: &str) -> Option<Told<'a>> {
    let number = fields.decision_id?.strip_prefix(run_name)?;
    let is_named = matches!(number.as_bytes(), [b'0'] | [b'1'..=b'9' | b'a'..=b'f', ..])
        && number.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let number = is_named.then(|| u64::from_str_radix(number, 16).ok())??;
    let event = Event::named(fields.event?)?;
    let counts = [fields.prompt_tokens, fields.cached_tokens, fields.output_tokens];
    counts.iter().flatten().all(|&tokens| tokens <= TOKENS_MAX).then_some(())?;
    let times = [fields.queue_ms, fields.prefill_ms, fields.ttft_ms, fields.tbt_ms];
    times.iter().flatten().all(|&ms| ms <= MS_MAX).then_some(())?;
    if let Some(prompt) = fields.prompt_tokens {
        (fields.cached_tokens.unwrap_or(0) <= prompt).then_some(())?;
    }
    if let Some(ttft) = fields.ttft_ms {
        [fields.queue_ms, fields.prefill_ms].iter().flatten().all(|&ms| ms <= ttft).then_some(())?;
    }
    Some(Told { number, event, fields })
}

fn encode(told: &Told, now: f64) -> Vec<u8> {
    let mut to = Vec::with_capacity(96);
    let fields = &told.fields;
    write::array(&mut to, FIELDS);
    write::uint(&mut to, told.number);
    write::str(&mut to, told.event.name());
    write::float(&mut to, now);
    write::nil(&mut to); // where it went: as it was told
    write::nil(&mut to);
    let count = |to: &mut Vec<u8>, value: Option<u64>| match value {
        Some(value) => write::uint(to, value),
        None => write::nil(to),
    };
    let seconds = |to: &mut Vec<u8>, ms: Option<f64>| match ms {
        Some(ms) => write::float(to, ms / 1000.0),
        None => write::nil(to),
    };
    count(&mut to, fields.prompt_tokens);
    count(&mut to, fields.cached_tokens);
    seconds(&mut to, fields.queue_ms);
    seconds(&mut to, fields.prefill_ms);
    seconds(&mut to, fields.ttft_ms);
    count(&mut to, fields.output_tokens);
    seconds(&mut to, fields.tbt_ms);
    for _ in 0..3 {
        write::str(&mut to, ""); // no error, no trace
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "1f-";

    fn number(body: &str) -> Option<u64> {
        read(body.as_bytes(), RUN).map(|told| told[0].number)
    }

    #[test]
    fn a_plain_report_is_read() {
        let body = r#"{"decision_id":"1f-a0","event":"completed","prompt_tokens":9,"cached_tokens":9,
            "output_tokens":0,"queue_ms":1,"prefill_ms":2.5,"ttft_ms":2.5,"tbt_ms":1e1}"#;
        let [told] = &read(body.as_bytes(), RUN).unwrap()[..] else { panic!("it is one") };
        assert_eq!(
            (told.number, told.event, told.fields.tbt_ms),
            (0xa0, Event::Completed, Some(10.0))
        );
        for event in ["dispatched", "first_token"] {
            assert_eq!(number(&format!(r#"{{"event":"{event}","decision_id":"1f-0"}}"#)), Some(0));
        }
    }

    #[test]
    fn what_is_not_plain_is_pythons() {
        for name in
            ["1f-", "1f-00", "1f-0a", "1f-A", "1f-g", "1f--1", "1f", "2f-1", "1f-11111111111111111"]
        {
            assert_eq!(number(&format!(r#"{{"decision_id":"{name}","event":"completed"}}"#)), None);
        }
        for fields in [
            "",
            r#","event":"failed""#,
            r#","event":"completed","at":1"#,
            r#","event":"completed","ttft_ms":86400001"#,
            r#","event":"completed","ttft_ms":1,"queue_ms":2"#,
            r#","event":"completed","ttft_ms":1,"prefill_ms":2"#,
            r#","event":"completed","prompt_tokens":1,"cached_tokens":2"#,
            r#","event":"completed","prompt_tokens":2147483648"#,
            r#","event":"completed","decision_id":"1f-1""#,
        ] {
            assert_eq!(number(&format!(r#"{{"decision_id":"1f-1"{fields}}}"#)), None, "{fields}");
        }
    }
}
