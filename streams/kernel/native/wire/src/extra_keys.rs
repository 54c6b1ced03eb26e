//! What enters a block's hash beside its tokens: `extra_key` of `schemas/events.py`.

use msgpack::{Reader, write};

/// Stands before the token behind a block.
const NEXT_TOKEN: u8 = 0xc1;

/// Deeper ones are left to the specification.
const DEPTH_MAX: usize = 16;

/// The keys of one event, one for each row, as an array of `bin`.
#[derive(Default)]
pub struct ExtraKeys {
    keys: Vec<u8>,
    len: usize,
    any: bool,
    row: Vec<u8>,
}

impl ExtraKeys {
    pub fn clear(&mut self) {
        self.keys.clear();
        self.len = 0;
        self.any = false;
    }

    /// Whether some block has one.
    pub fn any(&self) -> bool {
        self.any
    }

    pub fn append_to(&self, run: &mut Vec<u8>) {
        write::array(run, self.len);
        run.extend_from_slice(&self.keys);
    }

    fn push_row(&mut self) {
        self.any |= !self.row.is_empty();
        self.len += 1;
        write::bin(&mut self.keys, &self.row);
    }

    /// Takes an event's rows. The adapter's name, where it stands first, is a level of the table
    /// and no key. None where they are bad, or hold what is left to the specification.
    pub fn read(&mut self, reader: &mut Reader, lora_name: &str) -> Option<()> {
        if reader.nil().ok()? {
            return Some(());
        }
        for _ in 0..reader.array().ok()? {
            self.row.clear();
            if !reader.nil().ok()? {
                read_row(reader, lora_name, &mut self.row)?;
            }
            self.push_row();
        }
        Some(())
    }

    /// With the token behind each block: of so many blocks of so many bytes of pairs' second tokens
    /// the last one. As they are where these, or the keys, are of another number of blocks.
    pub fn pair(&mut self, seconds: &[u8], width: usize, blocks: usize) {
        let has_none = !self.any;
        if seconds.len() != width * blocks || !(has_none || self.len == blocks) {
            return;
        }
        let plain = std::mem::take(&mut self.keys);
        let mut reader = Reader::new(&plain);
        (self.len, self.any) = (0, false);
        for block in seconds.chunks_exact(width) {
            self.row.clear();
            if !has_none {
                self.row.extend_from_slice(reader.bin().unwrap_or_default());
            }
            self.row.push(NEXT_TOKEN);
            self.row.extend_from_slice(&block[width - 4..]);
            self.push_row();
        }
    }

    /// The keys of blocks of which the first has this salt; nothing for no salt.
    pub fn salt(&mut self, salt: &str, blocks: usize) {
        if salt.is_empty() {
            return;
        }
        for block in 0..blocks {
            self.row.clear();
            if block == 0 {
                write::array(&mut self.row, 1);
                write::str(&mut self.row, salt);
            }
            self.push_row();
        }
    }
}

fn read_row(reader: &mut Reader, lora_name: &str, row: &mut Vec<u8>) -> Option<()> {
    let mut len = reader.array().ok()?;
    if len > 0 && !lora_name.is_empty() {
        let at = reader.at();
        if reader.str_bytes().is_ok_and(|first| first == lora_name.as_bytes()) {
            len -= 1;
        } else {
            reader.seek(at);
        }
    }
    if len == 0 {
        return Some(());
    }
    write::array(row, len);
    for _ in 0..len {
        rewrite(reader, row, DEPTH_MAX)?;
    }
    Some(())
}

/// Appends the next value in its shortest form, so that equal keys have equal bytes whoever wrote
/// them. None for maps and extensions, whose form is the specification's.
fn rewrite(reader: &mut Reader, to: &mut Vec<u8>, depth: usize) -> Option<()> {
    match reader.peek().ok()? {
        0xc0 => {
            reader.byte().ok()?;
            write::nil(to);
        }
        0xc2 | 0xc3 => write::bool(to, reader.bool().ok()?),
        0xca | 0xcb => write::float(to, reader.float().ok()?),
        0xc4..=0xc6 => write::bin(to, reader.bin().ok()?),
        0xa0..=0xbf | 0xd9..=0xdb => write::str(to, reader.str().ok()?),
        0x90..=0x9f | 0xdc | 0xdd => {
            let len = reader.array().ok()?;
            let inner = depth.checked_sub(1)?;
            write::array(to, len);
            for _ in 0..len {
                rewrite(reader, to, inner)?;
            }
        }
        _ => write::int(to, reader.int().ok()?),
    }
    Some(())
}
