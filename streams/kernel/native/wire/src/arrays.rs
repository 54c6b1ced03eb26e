//! Packing of the engines' number arrays, as `schemas/arrays.py` specifies it.

use msgpack::{Malformed, Reader, Result};

/// Engine hashes as u64 LE: integers of 64 bits, or the last 8 of at least 8 bytes, big-endian.
pub fn pack_hashes(encoded: &[u8]) -> Result<Vec<u8>> {
    whole(encoded, append_hashes)
}

/// Tokens as u32 LE: integers of 32 bits and either sign, or pairs of integers of which the first
/// counts; nil for none.
pub fn pack_tokens(encoded: &[u8]) -> Result<Vec<u8>> {
    whole(encoded, append_tokens)
}

/// What `append` makes of the bytes, all of which it must take.
fn whole(
    encoded: &[u8],
    append: impl FnOnce(&mut Reader, &mut Vec<u8>) -> Result<()>,
) -> Result<Vec<u8>> {
    let (mut reader, mut packed) = (Reader::new(encoded), Vec::new());
    append(&mut reader, &mut packed)?;
    reader.end()?;
    Ok(packed)
}

/// Takes an array as `pack_hashes` does.
pub fn append_hashes(reader: &mut Reader, packed: &mut Vec<u8>) -> Result<()> {
    let len = reader.array()?;
    packed.reserve(8 * len);
    for _ in 0..len {
        let hash = match reader.peek()? {
            0xc4..=0xc6 => match reader.bin()?.last_chunk() {
                Some(last) => u64::from_be_bytes(*last),
                None => return reader.fail("a hash of 8 bytes or more"),
            },
            // Two's complement: i64 and u64 keep their bits.
            _ => reader.int()? as u64,
        };
        packed.extend_from_slice(&hash.to_le_bytes());
    }
    Ok(())
}

/// Takes an array as `pack_tokens` does.
pub fn append_tokens(reader: &mut Reader, packed: &mut Vec<u8>) -> Result<()> {
    if reader.nil()? {
        return Ok(());
    }
    let len = reader.array()?;
    packed.reserve(4 * len);
    let end = packed.len() + 4 * len;
    if len > 0 && matches!(reader.peek()?, 0x90..=0x9f | 0xdc | 0xdd) {
        while packed.len() < end {
            packed.extend_from_slice(&pair(reader)?.to_le_bytes());
        }
        return Ok(());
    }
    let bytes = reader.rest();
    let begin = reader.at();
    let mut at = 0;
    while packed.len() < end {
        // Eight bytes hold any usual form, so one look at a table does for all widths.
        if let Some(window) = bytes[at..].first_chunk() {
            let window = u64::from_be_bytes(*window);
            let Form { len, shift, mask } = FORMS[(window >> 56) as usize];
            if len > 0 {
                let token = (window >> shift) as u32 & mask;
                packed.extend_from_slice(&token.to_le_bytes());
                at += usize::from(len);
                continue;
            }
        }
        reader.seek(begin + at);
        packed.extend_from_slice(&token(reader)?.to_le_bytes());
        at = reader.at() - begin;
    }
    reader.seek(begin + at);
    Ok(())
}

fn pair(reader: &mut Reader) -> Result<u32> {
    if reader.array()? != 2 {
        return reader.fail("pairs of integers");
    }
    let first = token(reader)?;
    reader.int()?;
    Ok(first)
}

fn token(reader: &mut Reader) -> Result<u32> {
    let at = reader.at();
    let value = reader.int()?;
    if !(i32::MIN.into()..=u32::MAX.into()).contains(&value) {
        return Err(Malformed { expected: "a token from -2**31 to 2**32-1", at });
    }
    // Two's complement: i32 and u32 keep their bits.
    Ok(value as u32)
}

/// How to take a number from eight big-endian bytes that start with its tag; `len` 0: not this way.
#[derive(Clone, Copy)]
struct Form {
    len: u8,
    shift: u8,
    mask: u32,
}

static FORMS: [Form; 256] = forms();

const fn forms() -> [Form; 256] {
    let mut forms = [Form { len: 0, shift: 0, mask: 0 }; 256];
    let mut tag = 0;
    while tag < 0x80 {
        forms[tag] = Form { len: 1, shift: 56, mask: 0x7f };
        tag += 1;
    }
    forms[0xcc] = Form { len: 2, shift: 48, mask: 0xff };
    forms[0xcd] = Form { len: 3, shift: 40, mask: 0xffff };
    forms[0xce] = Form { len: 5, shift: 24, mask: u32::MAX };
    forms
}
