//! Cuts the events of a large batch into parts. `bridge/wire/batch_parts.py` is the specification.

use std::borrow::Cow;

use hashbrown::HashMap;
use msgpack::{Reader, Result, write};

/// Some events of a batch, one after the other.
pub struct Part {
    pub events: usize,
    pub run: Vec<u8>,
}

/// The parts of a batch whose events these are, of at most `bytes_max` bytes as far as that can be.
pub fn split(run: &[u8], bytes_max: usize) -> Result<Vec<Part>> {
    let mut events = Vec::new();
    let mut reader = Reader::new(run);
    while !reader.rest().is_empty() {
        events.push(Event::read(&mut reader)?);
    }
    let mut pieces = Vec::new();
    for (source, event) in events.iter().enumerate() {
        if event.encoded.len() <= bytes_max || !event.cut(source, bytes_max, &mut pieces) {
            pieces.push(event.whole(source));
        }
    }
    let mut parts = Parts { made: Vec::new(), bytes_max, size: 0 };
    for span in spans(&pieces) {
        let size: usize = span.iter().map(|piece| piece.encoded.len()).sum();
        let cost = if span.len() > 1 { MOVE_COST * size } else { size };
        let of_keys = || span.iter().all(|piece| events[piece.source].is_of_keys());
        if span.len() > 1 && cost > bytes_max && of_keys() {
            for group in by_keys(&events, span, cost.div_ceil(bytes_max)) {
                let encoded: Vec<&[u8]> = group.iter().map(Vec::as_slice).collect();
                let size: usize = group.iter().map(Vec::len).sum();
                parts.add(&encoded, MOVE_COST * size);
            }
        } else {
            let encoded: Vec<&[u8]> = span.iter().map(|piece| &*piece.encoded).collect();
            parts.add(&encoded, cost);
        }
    }
    Ok(parts.made)
}

struct Parts {
    made: Vec<Part>,
    bytes_max: usize,
    /// What the last of them costs.
    size: usize,
}

impl Parts {
    /// Adds what has to be in one part to the last one, or begins another; it costs as much as so
    /// many bytes of other events.
    fn add(&mut self, together: &[&[u8]], cost: usize) {
        if self.made.is_empty() || self.size + cost > self.bytes_max {
            self.made.push(Part { events: 0, run: Vec::new() });
            self.size = 0;
        }
        self.size += cost;
        if let Some(part) = self.made.last_mut() {
            part.events += together.len();
            together.iter().for_each(|encoded| part.run.extend_from_slice(encoded));
        }
    }
}

/// How many times as long a fold takes for a byte of blocks that move as for one of others.
const MOVE_COST: usize = 4;
/// Near hashes, as of an engine that counts, come to all groups.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The same events, for some of the blocks at a time.
fn by_keys(events: &[Event], span: &[Piece], groups: usize) -> Vec<Vec<Vec<u8>>> {
    let blocks: usize = span.iter().map(|piece| piece.hashes.len()).sum();
    let groups = groups.min(blocks);
    let mut grouped: Vec<Vec<(usize, usize)>> = vec![Vec::new(); groups];
    for piece in span {
        for (place, hash) in piece.hashes.iter().enumerate() {
            let spread = u64::from_le_bytes(*hash).wrapping_mul(SPREAD) >> 32;
            let group = ((spread * groups as u64) >> 32) as usize;
            grouped[group].push((piece.source, piece.first + place));
        }
    }
    let encode = |group: &Vec<(usize, usize)>| {
        let of_events = group.chunk_by(|a, b| a.0 == b.0);
        of_events.map(|blocks| events[blocks[0].0].encode_blocks(blocks)).collect()
    };
    grouped.iter().filter(|group| !group.is_empty()).map(encode).collect()
}

/// Pieces that have to be in one part, each with those next to it.
fn spans<'a, 'b>(pieces: &'b [Piece<'a>]) -> impl Iterator<Item = &'b [Piece<'a>]> {
    let joined = joined(pieces);
    let mut left = pieces;
    std::iter::from_fn(move || {
        let at = pieces.len() - left.len();
        let more = (at + 1..pieces.len()).take_while(|&next| joined.get(next) == Some(&true));
        let (span, rest) = left.split_at_checked(1 + more.count())?;
        left = rest;
        Some(span)
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Stored,
    Removed,
    Other,
}

/// An event as a part has it.
struct Piece<'a> {
    encoded: Cow<'a, [u8]>,
    /// The event of the batch, and which of its blocks is the first.
    source: usize,
    first: usize,
    kind: Kind,
    hashes: &'a [[u8; 8]],
    is_placeholder: bool,
    /// What it hangs on, where that may have been removed before.
    parent: Option<[u8; 8]>,
    group: i128,
}

/// An event as the batch has it: what is cut, and `others`, encoded pairs that each piece has.
struct Event<'a> {
    encoded: &'a [u8],
    kind: Kind,
    hashes: &'a [[u8; 8]],
    tokens: &'a [u8],
    token_hashes: &'a [[u8; 8]],
    parent: Option<&'a [u8]>,
    /// Whether it is on another tier than the GPU of its publisher.
    is_elsewhere: bool,
    block_size: i128,
    group: i128,
    by_hash: bool,
    has_aliases: bool,
    is_left_out: bool,
    extra_keys: Option<Vec<&'a [u8]>>,
    /// The type and the sequence; then all that is not named above but the group.
    head: Vec<&'a [u8]>,
    others: Vec<&'a [u8]>,
}

impl<'a> Event<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self> {
        let bytes = reader.rest();
        let start = reader.at();
        let mut event = Self {
            encoded: &[],
            kind: Kind::Other,
            hashes: &[],
            tokens: &[],
            token_hashes: &[],
            parent: None,
            is_elsewhere: false,
            block_size: 0,
            group: 0,
            by_hash: false,
            has_aliases: false,
            is_left_out: false,
            extra_keys: None,
            head: Vec::new(),
            others: Vec::new(),
        };
        for _ in 0..reader.map()? {
            let from = reader.at() - start;
            let name = reader.str_bytes()?;
            let value_from = reader.at() - start;
            match name {
                b"hashes" => event.hashes = reader.bin()?.as_chunks().0,
                b"tokens" => event.tokens = reader.bin()?,
                b"token_hashes" => event.token_hashes = reader.bin()?.as_chunks().0,
                b"extra_keys" => event.extra_keys = Some(read_keys(reader)?),
                b"group" => event.group = reader.int()?,
                b"by_hash" => event.by_hash = reader.bool()?,
                b"left_out" => event.is_left_out = !reader.str_bytes()?.is_empty(),
                b"aliases" => event.has_aliases = !reader.bin()?.is_empty(),
                b"medium" => event.is_elsewhere |= reader.str_bytes()? != b"GPU",
                b"shared" => event.is_elsewhere |= reader.bool()?,
                b"block_size" => event.block_size = reader.int()?,
                b"type" => event.kind = kind_of(reader.str_bytes()?),
                _ => reader.skip()?,
            }
            let pair = &bytes[from..reader.at() - start];
            match name {
                b"hashes" | b"tokens" | b"token_hashes" | b"extra_keys" => {}
                b"parent" => event.parent = Some(&bytes[value_from..reader.at() - start]),
                b"type" | b"sequence" => event.head.push(pair),
                _ => event.others.push(pair),
            }
        }
        event.encoded = &bytes[..reader.at() - start];
        Ok(event)
    }

    fn whole(&self, source: usize) -> Piece<'a> {
        self.piece(Cow::Borrowed(self.encoded), source, 0, self.hashes)
    }

    fn piece(
        &self,
        encoded: Cow<'a, [u8]>,
        source: usize,
        first: usize,
        hashes: &'a [[u8; 8]],
    ) -> Piece<'a> {
        let kind = self.kind;
        let is_unnamed = self.tokens.is_empty()
            && self.token_hashes.is_empty()
            && !self.by_hash
            && !self.has_aliases
            && !self.is_left_out;
        let is_placeholder = kind == Kind::Stored && is_unnamed;
        let parent = (kind == Kind::Stored && self.is_elsewhere && !is_placeholder)
            .then(|| self.parent_of(first))
            .flatten();
        Piece { encoded, source, first, kind, hashes, is_placeholder, parent, group: self.group }
    }

    /// What the block of this number hangs on.
    fn parent_of(&self, first: usize) -> Option<[u8; 8]> {
        if first > 0 {
            return self.hashes.get(first - 1).copied();
        }
        let number = Reader::new(self.parent?).int().ok()?;
        u64::try_from(number).ok().map(u64::to_le_bytes)
    }

    /// Whether it says of each of its blocks what it says, whatever becomes of the others.
    fn is_of_keys(&self) -> bool {
        let is_kind = match self.kind {
            Kind::Stored => self.tokens.is_empty() && self.token_hashes.is_empty(),
            Kind::Removed => true,
            Kind::Other => false,
        };
        is_kind && (self.hashes.is_empty() || self.can_be_cut())
    }

    /// Whether it has as much of everything as blocks: what a kernel refuses is refused whole.
    fn can_be_cut(&self) -> bool {
        let blocks = self.hashes.len();
        let keys = self.extra_keys.as_ref().map_or(0, Vec::len);
        match self.kind {
            Kind::Stored => {
                let tokens = [0, 4 * self.block_size * blocks as i128];
                let fits = tokens.contains(&(self.tokens.len() as i128))
                    && [0, blocks].contains(&self.token_hashes.len());
                blocks > 0 && !self.has_aliases && fits && (keys == 0 || keys == blocks)
            }
            Kind::Removed => blocks > 0,
            Kind::Other => false,
        }
    }

    /// Cuts the event between its blocks; false where that cannot be.
    fn cut(&self, source: usize, bytes_max: usize, pieces: &mut Vec<Piece<'a>>) -> bool {
        let blocks = self.hashes.len();
        if !self.can_be_cut() {
            return false;
        }
        let step = (blocks * bytes_max / self.encoded.len()).max(1);
        for first in (0..blocks).step_by(step) {
            let end = blocks.min(first + step);
            let encoded = Cow::Owned(self.encode(first, end));
            pieces.push(self.piece(encoded, source, first, &self.hashes[first..end]));
        }
        true
    }

    /// The event of blocks that follow each other.
    fn encode(&self, first: usize, end: usize) -> Vec<u8> {
        let width = self.tokens.len() / self.hashes.len();
        let mut parent = Vec::new();
        if first > 0 && self.kind == Kind::Stored {
            write::uint(&mut parent, u64::from_le_bytes(self.hashes[first - 1]));
        } else {
            parent.extend_from_slice(self.parent.unwrap_or_default());
        }
        let keys = self.extra_keys.as_deref().unwrap_or_default();
        let keys = if keys.is_empty() { keys } else { &keys[first..end] };
        let tokens = &self.tokens[width * first..width * end];
        let token_hashes = self.token_hashes.get(first..end).unwrap_or_default();
        self.encode_as(&self.hashes[first..end], tokens, token_hashes, &parent, keys)
    }

    /// The event of any of its blocks, by number: one without tokens.
    fn encode_blocks(&self, blocks: &[(usize, usize)]) -> Vec<u8> {
        let hashes: Vec<[u8; 8]> = blocks.iter().map(|&(_, at)| self.hashes[at]).collect();
        let keys = self.extra_keys.as_deref().unwrap_or_default();
        let keys: Vec<&[u8]> = blocks.iter().filter_map(|&(_, at)| keys.get(at).copied()).collect();
        self.encode_as(&hashes, &[], &[], &[], &keys)
    }

    /// The event with these blocks, in the order of fields that the packer writes.
    fn encode_as(
        &self,
        hashes: &[[u8; 8]],
        tokens: &[u8],
        token_hashes: &[[u8; 8]],
        parent: &[u8],
        keys: &[&[u8]],
    ) -> Vec<u8> {
        let numbers = [!tokens.is_empty(), !token_hashes.is_empty()];
        let optional = [numbers[0], numbers[1], !parent.is_empty(), !keys.is_empty()];
        let optional = optional.iter().filter(|&&is| is).count();
        let mut to = Vec::new();
        let fields = self.head.len() + 1 + self.others.len() + optional;
        if self.kind == Kind::Stored {
            write::wide_map(&mut to, fields);
        } else {
            write::map(&mut to, fields);
        }
        self.head.iter().for_each(|pair| to.extend_from_slice(pair));
        write::str(&mut to, "hashes");
        write::bin(&mut to, hashes.as_flattened());
        if !tokens.is_empty() {
            write::str(&mut to, "tokens");
            write::bin(&mut to, tokens);
        }
        if !parent.is_empty() {
            write::str(&mut to, "parent");
            to.extend_from_slice(parent);
        }
        self.others.iter().for_each(|pair| to.extend_from_slice(pair));
        if !token_hashes.is_empty() {
            write::str(&mut to, "token_hashes");
            write::bin(&mut to, token_hashes.as_flattened());
        }
        if !keys.is_empty() {
            write::str(&mut to, "extra_keys");
            write::array(&mut to, keys.len());
            keys.iter().for_each(|key| write::bin(&mut to, key));
        }
        to
    }
}

fn kind_of(name: &[u8]) -> Kind {
    match name {
        b"stored" => Kind::Stored,
        b"removed" => Kind::Removed,
        _ => Kind::Other,
    }
}

fn read_keys<'a>(reader: &mut Reader<'a>) -> Result<Vec<&'a [u8]>> {
    let len = reader.array()?;
    (0..len).map(|_| reader.bin()).collect()
}

/// Whether each piece has to be in one part with the one before it; empty where none has.
fn joined(pieces: &[Piece]) -> Vec<bool> {
    if !pieces.iter().any(|piece| piece.is_placeholder || piece.parent.is_some()) {
        return Vec::new();
    }
    let removals = pieces.iter().filter(|piece| piece.kind == Kind::Removed);
    let mut removed_at = HashMap::with_capacity(removals.map(|piece| piece.hashes.len()).sum());
    let mut spans = vec![0i64; pieces.len() + 1];
    for (at, piece) in pieces.iter().enumerate() {
        if piece.kind == Kind::Removed {
            for hash in piece.hashes {
                removed_at.entry((piece.group, *hash)).or_insert(at);
            }
        } else {
            let named = if piece.is_placeholder { piece.hashes } else { piece.parent.as_slice() };
            for hash in named {
                if let Some(&since) = removed_at.get(&(piece.group, *hash)) {
                    spans[since + 1] += 1;
                    spans[at + 1] -= 1;
                }
            }
        }
    }
    let mut open = 0;
    let sums = spans.iter().map(|change| {
        open += change;
        open > 0
    });
    sums.collect()
}
