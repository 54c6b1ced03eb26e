//! Events for tests, and their bytes as `schemas/events.py` has them.

use msgpack::write;

use crate::names::{MEDIA, OWNED, SHARED, answered_tier, is_shared};

/// Blocks that are stored or removed.
#[derive(Clone, Default)]
pub struct SampleEvent {
    pub is_removal: bool,
    pub hashes: Vec<u64>,
    pub tokens: Vec<u32>,
    pub tier: u32,
    pub lora_name: String,
    pub by_hash: bool,
    pub extra_keys: Vec<Vec<u8>>,
}

impl SampleEvent {
    fn fields(&self) -> Vec<(&'static str, Vec<u8>)> {
        let written = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut to = Vec::new();
            write(&mut to);
            to
        };
        let text = |text: &str| written(&|to| write::str(to, text));
        let bytes = |bytes: Vec<u8>| written(&|to| write::bin(to, &bytes));
        let flag = |flag: bool| written(&|to| write::bool(to, flag));
        let mut fields = vec![
            ("type", text(if self.is_removal { "removed" } else { "stored" })),
            ("sequence", written(&|to| write::int(to, 0))),
            ("hashes", bytes(u64s(&self.hashes))),
            ("medium", text(MEDIA[(answered_tier(self.tier) % SHARED) as usize])),
            ("shared", flag(is_shared(self.tier))),
            ("owned", flag(self.tier >= OWNED)),
        ];
        if !self.is_removal {
            let extra_keys = |to: &mut Vec<u8>| {
                write::array(to, self.extra_keys.len());
                self.extra_keys.iter().for_each(|key| write::bin(to, key));
            };
            fields.push(("tokens", bytes(u32s(&self.tokens))));
            fields.push(("block_size", written(&|to| write::int(to, 2))));
            fields.push(("lora_name", text(&self.lora_name)));
            fields.push(("by_hash", flag(self.by_hash)));
            fields.push(("extra_keys", written(&extra_keys)));
        }
        fields
    }
}

/// The msgpack array of the events, whose blocks have two tokens.
pub fn encode(events: &[SampleEvent]) -> Vec<u8> {
    let mut to = Vec::new();
    write::array(&mut to, events.len());
    for event in events {
        let fields = event.fields();
        write::map(&mut to, fields.len());
        for (name, value) in fields {
            write::str(&mut to, name);
            to.extend_from_slice(&value);
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
