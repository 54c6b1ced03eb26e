//! Eight bytes of text in a register.

/// How much text is read at once.
pub const BLOCK: usize = 64;

const ZEROS: u64 = 0x3030_3030_3030_3030;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// See the crate. Where the numbers of a block of text end is one mask, so none waits for the length
/// of the one before.
pub fn append_numbers(text: &[u8], at: usize, to: &mut Vec<u8>, bytes_max: usize) -> usize {
    let (mut base, mut at) = (at, at);
    let mut block = [0; 4 * BLOCK];
    while let Some(window) = text[base..].first_chunk::<BLOCK>()
        && to.len() + block.len() <= bytes_max
    {
        let mut ends = others_mask(window);
        let mut places = block.as_chunks_mut::<4>().0.iter_mut();
        let mut found = 0;
        let mut is_usual = true;
        while ends != 0 {
            let end = base + ends.trailing_zeros() as usize;
            ends &= ends - 1;
            let (byte, len) = (text[end], end - at);
            if len == 0 && matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                at += 1;
                continue;
            }
            let Some(last) = text[..end].last_chunk() else {
                is_usual = false;
                break;
            };
            let (value, first) = last_digits(u64::from_le_bytes(*last), len);
            is_usual = byte == b',' && (1..=8).contains(&len) && (first != b'0' || len == 1);
            let Some(place) = places.next().filter(|_| is_usual) else { break };
            *place = (value as u32).to_le_bytes();
            found += 4;
            at = end + 1;
        }
        to.extend_from_slice(&block[..found]);
        base += window.len();
        if !is_usual {
            break;
        }
    }
    at
}

/// Value and number of the decimal digits at the start of eight bytes of text.
#[inline]
pub fn leading_digits(text: u64) -> (u64, usize) {
    let len = (others(text).trailing_zeros() / 8) as usize;
    if len == 0 { (0, 0) } else { (joined((text ^ ZEROS) << (64 - 8 * len)), len) }
}

/// Value of the last `len` bytes of eight bytes of text, all of them digits, and the first of the
/// digits.
#[inline]
fn last_digits(text: u64, len: usize) -> (u64, u8) {
    let before = 64_u32.wrapping_sub(8 * len as u32) % 64;
    (joined((text ^ ZEROS) >> before << before), (text >> before) as u8)
}

/// The high bit of every byte that is no digit.
#[inline]
fn others(text: u64) -> u64 {
    let digits = text ^ ZEROS;
    (((digits & !HIGH_BITS) + 0x7676_7676_7676_7676) | digits) & HIGH_BITS
}

/// Bit i: byte i is no digit.
#[inline]
fn others_mask(text: &[u8; BLOCK]) -> u64 {
    let (words, _) = text.as_chunks::<8>();
    let masks = words.iter().map(|&word| {
        // The multiplication gathers the high bits of eight bytes in the top one.
        (others(u64::from_le_bytes(word)) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    });
    masks.enumerate().fold(0, |all, (i, mask)| all | mask << (8 * i))
}

/// The number that eight digits make, the first one in the lowest byte.
#[inline]
pub fn joined(digits: u64) -> u64 {
    // Pairs, fours and eights are joined.
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let low = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let high = (pairs >> 16 & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}
