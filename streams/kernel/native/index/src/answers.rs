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
    /// Whom it may be about; None: everybody.
    pub tenants: Option<&'a [String]>,
}

impl Kind<'_> {
    fn admits(&self, tenant_id: &str) -> bool {
        self.tenants.is_none_or(|tenants| tenants.iter().any(|one| one == tenant_id))
    }
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

/// The answer to a plain body; None where it is unusual. The lock is taken after the body has been
/// read.
pub fn answer<'a>(body: &'a [u8], kind: Kind<'a>, core: &Core) -> Option<Answered<'a>> {
    let Query { mut scope, instance_id, cache_salt, content, hits_only } = read(body, kind)?;
    // Before anything is looked up: the time that takes would tell of others' prompts.
    kind.admits(scope.tenant_id).then_some(())?;
    let mut first_key = Vec::new();
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
    // What nobody has is said by the caller, with what there is instead.
    let asked = find(&scope).filter(|scope| !scope.roster.is_empty())?;
    let audit = core.audit.get().filter(|queue| queue.draw());
    let mut seen = audit.map(|_| Vec::new());
    let keys = [&first_key[..]];
    let walked = {
        let prompt = if kind.by_hash {
            Prompt::Hashes(content.as_chunks().0)
        } else {
            Prompt::Tokens(&content, &keys)
        };
        walk::walk(&state, asked, &core.hasher, &prompt, instance_id, seen.as_mut())
    };
    let hit_tokens = walked.as_ref().map_or(0, Walked::most);
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
        let is_mixed = walked.as_ref().is_some_and(|walked| walked.is_mixed);
        let Some((_, positions)) = core.settled().filter(|_| !is_mixed) else {
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
    let listed = walked.map_or(0, |walked| walked.listed(hits_only));
    let mut text = Vec::with_capacity(16 + INSTANCE_BYTES * (1 + listed));
    write::map(&mut text, 1);
    write::str(&mut text, "instances");
    write::map(&mut text, listed);
    if let Some(walked) = walked {
        let written = walked.write_parts(
            &mut text,
            hits_only,
            |misses| &misses.msgpack,
            |to, instance| {
                msgpack_instance(to, instance);
                Some(())
            },
        );
        written.expect("any name stands in msgpack");
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
    let listed = walked.map_or(0, |walked| walked.listed(hits_only));
    let mut text = Vec::with_capacity(tenant_id.len() + INSTANCE_BYTES * (1 + listed));
    text.extend_from_slice(b"{\"");
    text.extend_from_slice(tenant_id.as_bytes());
    text.extend_from_slice(b"\":");
    let begin = text.len();
    if let Some(walked) = walked {
        walked.write_parts(&mut text, hits_only, |misses| &misses.json, json_instance)?;
    }
    // Each part begins with a comma.
    let Some(before_first) = text.get_mut(begin) else {
        return Some(b"{}".to_vec());
    };
    *before_first = b'{';
    text.extend_from_slice(b"}}");
    Some(text)
}

/// With a comma before it. None where the name does not stand in JSON as it is.
fn json_instance(text: &mut Vec<u8>, instance: &InstanceDepths) -> Option<()> {
    if !is_plain(&instance.instance_id) {
        return None;
    }
    text.extend_from_slice(b",\"");
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
    use std::slice;
    use std::sync::Arc;

    use xxhash_rust::xxh3::xxh3_64_with_seed;

    use super::*;
    use crate::audit::Queue;
    use crate::events::read_events;
    use crate::names::{Sharing, StreamKey};
    use crate::sample_events::{SampleEvent, encode, u32s, u64s};
    use crate::write::WriteTurn;

    const TOKENS: [u32; 7] = [1, 2, 3, 4, 5, 6, 7];
    const SALTED: &[u8] = &[0x91, 0xa1, b'k'];

    struct Answers {
        core: Core,
        queue: Arc<Queue>,
    }

    impl Answers {
        /// Instance `a` has a prompt's blocks on rank 0: two on the GPU, one on the CPU, and under
        /// the salt `k` the first; `b` has none, on two ranks; the namespace `s` has `c`.
        fn new() -> Self {
            let core = Core::new(9, 100, 100, 100);
            let queue = Arc::new(Queue::new(1.0, 1 << 20, 1 << 10));
            assert!(core.audit.set(queue.clone()).is_ok());
            let answers = Self { core, queue };
            let stored = |hashes: &[u64], tier| SampleEvent {
                hashes: hashes.to_vec(),
                tokens: TOKENS[..2 * hashes.len()].to_vec(),
                tier,
                ..SampleEvent::default()
            };
            let gone = SampleEvent { is_removal: true, ..stored(&[1, 2], 1) };
            let salted = SampleEvent { extra_keys: vec![SALTED.to_vec()], ..stored(&[9], 0) };
            let of_a = [stored(&[1, 2], 0), stored(&[1, 2, 3], 1), gone, salted];
            answers.publish("", "a", 0, &of_a);
            answers.publish("", "b", 3, &[]);
            answers.publish("", "b", 0, &[]);
            answers.publish("s", "c", 0, &[stored(&[1, 2], 0)]);
            answers.core.note_position(4, 1000);
            answers
        }

        fn publish(&self, salt: &str, instance: &str, dp_rank: u32, events: &[SampleEvent]) {
            let stream = StreamKey {
                tenant_id: "t".into(),
                model_name: "m".into(),
                block_size: 2,
                additional_salt: salt.into(),
                instance_id: instance.into(),
            };
            let mut turn = WriteTurn::new(&self.core.state, &self.core.hasher);
            let id = turn.state().open_publisher(stream, dp_rank);
            turn.state().register(id, "", true, false, Sharing::default());
            let encoded = encode(events);
            turn.apply(id, &read_events(&encoded).expect("events"), -1).expect("a publisher");
        }

        fn octets(&self, url: &str, body: &[u8], by_hash: bool) -> Option<(usize, u64, String)> {
            let url = format!("tenant_id=t&model=m&block_size=2{url}");
            let kind =
                Kind { form: Form::Octets, by_hash, url_query: url.as_bytes(), tenants: None };
            let answered = answer(body, kind, &self.core)?;
            let text = String::from_utf8(answered.text).expect("JSON");
            Some((answered.tokens, answered.hit_tokens, text))
        }

        fn json(&self, more: &str, url_query: &[u8]) -> Option<(usize, u64, String)> {
            let body = format!(
                r#"{{"tenant_id":"t","model":"m","block_size":2,"token_ids":{TOKENS:?}{more}}}"#
            );
            let kind = Kind { form: Form::Json, by_hash: false, url_query, tenants: None };
            let answered = answer(body.as_bytes(), kind, &self.core)?;
            let text = String::from_utf8(answered.text).expect("JSON");
            Some((answered.tokens, answered.hit_tokens, text))
        }
    }

    const A: &str = r#""a":{"longest_matched":6,"GPU":4,"CPU":0,"DISK":0,"DP":{"0":6}}"#;
    const A_FIRST: &str = r#""a":{"longest_matched":2,"GPU":2,"CPU":0,"DISK":0,"DP":{"0":2}}"#;
    const B: &str = r#""b":{"longest_matched":0,"GPU":0,"CPU":0,"DISK":0,"DP":{"0":0,"3":0}}"#;

    fn whole(instances: &[&str]) -> String {
        format!(r#"{{"t":{{{}}}}}"#, instances.join(","))
    }

    #[test]
    fn a_json_answer_has_every_instance_or_those_that_hold_something() {
        let answers = Answers::new();
        assert_eq!(answers.json("", b""), Some((7, 6, whole(&[A, B]))));
        assert_eq!(answers.json("", b""), Some((7, 6, whole(&[A, B]))), "as before");
        assert_eq!(answers.json("", b"hits_only=1"), Some((7, 6, whole(&[A]))));
        let of_b = r#","instance_id":"b""#;
        assert_eq!(answers.json(of_b, b""), Some((7, 0, whole(&[B]))));
        assert_eq!(answers.json(of_b, b"hits_only=1"), Some((7, 0, "{}".into())));
        let of_nobody = r#","instance_id":"x""#;
        assert_eq!(answers.json(of_nobody, b""), Some((7, 0, "{}".into())));
        assert_eq!(answers.json(r#","lora_name":"x""#, b""), None, "nobody has it");
        assert_eq!(answers.json("", b"hits_only=2"), None);
        let by_hash = Kind { form: Form::Json, by_hash: true, url_query: b"", tenants: None };
        let body = br#"{"tenant_id":"t","model":"m","block_size":2,"token_ids":[1]}"#;
        assert!(answer(body, by_hash, &answers.core).is_none());
    }

    #[test]
    fn what_is_said_of_those_that_hold_nothing_stands_between_those_that_hold_something() {
        let answers = Answers::new();
        let stored =
            SampleEvent { hashes: vec![1], tokens: TOKENS[..2].to_vec(), ..SampleEvent::default() };
        let mut holders = vec!["a"];
        for round in 0..3 {
            let of = |name| answers.json(&format!(r#","instance_id":"{name}""#), b"").unwrap().2;
            let part = |name| of(name)[6..].trim_end_matches("}}").to_owned() + "}}";
            let mut names = vec!["a", "b"];
            names.extend([&[][..], &["0", "c", "d"], &["0", "c", "d", "e", "f"]][round]);
            names.sort_unstable();
            let parts: Vec<String> = names.iter().map(part).collect();
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            for _ in 0..2 {
                assert_eq!(answers.json("", b""), Some((7, 6, whole(&parts))));
                let hits = names.iter().zip(&parts).filter(|(name, _)| holders.contains(name));
                let hits: Vec<&str> = hits.map(|(_, part)| *part).collect();
                assert_eq!(answers.json("", b"hits_only=1"), Some((7, 6, whole(&hits))));
            }
            let (misses, holder) = [(&["0", "c"][..], "d"), (&["e"], "f"), (&[], "")][round];
            misses.iter().for_each(|name| answers.publish("", name, 0, &[]));
            answers.publish("", holder, 0, slice::from_ref(&stored));
            holders.push(holder);
        }
    }

    #[test]
    fn it_may_be_about_some_tenants_only() {
        let answers = Answers::new();
        let body = br#"{"tenant_id":"t","model":"m","block_size":2,"token_ids":[1]}"#;
        let unnamed = br#"{"model":"m","block_size":2,"token_ids":[1]}"#; // `default`, of nobody
        let ask = |body: &[u8], names: &[&str]| {
            let tenants: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            let tenants = Some(&tenants[..]);
            let kind = Kind { form: Form::Json, by_hash: false, url_query: b"", tenants };
            answer(body, kind, &answers.core).is_some()
        };
        assert!(ask(body, &["t"]));
        assert!(ask(body, &["s", "t"]));
        assert!(!ask(unnamed, &["default"]));
        for names in [&["s"][..], &["T", "tt", ""], &["default"], &[]] {
            assert!(!ask(body, names), "{names:?}");
        }
        assert!(!ask(unnamed, &["t"]));
    }

    #[test]
    fn a_salt_is_a_namespace_that_is_known_or_a_key_of_the_first_block() {
        let answers = Answers::new();
        let of_c = r#""c":{"longest_matched":4,"GPU":4,"CPU":0,"DISK":0,"DP":{"0":4}}"#;
        assert_eq!(answers.json(r#","cache_salt":"s""#, b""), Some((7, 4, whole(&[of_c]))));
        assert_eq!(answers.json(r#","cache_salt":"k""#, b""), Some((7, 2, whole(&[A_FIRST, B]))));
        let a = r#""a":{"longest_matched":0,"GPU":0,"CPU":0,"DISK":0,"DP":{"0":0}}"#;
        assert_eq!(answers.json(r#","cache_salt":"x""#, b""), Some((7, 0, whole(&[a, B]))));
        // Hashes have it already.
        let hashes = walk::prefix_hashes(&answers.core.hasher, &u32s(&TOKENS), &[SALTED], 2, 9);
        let expected = Some((6, 2, whole(&[A_FIRST, B])));
        assert_eq!(answers.octets("&cache_salt=k", &hashes, true), expected);
    }

    #[test]
    fn octets_are_tokens_or_hashes() {
        let answers = Answers::new();
        let (hasher, tokens) = (&answers.core.hasher, u32s(&TOKENS));
        assert_eq!(answers.octets("", &tokens, false), Some((7, 6, whole(&[A, B]))));
        let hashes = walk::prefix_hashes(hasher, &tokens, &[], 2, 9);
        assert_eq!(hashes.len(), 24);
        let expected = Some((6, 6, whole(&[A])));
        assert_eq!(answers.octets("&hits_only=1", &hashes, true), expected);
        assert_eq!(hashes[..16], walk::prefix_hashes(hasher, &tokens, &[], 2, 2));
        let local = |block: &[u32]| xxh3_64_with_seed(&u32s(block), 9);
        let locals: Vec<u64> = TOKENS.chunks_exact(2).map(local).collect();
        assert_eq!(walk::chain_hashes(hasher, u64s(&locals).as_chunks().0), hashes);
    }

    #[test]
    fn what_json_would_escape_is_left_to_the_caller() {
        let answers = Answers::new();
        let kind = |form, url_query| Kind { form, by_hash: false, url_query, tenants: None };
        let url = b"tenant_id=\"&model=m&block_size=2";
        assert!(answer(b"", kind(Form::Octets, url), &answers.core).is_none());
        let body = r#"{"tenant_id":"t","model":"m","block_size":2,"token_ids":[]}"#;
        assert!(answer(body.as_bytes(), kind(Form::Json, b""), &answers.core).is_some());
        let body = body.replace("\"t\"", "\"\u{7f}\"");
        assert!(answer(body.as_bytes(), kind(Form::Json, b""), &answers.core).is_none());
        let tokens = u32s(&TOKENS);
        assert!(answers.octets("", &tokens, false).is_some());
        answers.publish("", "b\"", 0, &[]);
        assert!(answers.octets("", &tokens, false).is_none());
        assert!(answers.octets("&hits_only=1", &tokens, false).is_some(), "it is not named");
    }

    fn depths(to: &mut Vec<u8>, depths: [u64; 3]) {
        for (name, depth) in ["gpu", "cpu", "disk"].into_iter().zip(depths) {
            write::str(to, name);
            write::uint(to, depth);
        }
    }

    fn instance(to: &mut Vec<u8>, name: &str, walk: [u64; 3], ranks: &[&str]) {
        write::str(to, name);
        write::map(to, 6);
        write::str(to, "longest_matched");
        write::uint(to, walk[2]);
        write::str(to, "dp");
        write::map(to, ranks.len());
        for rank in ranks {
            write::str(to, rank);
            write::uint(to, walk[0]);
        }
        write::str(to, "rank_matches");
        write::map(to, ranks.len());
        for rank in ranks {
            write::str(to, rank);
            write::map(to, 3);
            depths(to, walk);
        }
        depths(to, walk);
    }

    #[test]
    fn a_msgpack_answer_has_the_ends_of_the_walk() {
        let answers = Answers::new();
        let mut body = Vec::new();
        write::map(&mut body, 4);
        for (name, value) in [("tenant_id", "t"), ("model", "m")] {
            write::str(&mut body, name);
            write::str(&mut body, value);
        }
        write::str(&mut body, "block_size");
        write::uint(&mut body, 2);
        write::str(&mut body, "token_ids");
        write::bin(&mut body, &u32s(&TOKENS));
        for (url_query, listed) in [(&b""[..], 2), (b"hits_only=1", 1), (b"", 2)] {
            let mut expected = Vec::new();
            write::map(&mut expected, 1);
            write::str(&mut expected, "instances");
            write::map(&mut expected, listed);
            instance(&mut expected, "a", [4, 6, 6], &["0"]);
            if listed == 2 {
                instance(&mut expected, "b", [0; 3], &["0", "3"]);
            }
            let kind = Kind { form: Form::Msgpack, by_hash: false, url_query, tenants: None };
            let answered = answer(&body, kind, &answers.core).expect("a plain body");
            assert_eq!((answered.tokens, answered.hit_tokens), (7, 6));
            assert_eq!(answered.text, expected);
        }
    }

    /// Of an instance of `an_answer_is_kept_as_of_a_position`.
    fn kept(to: &mut Vec<u8>, name: &str, depths: [u64; 4], ranks: &[(u64, [u64; 4])]) {
        write::array(to, 6);
        write::str(to, name);
        depths.iter().for_each(|&depth| write::uint(to, depth));
        write::array(to, ranks.len());
        for (rank, depths) in ranks {
            write::array(to, 5);
            write::uint(to, *rank);
            depths.iter().for_each(|&depth| write::uint(to, depth));
        }
    }

    #[test]
    fn an_answer_is_kept_as_of_a_position() {
        let answers = Answers::new();
        // Far more blocks than are held: those that were not needed are left out.
        let tokens: Vec<u32> = (1..80).collect();
        let hashes = walk::prefix_hashes(&answers.core.hasher, &u32s(&tokens), &[], 2, 4);
        for (hits_only, listed, instance_id) in
            [(false, 2, None), (true, 1, Some("a")), (true, 1, None), (false, 2, None)]
        {
            let mut expected = Vec::new();
            let to = &mut expected;
            write::array(to, 10);
            write::array(to, 1);
            write::array(to, 2);
            write::uint(to, 4);
            write::int(to, 1000);
            write::array(to, 5);
            ["t", "m", ""].iter().for_each(|name| write::str(to, name));
            write::uint(to, 2);
            write::str(to, "");
            match instance_id {
                Some(name) => write::str(to, name),
                None => write::nil(to),
            }
            write::bool(to, hits_only);
            write::uint(to, tokens.len() as u64);
            write::bin(to, &hashes);
            write::array(to, listed);
            kept(to, "a", [6, 4, 0, 0], &[(0, [6, 4, 6, 6])]);
            if listed == 2 {
                kept(to, "b", [0; 4], &[(0, [0; 4]), (3, [0; 4])]);
            }
            let url = format!(
                "tenant_id=t&model=m&block_size=2&hits_only={}{}",
                u8::from(hits_only),
                instance_id.map_or(String::new(), |name| format!("&instance_id={name}")),
            );
            let kind = Kind {
                form: Form::Octets,
                by_hash: false,
                url_query: url.as_bytes(),
                tenants: None,
            };
            let body = u32s(&tokens);
            let answered = answer(&body, kind, &answers.core).expect("a plain query");
            assert_eq!(answered.audited, Some(expected));
        }
        assert_eq!(answers.queue.counts().unsettled, 0);
        answers.core.begin_write();
        let kind = Kind {
            form: Form::Octets,
            by_hash: false,
            url_query: b"tenant_id=t&model=m&block_size=2",
            tenants: None,
        };
        assert_eq!(answer(b"", kind, &answers.core).expect("a plain query").audited, None);
        assert_eq!(answers.queue.counts().unsettled, 1);
    }

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
