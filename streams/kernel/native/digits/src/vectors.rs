//! Eight numbers at a time, of text that is read 64 bytes at a time.
//!
//! First the places of all commas of a window are listed, then the numbers before them are taken in
//! groups: no step waits for the length of a number.

use std::arch::x86_64::{
    __m256i, _mm_cvtsi64_si128, _mm256_add_epi32, _mm256_and_si256, _mm256_castsi256_si128,
    _mm256_cmpeq_epi8, _mm256_cmpgt_epi32, _mm256_cvtepu8_epi32, _mm256_cvtepu32_epi64,
    _mm256_extracti128_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_min_epu8,
    _mm256_movemask_epi8, _mm256_or_si256, _mm256_packus_epi32, _mm256_permute4x64_epi64,
    _mm256_permutevar8x32_epi32, _mm256_set_epi64x, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setr_epi32, _mm256_slli_epi32, _mm256_sllv_epi64,
    _mm256_sub_epi8, _mm256_sub_epi32, _mm256_testz_si256, _mm256_xor_si256,
};

use crate::words::BLOCK;

/// A place in it fits a byte.
const WINDOW: usize = 256;
const GROUP: usize = 8;
/// A number is taken with the eight bytes that end with it.
const BEFORE: usize = 8;

/// See the crate. The only blank that is known is one space before each number; less than a group,
/// and the last bytes of the text, are left.
#[target_feature(enable = "avx2,bmi1")]
pub fn append_numbers(text: &[u8], mut at: usize, to: &mut Vec<u8>, bytes_max: usize) -> usize {
    while at >= BEFORE
        && let Some(window) = text[at - BEFORE..].first_chunk::<{ BEFORE + WINDOW }>()
        && to.len() + 4 * WINDOW <= bytes_max
    {
        let spacing = Spacing::of(window);
        // One place more in front, that of the comma before the window.
        let mut ends = [u8::MAX; 1 + WINDOW + GROUP];
        ends[0] = spacing.comma_before();
        let found = list_ends(window, spacing, &mut ends);
        let mut read = 0;
        while read + GROUP <= found {
            let Some(values) = group(window, &ends[read..], spacing.gap) else {
                break;
            };
            to.extend_from_slice(&values);
            read += GROUP;
        }
        if read == 0 {
            break;
        }
        at += usize::from(ends[read]) + 1;
    }
    at
}

/// Spaces before numbers: as many before each, but for the first one of an array.
#[derive(Clone, Copy)]
struct Spacing {
    /// Before the first number of the window: 0 or 1.
    first: u8,
    /// Before the others: 0 or 1.
    gap: u8,
}

impl Spacing {
    fn of(window: &[u8; BEFORE + WINDOW]) -> Self {
        let first = u8::from(window[BEFORE] == b' ');
        let behind = window[BEFORE..].iter().take(BLOCK).position(|&byte| byte == b',');
        let gap = behind.map_or(first, |comma| u8::from(window[BEFORE + comma + 1] == b' '));
        Self { first, gap }
    }

    /// Where the comma before the window would be, modulo 256.
    fn comma_before(self) -> u8 {
        self.first.wrapping_sub(self.gap).wrapping_sub(1)
    }
}

/// Lists where the commas of the window are, up to its first byte that is unusual; how many there
/// are.
#[target_feature(enable = "avx2,bmi1")]
fn list_ends(
    window: &[u8; BEFORE + WINDOW],
    spacing: Spacing,
    ends: &mut [u8; 1 + WINDOW + GROUP],
) -> usize {
    let mut found = 0;
    let mut is_behind = u64::from(spacing.first); // whether a space is to begin the block
    for (number, block) in window[BEFORE..].as_chunks::<BLOCK>().0.iter().enumerate() {
        let Marks { mut commas, spaces, digits } = marks(block);
        let gaps = if spacing.gap == 0 { 0 } else { commas };
        let behind = gaps << 1 | is_behind;
        is_behind = gaps >> 63;
        let unusual = !(digits | commas | spaces) | spaces ^ behind;
        commas &= (unusual & unusual.wrapping_neg()).wrapping_sub(1);
        while commas != 0 {
            found += 1;
            ends[found] = (BLOCK * number) as u8 | commas.trailing_zeros() as u8;
            commas &= commas - 1;
        }
        if unusual != 0 {
            break;
        }
    }
    found
}

/// Bit i: what byte i is.
struct Marks {
    commas: u64,
    spaces: u64,
    digits: u64,
}

#[target_feature(enable = "avx2")]
fn marks(text: &[u8; BLOCK]) -> Marks {
    let [low, high] = vectors(text);
    let both = |low: __m256i, high: __m256i| {
        let [low, high] = [low, high].map(|mask| u64::from(_mm256_movemask_epi8(mask) as u32));
        high << 32 | low
    };
    let are = |byte: u8| {
        let wanted = _mm256_set1_epi8(byte as i8);
        both(_mm256_cmpeq_epi8(low, wanted), _mm256_cmpeq_epi8(high, wanted))
    };
    let are_digits = |text: __m256i| {
        let digits = _mm256_sub_epi8(text, _mm256_set1_epi8(b'0' as i8));
        _mm256_cmpeq_epi8(_mm256_min_epu8(digits, _mm256_set1_epi8(9)), digits)
    };
    Marks { commas: are(b','), spaces: are(b' '), digits: both(are_digits(low), are_digits(high)) }
}

/// The eight numbers before `ends[1..=8]` as u32 LE; None where one is empty, too long, or begins
/// with a zero.
#[target_feature(enable = "avx2,bmi1")]
fn group(window: &[u8; BEFORE + WINDOW], ends: &[u8], gap: u8) -> Option<[u8; 4 * GROUP]> {
    let (before, ends) = (ends.first_chunk()?, ends[1..].first_chunk::<GROUP>()?);
    let lens = _mm256_sub_epi32(
        _mm256_and_si256(
            _mm256_sub_epi32(widened(ends), widened(before)),
            _mm256_set1_epi32(0xff), // the place before the window
        ),
        _mm256_set1_epi32(1 + i32::from(gap)),
    );
    let text = |number: usize| {
        let end = usize::from(ends[number]);
        let bytes = window[end..].first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(bytes) as i64
    };
    let shifts = _mm256_sub_epi32(_mm256_set1_epi32(64), _mm256_slli_epi32::<3>(lens));
    let low = fours(
        _mm256_set_epi64x(text(3), text(2), text(1), text(0)),
        _mm256_cvtepu32_epi64(_mm256_castsi256_si128(shifts)),
    );
    let high = fours(
        _mm256_set_epi64x(text(7), text(6), text(5), text(4)),
        _mm256_cvtepu32_epi64(_mm256_extracti128_si256::<1>(shifts)),
    );
    // Packing goes by halves of a vector: 0 1 4 5 2 3 6 7.
    let packed = _mm256_packus_epi32(low, high);
    let eights = _mm256_madd_epi16(packed, _mm256_set1_epi32(0x0001_2710));
    let values = _mm256_permute4x64_epi64::<0b11_01_10_00>(eights);
    // The least number of each length; of 0, and of more than eight digits, none is large enough.
    let least = _mm256_setr_epi32(
        -1, // of one digit: 0, which is above
        9, 99, 999, 9_999, 99_999, 999_999, 9_999_999,
    );
    let places = _mm256_add_epi32(lens, _mm256_set1_epi32(-1));
    let is_too_small = _mm256_xor_si256(
        _mm256_cmpgt_epi32(values, _mm256_permutevar8x32_epi32(least, places)),
        _mm256_set1_epi32(-1),
    );
    let is_no_length = _mm256_or_si256(
        _mm256_cmpgt_epi32(places, _mm256_set1_epi32(7)),
        _mm256_cmpgt_epi32(_mm256_set1_epi32(0), places),
    );
    let bad = _mm256_or_si256(is_too_small, is_no_length);
    (_mm256_testz_si256(bad, bad) == 1).then(|| bytes(values))
}

#[target_feature(enable = "avx2")]
fn widened(places: &[u8; GROUP]) -> __m256i {
    _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(*places)))
}

/// The values of the digits by fours, of which a number has two: the first of them counts more.
#[target_feature(enable = "avx2")]
fn fours(texts: __m256i, shifts: __m256i) -> __m256i {
    let digits = _mm256_and_si256(
        _mm256_xor_si256(texts, _mm256_set1_epi8(b'0' as i8)),
        _mm256_sllv_epi64(_mm256_set1_epi64x(-1), shifts),
    );
    let pairs = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(0x010a));
    _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x0001_0064))
}

#[allow(unsafe_code)]
#[target_feature(enable = "avx2")]
fn vectors(bytes: &[u8; BLOCK]) -> [__m256i; 2] {
    // SAFETY: any bytes are a vector, and the sizes are equal.
    unsafe { std::mem::transmute(*bytes) }
}

#[allow(unsafe_code)]
#[target_feature(enable = "avx2")]
fn bytes(vector: __m256i) -> [u8; 4 * GROUP] {
    // SAFETY: any vector is bytes, and the sizes are equal.
    unsafe { std::mem::transmute(vector) }
}
