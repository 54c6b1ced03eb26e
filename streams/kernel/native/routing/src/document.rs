//! A decision as its client is told: `RouteDocument` of `routing/http/documents.py`, in JSON.

use std::io::Write;

use crate::boards::Settings;
use crate::record::Made;

/// Whether the name stands in JSON as it is.
pub fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20 | 0x7f))
}

/// `position`: of the index, as answers have it. All names are plain.
pub fn write(made: &Made, settings: &Settings, position: &str) -> Vec<u8> {
    let one = &made.candidates[made.chosen];
    let target = &made.roster.targets[made.chosen];
    let mut text = Vec::with_capacity(768);
    let to = &mut text;
    let expected = 1000.0 * made.choice.predicted_s();
    // To a vector, which takes all of it.
    let _ = write!(
        to,
        r#"{{"decision_id":"{:x}-{:x}","request_id":"{}","policy":"{}","parameters":"{}","prefill":{{"instance_id":"{}","dp_rank":{},"endpoint":"{}","prompt_tokens":{},"cached_tokens":{},"predicted_tokens":{},"approximate":{},"gpu":{},"cpu":{},"disk":{},"ttft_ms":{{"expected":"#,
        settings.run,
        made.number,
        made.request_id,
        settings.policy,
        settings.parameters,
        target.instance_id,
        target.dp_rank,
        target.endpoint,
        made.prompt,
        made.choice.prefix,
        one.predicted,
        target.is_approximate,
        one.gpu,
        one.cached - one.disk,
        one.cached,
    );
    number(to, expected);
    for (name, value) in [
        ("p90", expected * target.p90),
        ("queue", 1000.0 * made.choice.queue_s),
        ("load", 1000.0 * made.choice.load_s),
        ("transfer", 0.0),
        ("prefill", 1000.0 * made.choice.prefill_s),
    ] {
        let _ = write!(to, r#","{name}":"#);
        number(to, value);
    }
    let _ = write!(
        to,
        r#"}},"fetch":null}},"decode":null,"index":{{"position":"{position}","state":"{}"}},"load_age_ms":"#,
        made.state
    );
    match made.load_age_s() {
        Some(age) => number(to, 1000.0 * age),
        None => to.extend_from_slice(b"null"),
    }
    to.extend_from_slice(br#","plan":null,"advice":[]}"#);
    text
}

/// As msgspec writes it.
fn number(to: &mut Vec<u8>, value: f64) {
    if value.is_finite() {
        to.extend_from_slice(ryu::Buffer::new().format_finite(value).as_bytes());
    } else {
        to.extend_from_slice(b"null");
    }
}
