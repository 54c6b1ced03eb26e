//! Canonical block events as `schemas/events.py` defines them, borrowed from their msgpack form.
//!
//! The whole array is read and checked before any event is applied.

use msgpack::{Reader, Result};

use crate::names::{MEDIA, OWNED, SHARED, owned_tier};

/// Cache groups of these kinds have blocks that form no prefix.
const SPARSE_SPEC_KINDS: [&str; 6] = [
    "sliding_window",
    "sliding_window_mla",
    "chunked_local_attention",
    "mamba",
    "encoder_only_attention",
    "cross_attention",
];

/// Of these the engine needs no state to reuse a prefix.
const UNNEEDED_SPEC_KINDS: [&str; 2] = ["encoder_only_attention", "cross_attention"];

pub enum Event<'a> {
    Stored(Stored<'a>),
    Removed(Removed<'a>),
    /// Of all that the engine itself holds (None), or of what is on some tiers.
    Cleared {
        sequence: i128,
        tiers: Option<Vec<u32>>,
    },
}

#[derive(Clone)]
pub struct Stored<'a> {
    pub sequence: i128,
    pub hashes: &'a [[u8; 8]],
    pub tokens: &'a [u8],
    pub parent: Option<u64>,
    pub block_size: u32,
    pub tier: u32,
    pub lora_name: &'a str,
    pub group: u32,
    /// Whether blocks of the group form a prefix.
    pub forms_prefix: bool,
    /// Whether they do not, and the engine needs them at the end of one.
    pub is_needed: bool,
    /// How many of the group's blocks the engine needs at the end of a prefix; 0 where not known.
    pub last_blocks: u32,
    /// Whether each hash is the prefix hash of its block.
    pub by_hash: bool,
    /// What others call the blocks, where the hashes name objects: as many, or none.
    pub aliases: &'a [[u8; 8]],
    /// Whether the publisher only says again what it holds.
    pub reported: bool,
    /// Whether that, or that it has stored further copies.
    pub undecided: bool,
    /// In place of tokens, of each block the hash of its tokens.
    pub token_hashes: &'a [[u8; 8]],
    pub extra_keys: Vec<&'a [u8]>,
    /// Why the bridge cannot use it.
    pub left_out: &'a str,
}

pub struct Removed<'a> {
    pub sequence: i128,
    pub hashes: &'a [[u8; 8]],
    pub tier: u32,
    pub group: u32,
    /// How many copies are left, where the publisher says it; else one is removed.
    pub left: Option<u16>,
}

impl Stored<'_> {
    /// Whether it names blocks of which nothing but their engine hashes is said.
    pub fn is_placeholder(&self) -> bool {
        self.tokens.is_empty()
            && !self.by_hash
            && self.aliases.is_empty()
            && self.token_hashes.is_empty()
            && self.left_out.is_empty()
    }

    /// Whether it may name blocks that its batch has removed.
    pub fn may_name_removed(&self) -> bool {
        self.is_placeholder() || self.tier != 0 && self.parent.is_some()
    }

    /// The tokens of block `i`; the event must have as many as its blocks need.
    #[inline]
    pub fn block_tokens(&self, i: usize) -> &[u8] {
        let size = 4 * self.block_size as usize;
        &self.tokens[i * size..(i + 1) * size]
    }

    #[inline]
    pub fn extra_key(&self, i: usize) -> &[u8] {
        self.extra_keys.get(i).copied().unwrap_or_default()
    }
}

impl Event<'_> {
    /// How many blocks it names.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Stored(event) => event.hashes.len(),
            Self::Removed(event) => event.hashes.len(),
            Self::Cleared { .. } => 0,
        }
    }

    pub fn sequence(&self) -> i128 {
        match self {
            Self::Stored(event) => event.sequence,
            Self::Removed(event) => event.sequence,
            Self::Cleared { sequence, .. } => *sequence,
        }
    }
}

/// The events of one msgpack array, all of it.
pub fn read_events(bytes: &[u8]) -> Result<Vec<Event<'_>>> {
    let mut reader = Reader::new(bytes);
    let len = reader.array()?;
    // A smallest event is over 16 bytes, so a forged length cannot make this large.
    let mut events = Vec::with_capacity(len.min(bytes.len() / 16 + 1));
    for _ in 0..len {
        events.push(read_event(&mut reader)?);
    }
    reader.end()?;
    Ok(events)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Stored,
    Removed,
    Cleared,
}

/// The fields of any kind of event, with their defaults. Ranges are checked when all have been
/// read.
struct Fields<'a> {
    sequence: Option<i128>,
    hashes: Option<&'a [u8]>,
    tokens: &'a [u8],
    parent: Option<i128>,
    block_size: i128,
    medium: Option<u32>,
    whole: bool,
    left: i128,
    left_out: &'a str,
    shared: bool,
    owned: bool,
    lora_name: &'a str,
    group: i128,
    forms_prefix: bool,
    is_needed: bool,
    last_blocks: i128,
    by_hash: bool,
    aliases: &'a [u8],
    reported: bool,
    undecided: bool,
    token_hashes: &'a [u8],
    extra_keys: Vec<&'a [u8]>,
}

fn read_event<'a>(reader: &mut Reader<'a>) -> Result<Event<'a>> {
    let len = reader.map()?;
    let kind = find_kind(reader, len)?;
    let mut fields = Fields {
        sequence: None,
        hashes: None,
        tokens: &[],
        parent: None,
        block_size: 0,
        medium: None,
        whole: false,
        left: 0,
        left_out: "",
        shared: false,
        owned: false,
        lora_name: "",
        group: 0,
        forms_prefix: true,
        is_needed: false,
        last_blocks: 0,
        by_hash: false,
        aliases: &[],
        reported: false,
        undecided: false,
        token_hashes: &[],
        extra_keys: Vec::new(),
    };
    for _ in 0..len {
        let key = reader.str_bytes()?;
        match (key, kind) {
            (b"type", _) => {
                if read_kind(reader)? != kind {
                    return reader.fail("one type of event");
                }
            }
            (b"sequence", _) => fields.sequence = Some(reader.int()?),
            (b"medium", Kind::Cleared) if reader.nil()? => fields.medium = None,
            (b"medium", _) => fields.medium = Some(read_medium(reader)?),
            (b"owned", _) => fields.owned = reader.bool()?,
            (_, Kind::Cleared) => reader.skip()?,
            (_, Kind::Removed) => read_removed_field(reader, &mut fields, key)?,
            (_, Kind::Stored) => read_stored_field(reader, &mut fields, key)?,
        }
    }
    finish(reader, kind, fields)
}

/// The type of the event whose pairs come next; leaves the reader where it is. It mostly comes
/// first.
fn find_kind(reader: &mut Reader<'_>, len: usize) -> Result<Kind> {
    let start = reader.at();
    for _ in 0..len {
        if reader.str_bytes()? == b"type" {
            let kind = read_kind(reader)?;
            reader.seek(start);
            return Ok(kind);
        }
        reader.skip()?;
    }
    reader.fail("a type of event")
}

fn read_kind(reader: &mut Reader<'_>) -> Result<Kind> {
    match reader.str_bytes()? {
        b"stored" => Ok(Kind::Stored),
        b"removed" => Ok(Kind::Removed),
        b"cleared" => Ok(Kind::Cleared),
        _ => reader.fail("the type `stored`, `removed` or `cleared`"),
    }
}

fn read_medium(reader: &mut Reader<'_>) -> Result<u32> {
    let name = reader.str_bytes()?;
    match MEDIA.iter().position(|medium| medium.as_bytes() == name) {
        Some(tier) => Ok(tier as u32),
        None => reader.fail("the name of a medium"),
    }
}

fn read_removed_field<'a>(
    reader: &mut Reader<'a>,
    fields: &mut Fields<'a>,
    key: &[u8],
) -> Result<()> {
    match key {
        b"hashes" => fields.hashes = Some(reader.bin()?),
        b"shared" => fields.shared = reader.bool()?,
        b"group" => fields.group = reader.int()?,
        b"whole" => fields.whole = reader.bool()?,
        b"left" => fields.left = reader.int()?,
        _ => reader.skip()?,
    }
    Ok(())
}

fn read_stored_field<'a>(
    reader: &mut Reader<'a>,
    fields: &mut Fields<'a>,
    key: &[u8],
) -> Result<()> {
    match key {
        b"tokens" => fields.tokens = reader.bin()?,
        b"parent" => fields.parent = if reader.nil()? { None } else { Some(reader.int()?) },
        b"block_size" => fields.block_size = reader.int()?,
        b"lora_name" => fields.lora_name = reader.str()?,
        b"spec_kind" => {
            let kind = reader.str()?;
            fields.forms_prefix = !SPARSE_SPEC_KINDS.contains(&kind);
            fields.is_needed = !fields.forms_prefix && !UNNEEDED_SPEC_KINDS.contains(&kind);
        }
        b"last_blocks" => fields.last_blocks = reader.int()?,
        b"aliases" => fields.aliases = reader.bin()?,
        b"by_hash" => fields.by_hash = reader.bool()?,
        b"reported" => fields.reported = reader.bool()?,
        b"undecided" => fields.undecided = reader.bool()?,
        b"left_out" => fields.left_out = reader.str()?,
        b"token_hashes" => fields.token_hashes = reader.bin()?,
        b"extra_keys" => {
            let len = reader.array()?;
            fields.extra_keys.clear();
            for _ in 0..len {
                fields.extra_keys.push(reader.bin()?);
            }
        }
        _ => read_removed_field(reader, fields, key)?,
    }
    Ok(())
}

fn finish<'a>(reader: &Reader<'a>, kind: Kind, fields: Fields<'a>) -> Result<Event<'a>> {
    let Some(sequence) = fields.sequence else {
        return reader.fail("an event with a sequence");
    };
    if kind == Kind::Cleared {
        return Ok(Event::Cleared { sequence, tiers: cleared_tiers(fields.medium, fields.owned) });
    }
    let Some((hashes, [])) = fields.hashes.map(<[u8]>::as_chunks) else {
        return reader.fail("an event with hashes of 8 bytes");
    };
    let Ok(group) = u32::try_from(fields.group) else {
        return reader.fail("a 32-bit group");
    };
    let medium = fields.medium.unwrap_or_default();
    let tier = match (fields.shared, fields.owned) {
        (true, _) => SHARED + medium,
        (false, true) => owned_tier(medium),
        (false, false) => medium,
    };
    if kind == Kind::Removed {
        let Ok(left) = u16::try_from(fields.left) else {
            return reader.fail("a number of copies that are left");
        };
        let left = if fields.whole { Some(0) } else { Some(left).filter(|&left| left > 0) };
        return Ok(Event::Removed(Removed { sequence, hashes, tier, group, left }));
    }
    if !fields.tokens.len().is_multiple_of(4) {
        return reader.fail("tokens of 4 bytes");
    }
    let (aliases, []) = fields.aliases.as_chunks() else {
        return reader.fail("aliases of 8 bytes");
    };
    if !aliases.is_empty() && aliases.len() != hashes.len() {
        return reader.fail("as many aliases as hashes");
    }
    let (token_hashes, []) = fields.token_hashes.as_chunks() else {
        return reader.fail("token_hashes of 8 bytes");
    };
    let Ok(parent) = fields.parent.map(u64::try_from).transpose() else {
        return reader.fail("a 64-bit parent");
    };
    let Ok(block_size) = u32::try_from(fields.block_size) else {
        return reader.fail("a 32-bit block_size");
    };
    let Ok(last_blocks) = u32::try_from(fields.last_blocks) else {
        return reader.fail("a 32-bit last_blocks");
    };
    Ok(Event::Stored(Stored {
        sequence,
        hashes,
        tokens: fields.tokens,
        parent,
        block_size,
        tier,
        lora_name: fields.lora_name,
        group,
        forms_prefix: fields.forms_prefix,
        is_needed: fields.is_needed,
        last_blocks,
        by_hash: fields.by_hash,
        aliases,
        reported: fields.reported,
        undecided: fields.undecided,
        token_hashes,
        extra_keys: fields.extra_keys,
        left_out: fields.left_out,
    }))
}

/// Which tiers a clear ends; None for all but those of another owner.
fn cleared_tiers(medium: Option<u32>, owned: bool) -> Option<Vec<u32>> {
    if owned {
        let media = medium.map_or(0..SHARED, |medium| medium..medium + 1);
        return Some(media.map(owned_tier).filter(|&tier| tier >= OWNED).collect());
    }
    medium.map(|medium| vec![medium, medium + SHARED])
}
