//! The answer to a plain JSON body of `POST /query`, as text: scanned, walked and written in one go.
//!
//! `answer_query` of `query_api/http/requests/queries.py` and `encode_matches` of
//! `query_api/http/answers.py` are the specification. What is unusual gives None,
//! and the caller then takes each step by itself.

use msgpack::write;

use crate::hashing::PrefixHasher;
use crate::names::ScopeRef;
use crate::scan::scan_query;
use crate::state::State;
use crate::walk::{self, InstanceDepths, Prompt};

/// What an instance takes beside its name and numbers, about.
const INSTANCE_BYTES: usize = 96;

pub struct Answered<'a> {
    pub scope: ScopeRef<'a>,
    /// In the prompt, and the most that one instance holds of it.
    pub tokens: usize,
    pub hit_tokens: u64,
    pub text: Vec<u8>,
}

/// The answer; `state` is asked for its lock after the body has been read.
pub fn answer<'a, Held>(
    body: &'a [u8],
    hasher: &PrefixHasher,
    state: impl FnOnce() -> Held,
) -> Option<Answered<'a>>
where
    Held: std::ops::Deref<Target = State>,
{
    let query = scan_query(body)?;
    if !is_plain(query.tenant_id) {
        return None;
    }
    let mut scope = ScopeRef {
        tenant_id: query.tenant_id,
        model_name: query.model,
        lora_name: query.lora_name,
        block_size: query.block_size.try_into().ok()?,
        additional_salt: "",
    };
    let mut first_key = Vec::new();
    let matches = {
        let state = state();
        let index = &state.index;
        let find = |scope: &ScopeRef| {
            index.scope_ids.get(scope).map(|&number| &index.scopes[number as usize])
        };
        if !query.cache_salt.is_empty() {
            // A namespace of that name that is known, or else the request's own.
            let named = ScopeRef { additional_salt: query.cache_salt, ..scope };
            if find(&named).is_some_and(|scope| !scope.roster.is_empty()) {
                scope = named;
            } else {
                write::array(&mut first_key, 1);
                write::str(&mut first_key, query.cache_salt);
            }
        }
        find(&scope).map_or_else(Vec::new, |scope| {
            let prompt = Prompt::Tokens(&query.tokens, &first_key);
            walk::query(scope, index.placement, hasher, &prompt, query.instance_id)
        })
    };
    let hit_tokens = matches.iter().map(|instance| instance.depths[0]).max().unwrap_or(0);
    let text = encode(scope.tenant_id, &matches)?;
    Some(Answered { scope, tokens: query.tokens.len() / 4, hit_tokens, text })
}

/// Whether the name stands in JSON as it is.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20 | 0x7f))
}

fn encode(tenant_id: &str, matches: &[InstanceDepths]) -> Option<Vec<u8>> {
    if matches.is_empty() {
        return Some(b"{}".to_vec());
    }
    let mut text = Vec::with_capacity(tenant_id.len() + INSTANCE_BYTES * (1 + matches.len()));
    text.extend_from_slice(b"{\"");
    text.extend_from_slice(tenant_id.as_bytes());
    let mut before = &b"\":{\""[..];
    for instance in matches {
        if !is_plain(&instance.instance_id) {
            return None;
        }
        text.extend_from_slice(before);
        before = b",\"";
        text.extend_from_slice(instance.instance_id.as_bytes());
        let [longest, gpu, cpu, disk] = instance.depths;
        let names = ["\":{\"longest_matched\":", ",\"GPU\":", ",\"CPU\":", ",\"DISK\":"];
        for (name, value) in names.into_iter().zip([longest, gpu, cpu, disk]) {
            text.extend_from_slice(name.as_bytes());
            write_number(&mut text, value);
        }
        let mut before = &b",\"DP\":{\""[..];
        for rank in &instance.ranks {
            text.extend_from_slice(before);
            before = b",\"";
            write_number(&mut text, rank.dp_rank.into());
            text.extend_from_slice(b"\":");
            write_number(&mut text, rank.depths[0]);
        }
        text.extend_from_slice(if instance.ranks.is_empty() { b",\"DP\":{}}" } else { b"}}" });
    }
    text.extend_from_slice(b"}}");
    Some(text)
}

fn write_number(text: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_text() {
        for value in [0, 7, 10, 1_048_576, u64::MAX] {
            let mut text = Vec::new();
            write_number(&mut text, value);
            assert_eq!(text, value.to_string().into_bytes());
        }
    }

    #[test]
    fn a_name_that_json_escapes_is_left_to_the_caller() {
        for name in ["a\"b", "a\\b", "a\nb", "a\u{7f}"] {
            assert!(!is_plain(name));
        }
        assert!(is_plain("vllm-1/zürich"));
    }
}
