//! Events as publishers tell them, and their bytes.

use msgpack::write;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::names::{MEDIA, SHARED};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Kind {
    #[default]
    Stored,
    Removed,
    Cleared,
}

/// As `schemas/events.py` has them; of a kind that lacks a field it is not written.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub kind: Kind,
    pub sequence: i64,
    pub hashes: Vec<u64>,
    pub tokens: Vec<u32>,
    pub parent: Option<u64>,
    pub block_size: u32,
    pub tier: u32,
    pub lora: String,
    pub group: u32,
    pub spec_kind: &'static str,
    pub by_hash: bool,
    pub aliases: Vec<u64>,
    pub reported: bool,
    pub undecided: bool,
    pub token_hashes: Vec<u64>,
    pub extra_keys: Vec<Vec<u8>>,
    pub left_out: &'static str,
    pub whole: bool,
    pub left: u16,
    /// Of an event that clears: only what is on this medium.
    pub medium: Option<u32>,
}

impl Told {
    pub fn is_placeholder(&self) -> bool {
        let is_named = self.by_hash || !self.aliases.is_empty() || !self.token_hashes.is_empty();
        let is_used = self.kind == Kind::Stored && self.left_out.is_empty();
        is_used && self.tokens.is_empty() && !is_named
    }

    /// The hash of each block of two tokens alone.
    pub fn locals(&self, seed: u64) -> Vec<u64> {
        if !self.token_hashes.is_empty() {
            return self.token_hashes.clone();
        }
        let local = |(at, block): (usize, &[u32])| {
            let tokens = u32s(block);
            let extra = self.extra_keys.get(at).cloned().unwrap_or_default();
            xxh3_64_with_seed(&[tokens, extra].concat(), seed)
        };
        self.tokens.chunks(2).enumerate().map(local).collect()
    }

    fn fields(&self) -> Vec<(&'static str, Vec<u8>)> {
        let written = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut to = Vec::new();
            write(&mut to);
            to
        };
        let bin = |bytes: Vec<u8>| written(&|to| write::bin(to, &bytes));
        let kind = ["stored", "removed", "cleared"][self.kind as usize];
        let mut fields = vec![
            ("type", written(&|to| write::str(to, kind))),
            ("sequence", written(&|to| write::int(to, self.sequence.into()))),
        ];
        if self.kind != Kind::Cleared {
            let medium = MEDIA[(self.tier % SHARED) as usize];
            fields.push(("hashes", bin(u64s(&self.hashes))));
            fields.push(("medium", written(&|to| write::str(to, medium))));
            fields.push(("shared", written(&|to| write::bool(to, self.tier >= SHARED))));
            fields.push(("group", written(&|to| write::int(to, self.group.into()))));
        }
        if self.kind == Kind::Removed {
            fields.push(("whole", written(&|to| write::bool(to, self.whole))));
            fields.push(("left", written(&|to| write::int(to, self.left.into()))));
        }
        if self.kind == Kind::Cleared {
            let medium = |to: &mut Vec<u8>| match self.medium {
                Some(medium) => write::str(to, MEDIA[medium as usize]),
                None => write::nil(to),
            };
            fields.push(("medium", written(&medium)));
        }
        if self.kind == Kind::Stored {
            fields.push(("left_out", written(&|to| write::str(to, self.left_out))));
            let parent = |to: &mut Vec<u8>| match self.parent {
                Some(parent) => write::int(to, parent.into()),
                None => write::nil(to),
            };
            let extra_keys = |to: &mut Vec<u8>| {
                write::array(to, self.extra_keys.len());
                self.extra_keys.iter().for_each(|key| write::bin(to, key));
            };
            fields.push(("tokens", bin(u32s(&self.tokens))));
            fields.push(("parent", written(&parent)));
            fields.push(("block_size", written(&|to| write::int(to, self.block_size.into()))));
            fields.push(("lora_name", written(&|to| write::str(to, &self.lora))));
            fields.push(("spec_kind", written(&|to| write::str(to, self.spec_kind))));
            fields.push(("by_hash", written(&|to| write::bool(to, self.by_hash))));
            fields.push(("aliases", bin(u64s(&self.aliases))));
            fields.push(("reported", written(&|to| write::bool(to, self.reported))));
            fields.push(("undecided", written(&|to| write::bool(to, self.undecided))));
            fields.push(("token_hashes", bin(u64s(&self.token_hashes))));
            fields.push(("extra_keys", written(&extra_keys)));
        }
        fields
    }
}

/// The msgpack array of the events; the fields of each begin with that of this number.
pub fn encode(events: &[Told], first: usize) -> Vec<u8> {
    let mut to = Vec::new();
    write::array(&mut to, events.len());
    for event in events {
        let mut fields = event.fields();
        let len = fields.len();
        fields.rotate_left(first % len);
        write::map(&mut to, len + 1);
        for (name, value) in fields.iter().chain([&("unknown", vec![0xc0])]) {
            write::str(&mut to, name);
            to.extend_from_slice(value);
        }
    }
    to
}

pub fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn u64s(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
