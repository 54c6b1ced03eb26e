//! The answer to a plain body of `POST /query` and `/query_by_hash`: read, walked and written in one
//! go.
//!
//! `answer_query` and `answer_hash_query` of `query_api/http/requests/queries.py` and
//! `encode_matches` of `query_api/http/answers.py` are the specification. What is unusual gives
//! None, and the caller then takes each step by itself.

use std::borrow::Cow;

use msgpack::write;

use crate::audit::{self, Told};
use crate::bodies::read_query;
use crate::core::Core;
use crate::names::ScopeRef;
use crate::query_fields::PackedQuery;
use crate::scan::scan_query;
use crate::scope::RosterEntry;
use crate::urls::{read_octets, read_option};
use crate::walk::{self, InstanceDepths, Prompt, Walked};

/// What an instance takes beside its name and numbers, about.
const INSTANCE_BYTES: usize = 96;

/// What a body is, and so its answer: that of octets is JSON.
#[derive(Clone, Copy, PartialEq)]
pub enum Form {
    Json,
    Msgpack,
    /// Tokens, u32 LE, or hashes, u64 LE; all else stands in the URL.
    Octets,
}

#[derive(Clone, Copy)]
pub struct Kind<'a> {
    pub form: Form,
    /// Else it has tokens.
    pub by_hash: bool,
    /// What stands behind the `?` of the URL.
    pub url_query: &'a [u8],
}

pub struct Answered<'a> {
    pub scope: ScopeRef<'a>,
    /// In the prompt, and the most that one instance holds of it.
    pub tokens: usize,
    pub hit_tokens: u64,
    pub text: Vec<u8>,
    /// What is to be kept of it, if it is one of those that are.
    pub audited: Option<Vec<u8>>,
}

struct Query<'a> {
    scope: ScopeRef<'a>,
    instance_id: Option<&'a str>,
    cache_salt: &'a str,
    content: Cow<'a, [u8]>,
    /// Whether instances that hold nothing of it are left out.
    hits_only: bool,
}

/// The answer; the lock is taken after the body has been read.
pub fn answer<'a>(body: &'a [u8], kind: Kind<'a>, core: &Core) -> Option<Answered<'a>> {
    let Query { mut scope, instance_id, cache_salt, content, hits_only } = read(body, kind)?;
    let mut first_key = Vec::new();
    let audit = core.audit.get().filter(|queue| queue.draw());
    let mut seen = audit.map(|_| Vec::new());
    let state = core.state.read();
    let index = &state.index;
    let find =
        |scope: &ScopeRef| index.scope_ids.get(scope).map(|&number| &index.scopes[number as usize]);
    if !cache_salt.is_empty() {
        // A namespace of that name that is known, or else the request's own; hashes hold that.
        let named = ScopeRef { additional_salt: cache_salt, ..scope };
        if find(&named).is_some_and(|scope| !scope.roster.is_empty()) {
            scope = named;
        } else if !kind.by_hash {
            write::array(&mut first_key, 1);
            write::str(&mut first_key, cache_salt);
        }
    }
    let walked = find(&scope).and_then(|scope| {
        let prompt = if kind.by_hash {
            Prompt::Hashes(content.as_chunks().0)
        } else {
            Prompt::Tokens(&content, &first_key)
        };
        walk::walk(scope, index.placement, &core.hasher, &prompt, instance_id, seen.as_mut())
    });
    let depths = walked.iter().flat_map(|walked| walked.roster.iter().map(|e| walked.longest(e)));
    let hit_tokens = depths.max().unwrap_or(0);
    let text = if kind.form == Form::Msgpack {
        encode_msgpack(walked.as_ref(), hits_only)
    } else {
        encode_json(scope.tenant_id, walked.as_ref(), hits_only)?
    };
    let tokens = if kind.by_hash {
        content.len() / 8 * scope.block_size as usize
    } else {
        content.len() / 4
    };
    let audited = audit.and_then(|queue| {
        let Some((_, positions)) = core.settled() else {
            queue.note_unsettled();
            return None;
        };
        let (positions, hashes) = (&positions[..], seen.as_deref().unwrap_or_default());
        let told = Told { positions, scope, instance_id, hits_only, tokens, hashes };
        Some(audit::encode(&told, walked.as_ref()))
    });
    Some(Answered { scope, tokens, hit_tokens, text, audited })
}

fn read<'a>(body: &'a [u8], kind: Kind<'a>) -> Option<Query<'a>> {
    let (packed, hits_only) = match kind.form {
        Form::Octets => read_octets(kind.url_query, body, kind.by_hash)?,
        Form::Msgpack => (read_query(body, kind.by_hash)?, read_option(kind.url_query)?),
        Form::Json => return read_json(body, kind),
    };
    let PackedQuery { model, lora_name, tenant_id, instance_id, block_size, .. } = packed;
    if kind.form == Form::Octets && !is_plain(tenant_id) {
        return None;
    }
    Some(Query {
        scope: ScopeRef {
            tenant_id,
            model_name: model,
            lora_name,
            block_size,
            additional_salt: "",
        },
        instance_id,
        cache_salt: packed.cache_salt,
        content: packed.content.into(),
        hits_only,
    })
}

fn read_json<'a>(body: &'a [u8], kind: Kind<'a>) -> Option<Query<'a>> {
    let hits_only = read_option(kind.url_query)?;
    if kind.by_hash {
        return None;
    }
    let query = scan_query(body)?;
    let scope = ScopeRef {
        tenant_id: query.tenant_id,
        model_name: query.model,
        lora_name: query.lora_name,
        block_size: query.block_size.try_into().ok()?,
        additional_salt: "",
    };
    is_plain(query.tenant_id).then_some(Query {
        scope,
        instance_id: query.instance_id,
        cache_salt: query.cache_salt,
        content: query.tokens.into(),
        hits_only,
    })
}

/// Conductor's answer: the boundaries of its walk down the tiers.
fn encode_msgpack(walked: Option<&Walked>, hits_only: bool) -> Vec<u8> {
    let roster = walked.map_or(&[][..], |walked| walked.roster);
    let holds = |entry: &RosterEntry| walked.is_some_and(|walked| walked.longest(entry) > 0);
    let listed = roster.iter().filter(|entry| !hits_only || holds(entry)).count();
    let mut text = Vec::with_capacity(16 + INSTANCE_BYTES * (1 + listed));
    write::map(&mut text, 1);
    write::str(&mut text, "instances");
    write::map(&mut text, listed);
    for entry in roster {
        match walked {
            Some(walked) if holds(entry) => msgpack_instance(&mut text, &walked.depths(entry)),
            _ if hits_only => {}
            _ => text.extend_from_slice(entry.misses.msgpack.get_or_init(|| {
                let mut text = Vec::with_capacity(INSTANCE_BYTES);
                msgpack_instance(&mut text, &entry.no_depths());
                text.into()
            })),
        }
    }
    text
}

fn msgpack_instance(to: &mut Vec<u8>, instance: &InstanceDepths) {
    let walks = |place: usize| instance.ranks.iter().map(move |rank| rank.depths[place]);
    let [gpu, cpu, disk] = [1, 2, 3].map(|place| walks(place).max().unwrap_or(0));
    write::str(to, &instance.instance_id);
    write::map(to, 6);
    write::str(to, "longest_matched");
    write::uint(to, disk);
    write::str(to, "dp");
    write::map(to, instance.ranks.len());
    for rank in &instance.ranks {
        write::str(to, &rank.dp_rank.to_string());
        write::uint(to, rank.depths[1]);
    }
    write::str(to, "rank_matches");
    write::map(to, instance.ranks.len());
    for rank in &instance.ranks {
        write::str(to, &rank.dp_rank.to_string());
        let [_, gpu, cpu, disk] = rank.depths;
        write_depths(to, 3, [gpu, cpu, disk]);
    }
    write_depths(to, 0, [gpu, cpu, disk]);
}

/// `fields`: of the map that begins with them; 0 where it has begun.
fn write_depths(to: &mut Vec<u8>, fields: usize, depths: [u64; 3]) {
    if fields > 0 {
        write::map(to, fields);
    }
    for (name, depth) in ["gpu", "cpu", "disk"].into_iter().zip(depths) {
        write::str(to, name);
        write::uint(to, depth);
    }
}

/// Whether the name stands in JSON as it is.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20 | 0x7f))
}

fn encode_json(tenant_id: &str, walked: Option<&Walked>, hits_only: bool) -> Option<Vec<u8>> {
    let roster = walked.map_or(&[][..], |walked| walked.roster);
    let mut text = Vec::with_capacity(tenant_id.len() + INSTANCE_BYTES * (1 + roster.len()));
    text.extend_from_slice(b"{\"");
    text.extend_from_slice(tenant_id.as_bytes());
    let first = &b"\":{"[..];
    let mut before = first;
    for entry in roster {
        let held = walked.filter(|walked| walked.longest(entry) > 0);
        if held.is_none() && hits_only {
            continue;
        }
        text.extend_from_slice(before);
        before = b",";
        match held {
            Some(walked) => json_instance(&mut text, &walked.depths(entry))?,
            None => text.extend_from_slice(
                entry
                    .misses
                    .json
                    .get_or_init(|| {
                        let mut text = Vec::with_capacity(INSTANCE_BYTES);
                        json_instance(&mut text, &entry.no_depths()).map(|()| text.into())
                    })
                    .as_ref()?,
            ),
        }
    }
    if before == first {
        return Some(b"{}".to_vec());
    }
    text.extend_from_slice(b"}}");
    Some(text)
}

/// None where the name does not stand in JSON as it is.
fn json_instance(text: &mut Vec<u8>, instance: &InstanceDepths) -> Option<()> {
    if !is_plain(&instance.instance_id) {
        return None;
    }
    text.push(b'"');
    text.extend_from_slice(instance.instance_id.as_bytes());
    let [longest, gpu, cpu, disk] = instance.depths;
    let names = ["\":{\"longest_matched\":", ",\"GPU\":", ",\"CPU\":", ",\"DISK\":"];
    for (name, value) in names.into_iter().zip([longest, gpu, cpu, disk]) {
        text.extend_from_slice(name.as_bytes());
        write_number(text, value);
    }
    let mut before = &b",\"DP\":{\""[..];
    for rank in &instance.ranks {
        text.extend_from_slice(before);
        before = b",\"";
        write_number(text, rank.dp_rank.into());
        text.extend_from_slice(b"\":");
        write_number(text, rank.depths[0]);
    }
    text.extend_from_slice(if instance.ranks.is_empty() { b",\"DP\":{}}" } else { b"}}" });
    Some(())
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
