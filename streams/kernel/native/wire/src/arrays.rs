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

/// Of tokens that are pairs, the second ones; none where they are not.
pub fn pack_seconds(encoded: &[u8]) -> Vec<u8> {
    let (mut reader, mut packed, mut seconds) = (Reader::new(encoded), Vec::new(), Vec::new());
    let read = append_pairs_or_tokens(&mut reader, &mut packed, &mut seconds);
    if read.and_then(|()| reader.end()).is_err() { Vec::new() } else { seconds }
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
    append_pairs_or_tokens(reader, packed, &mut Vec::new())
}

/// The same; of pairs the second ones, too.
pub fn append_pairs_or_tokens(
    reader: &mut Reader,
    packed: &mut Vec<u8>,
    seconds: &mut Vec<u8>,
) -> Result<()> {
    if reader.nil()? {
        return Ok(());
    }
    let len = reader.array()?;
    packed.reserve(4 * len);
    let end = packed.len() + 4 * len;
    if len > 0 && matches!(reader.peek()?, 0x90..=0x9f | 0xdc | 0xdd) {
        while packed.len() < end {
            let [first, second] = pair(reader)?;
            packed.extend_from_slice(&first.to_le_bytes());
            seconds.extend_from_slice(&second.to_le_bytes());
        }
        return Ok(());
    }
    let mut tokens = [[0; 4]; TOKENS_AT_ONCE];
    while packed.len() < end {
        let tokens = &mut tokens[..TOKENS_AT_ONCE.min((end - packed.len()) / 4)];
        read_tokens(reader, tokens)?;
        packed.extend_from_slice(tokens.as_flattened());
    }
    Ok(())
}

const TOKENS_AT_ONCE: usize = 64;

/// Takes so many integers.
///
/// Where one begins is known once the one before has been looked at, and that wait is what takes the
/// time. So each look finds the end of two, and a width is computed from its tag: to look it up in a
/// table would be one more wait.
fn read_tokens(reader: &mut Reader, tokens: &mut [[u8; 4]]) -> Result<()> {
    let bytes = reader.rest();
    let begin = reader.at();
    let (mut done, mut at) = (0, 0);
    while done < tokens.len() {
        if let Some(window) = window(bytes, at)
            && let Some(width) = width_of(window >> 56)
        {
            tokens[done] = usual(window, width).to_le_bytes();
            done += 1;
            at += width;
            let next_tag = window << (8 * width) >> 56;
            if done < tokens.len()
                && let Some(width) = width_of(next_tag)
                && let Some(window) = self::window(bytes, at)
            {
                tokens[done] = usual(window, width).to_le_bytes();
                done += 1;
                at += width;
            }
            continue;
        }
        reader.seek(begin + at);
        tokens[done] = token(reader)?.to_le_bytes();
        done += 1;
        at = reader.at() - begin;
    }
    reader.seek(begin + at);
    Ok(())
}

/// Eight bytes hold any usual form, and the tag of what follows.
#[inline(always)]
fn window(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes[at..].first_chunk()?))
}

/// The bytes of a number with this tag, where it is of a usual form: a positive fixint, or an
/// unsigned number of 1, 2 or 4 bytes behind 0xcc, 0xcd or 0xce.
#[inline(always)]
fn width_of(tag: u64) -> Option<usize> {
    if (0xcc..=0xce).contains(&tag) {
        Some(1 + (1 << (tag & 3)))
    } else if tag < 0x80 {
        Some(1)
    } else {
        None
    }
}

/// The number of so many bytes, tag included, that the window begins with.
#[inline(always)]
fn usual(window: u64, width: usize) -> u32 {
    // A fixint is its own tag, whose top bit is not set.
    let skipped = if width == 1 { 0 } else { 8 };
    (window << skipped >> (64 - 8 * width + skipped)) as u32
}

fn pair(reader: &mut Reader) -> Result<[u32; 2]> {
    if reader.array()? != 2 {
        return reader.fail("pairs of integers");
    }
    Ok([token(reader)?, reader.int()? as u32])
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
