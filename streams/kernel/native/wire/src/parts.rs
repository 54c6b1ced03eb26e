//! Cuts the events of a large batch into parts. `bridge/wire/parts.py` is the specification.

use std::borrow::Cow;
use std::collections::HashMap;

use msgpack::{Reader, Result, write};

/// Some events of a batch, one after the other.
pub struct Part {
    pub events: usize,
    pub run: Vec<u8>,
}

/// The parts of a batch whose events these are, of at most `bytes_max` bytes as far as that can be.
pub fn split(run: &[u8], bytes_max: usize) -> Result<Vec<Part>> {
    let mut pieces = Vec::new();
    let mut reader = Reader::new(run);
    while !reader.rest().is_empty() {
        let event = Event::read(&mut reader)?;
        if event.encoded.len() <= bytes_max || !event.cut(bytes_max, &mut pieces) {
            pieces.push(event.whole());
        }
    }
    let joined = joined(&pieces);
    let mut parts: Vec<Part> = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let fits = parts.last().is_some_and(|part| {
            part.run.len() + piece.encoded.len() <= bytes_max || joined.get(at) == Some(&true)
        });
        if !fits {
            parts.push(Part { events: 0, run: Vec::new() });
        }
        if let Some(part) = parts.last_mut() {
            part.events += 1;
            part.run.extend_from_slice(&piece.encoded);
        }
    }
    Ok(parts)
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
    kind: Kind,
    hashes: &'a [[u8; 8]],
    has_tokens: bool,
    group: i128,
}

/// An event as the batch has it: what is cut, and `others`, encoded pairs that each piece has.
struct Event<'a> {
    encoded: &'a [u8],
    kind: Kind,
    hashes: &'a [[u8; 8]],
    tokens: &'a [u8],
    parent: Option<&'a [u8]>,
    block_size: i128,
    group: i128,
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
            parent: None,
            block_size: 0,
            group: 0,
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
                b"extra_keys" => event.extra_keys = Some(read_keys(reader)?),
                b"group" => event.group = reader.int()?,
                b"block_size" => event.block_size = reader.int()?,
                b"type" => event.kind = kind_of(reader.str_bytes()?),
                _ => reader.skip()?,
            }
            let pair = &bytes[from..reader.at() - start];
            match name {
                b"hashes" | b"tokens" | b"extra_keys" => {}
                b"parent" => event.parent = Some(&bytes[value_from..reader.at() - start]),
                b"type" | b"sequence" => event.head.push(pair),
                _ => event.others.push(pair),
            }
        }
        event.encoded = &bytes[..reader.at() - start];
        Ok(event)
    }

    fn whole(&self) -> Piece<'a> {
        self.piece(Cow::Borrowed(self.encoded), self.hashes)
    }

    fn piece(&self, encoded: Cow<'a, [u8]>, hashes: &'a [[u8; 8]]) -> Piece<'a> {
        let has_tokens = !self.tokens.is_empty();
        Piece { encoded, kind: self.kind, hashes, has_tokens, group: self.group }
    }

    /// Whether it has as much of everything as blocks: what a kernel refuses is refused whole.
    fn can_be_cut(&self) -> bool {
        let blocks = self.hashes.len();
        let keys = self.extra_keys.as_ref().map_or(0, Vec::len);
        match self.kind {
            Kind::Stored => {
                let tokens = [0, 4 * self.block_size * blocks as i128];
                let fits = tokens.contains(&(self.tokens.len() as i128));
                blocks > 0 && fits && (keys == 0 || keys == blocks)
            }
            Kind::Removed => blocks > 0,
            Kind::Other => false,
        }
    }

    /// Cuts the event between its blocks; false where that cannot be.
    fn cut(&self, bytes_max: usize, pieces: &mut Vec<Piece<'a>>) -> bool {
        let blocks = self.hashes.len();
        if !self.can_be_cut() {
            return false;
        }
        let step = (blocks * bytes_max / self.encoded.len()).max(1);
        for first in (0..blocks).step_by(step) {
            let end = blocks.min(first + step);
            let encoded = Cow::Owned(self.encode(first, end));
            pieces.push(self.piece(encoded, &self.hashes[first..end]));
        }
        true
    }

    /// The event of these blocks, in the order of fields that the packer writes.
    fn encode(&self, first: usize, end: usize) -> Vec<u8> {
        let width = self.tokens.len() / self.hashes.len();
        let tokens = &self.tokens[width * first..width * end];
        let is_stored = self.kind == Kind::Stored;
        let has_parent = is_stored && (first > 0 || self.parent.is_some());
        let keys =
            self.extra_keys.as_ref().map(|keys| &keys[first.min(keys.len())..end.min(keys.len())]);
        let keys = keys.filter(|keys| !keys.is_empty());
        let optional = [!tokens.is_empty(), has_parent, keys.is_some()];
        let optional = optional.iter().filter(|&&is| is).count();
        let mut to = Vec::new();
        write::map(&mut to, self.head.len() + 1 + self.others.len() + optional);
        self.head.iter().for_each(|pair| to.extend_from_slice(pair));
        write::str(&mut to, "hashes");
        write::bin(&mut to, self.hashes[first..end].as_flattened());
        if !tokens.is_empty() {
            write::str(&mut to, "tokens");
            write::bin(&mut to, tokens);
        }
        if has_parent {
            write::str(&mut to, "parent");
            match self.parent {
                Some(parent) if first == 0 => to.extend_from_slice(parent),
                _ => write::uint(&mut to, u64::from_le_bytes(self.hashes[first - 1])),
            }
        }
        self.others.iter().for_each(|pair| to.extend_from_slice(pair));
        if let Some(keys) = keys {
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
    let is_placeholder = |piece: &Piece| piece.kind == Kind::Stored && !piece.has_tokens;
    if !pieces.iter().any(is_placeholder) {
        return Vec::new();
    }
    let mut removed_at = HashMap::new();
    let mut spans = vec![0i64; pieces.len() + 1];
    for (at, piece) in pieces.iter().enumerate() {
        if piece.kind == Kind::Removed {
            removed_at.extend(piece.hashes.iter().map(|hash| ((piece.group, *hash), at)));
        } else if is_placeholder(piece) {
            for hash in piece.hashes {
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
