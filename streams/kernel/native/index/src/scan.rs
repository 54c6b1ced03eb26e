//! The plain JSON body of `POST /query`, read in one pass. Anything unusual gives None, and the
//! caller then parses in full; so what is accepted here must mean the same there.
//!
//! `streams/kernel/scan.py` is the specification: both accept the same bodies and read the same in
//! them. What the full parse accepts is in `query_api/http/requests`.

use crate::limits::{BLOCK_SIZE_MAX, NAME_BYTES_MAX, QUERY_TOKENS_MAX};

const DEFAULT_TENANT: &str = "default";
const ZEROS: u64 = 0x3030_3030_3030_3030;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

pub struct ScannedQuery<'a> {
    pub model: &'a str,
    pub lora_name: &'a str,
    pub tenant_id: &'a str,
    pub instance_id: Option<&'a str>,
    pub block_size: u64,
    pub cache_salt: &'a str,
    /// u32 LE.
    pub tokens: Vec<u8>,
}

#[derive(Default)]
struct Fields<'a> {
    model: Option<&'a str>,
    lora_name: Option<&'a str>,
    tenant_id: Option<&'a str>,
    instance_id: Option<&'a str>,
    block_size: Option<u64>,
    cache_salt: Option<&'a str>,
    tokens: Option<Vec<u8>>,
}

pub fn scan_query(body: &[u8]) -> Option<ScannedQuery<'_>> {
    let mut scanner = Scanner { body, at: 0 };
    let mut fields = Fields::default();
    scanner.expect(b'{')?;
    loop {
        let key = scanner.string()?;
        scanner.expect(b':')?;
        match key {
            "model" => once(&mut fields.model, scanner.string()?)?,
            "lora_name" => once(&mut fields.lora_name, scanner.string()?)?,
            "tenant_id" => once(&mut fields.tenant_id, scanner.string()?)?,
            "instance_id" => once(&mut fields.instance_id, scanner.string()?)?,
            "cache_salt" => once(&mut fields.cache_salt, scanner.string()?)?,
            "block_size" => {
                scanner.blanks();
                once(&mut fields.block_size, scanner.number()?)?;
            }
            "token_ids" => once(&mut fields.tokens, scanner.tokens()?)?,
            _ => return None,
        }
        scanner.blanks();
        match scanner.byte()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
    }
    scanner.blanks();
    (scanner.at == body.len()).then_some(())?;
    check(fields)
}

fn once<T>(field: &mut Option<T>, value: T) -> Option<()> {
    field.replace(value).is_none().then_some(())
}

fn check(fields: Fields) -> Option<ScannedQuery> {
    let block_size = fields.block_size?;
    let query = ScannedQuery {
        model: fields.model?,
        lora_name: fields.lora_name.unwrap_or_default(),
        tenant_id: fields.tenant_id.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_TENANT),
        instance_id: fields.instance_id,
        block_size,
        cache_salt: fields.cache_salt.unwrap_or_default(),
        tokens: fields.tokens?,
    };
    let is_usual = !query.model.is_empty()
        && query.instance_id != Some("")
        && (1..=BLOCK_SIZE_MAX).contains(&block_size);
    is_usual.then_some(query)
}

struct Scanner<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.body.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.body.get(self.at) {
            self.at += 1;
        }
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        self.blanks();
        (self.byte()? == wanted).then_some(())
    }

    /// A string without escapes or control characters.
    fn string(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let rest = &self.body[self.at..];
        let len = rest.iter().position(|&byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
        if rest[len] != b'"' || len > NAME_BYTES_MAX {
            return None;
        }
        self.at += len + 1;
        std::str::from_utf8(&rest[..len]).ok()
    }

    fn tokens(&mut self) -> Option<Vec<u8>> {
        self.expect(b'[')?;
        self.blanks();
        if self.body.get(self.at) == Some(&b']') {
            self.at += 1;
            return Some(Vec::new());
        }
        // A token takes two bytes of text at least, and mostly six.
        let mut tokens = Vec::with_capacity((self.body.len() - self.at) / 5 * 4 + 64);
        loop {
            self.usual_tokens(&mut tokens);
            self.blanks();
            let token = self.token()?;
            if tokens.len() == 4 * QUERY_TOKENS_MAX {
                return None;
            }
            tokens.extend_from_slice(&token.to_le_bytes());
            self.blanks();
            match self.byte()? {
                b',' => {}
                b']' => return Some(tokens),
                _ => return None,
            }
        }
    }

    /// Tokens of up to eight digits with the comma after each, as far as they come and 64 bytes at
    /// a time; stops before anything else.
    ///
    /// Where the tokens of 64 bytes end is one mask, so no token waits for the length of the one
    /// before.
    fn usual_tokens(&mut self, tokens: &mut Vec<u8>) {
        let body = self.body;
        let (mut base, mut at) = (self.at, self.at);
        let mut block = [0; 4 * 64];
        while let Some(text) = body[base..].first_chunk::<64>()
            && tokens.len() + block.len() <= 4 * QUERY_TOKENS_MAX
        {
            let mut ends = others_mask(text);
            let mut places = block.as_chunks_mut::<4>().0.iter_mut();
            let mut found = 0;
            let mut is_usual = true;
            while ends != 0 {
                let end = base + ends.trailing_zeros() as usize;
                ends &= ends - 1;
                let (byte, len) = (body[end], end - at);
                if len == 0 && matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                    at += 1;
                    continue;
                }
                let last = body[..end].last_chunk().copied().unwrap_or_default();
                let (value, first) = last_digits(u64::from_le_bytes(last), len);
                is_usual = byte == b',' && (1..=8).contains(&len) && (first != b'0' || len == 1);
                let Some(place) = places.next().filter(|_| is_usual) else { break };
                *place = (value as u32).to_le_bytes();
                found += 4;
                at = end + 1;
            }
            tokens.extend_from_slice(&block[..found]);
            base += text.len();
            if !is_usual {
                break;
            }
        }
        self.at = at;
    }

    /// The 32 bits of a token: two's complement where it is negative.
    #[inline]
    fn token(&mut self) -> Option<u32> {
        if self.body.get(self.at) != Some(&b'-') {
            return u32::try_from(self.number()?).ok();
        }
        self.at += 1;
        let magnitude = self.number()?;
        let fits = magnitude <= u64::from(i32::MIN.unsigned_abs());
        fits.then(|| (magnitude as u32).wrapping_neg())
    }

    /// A plain integer of up to 15 digits.
    #[inline]
    fn number(&mut self) -> Option<u64> {
        let (value, len) = leading_digits(self.word());
        let starts_with_zero = self.body.get(self.at) == Some(&b'0');
        if len == 0 || starts_with_zero && len > 1 {
            return None;
        }
        self.at += len;
        if len < 8 {
            return Some(value);
        }
        let (low, more) = leading_digits(self.word());
        self.at += more;
        // Eight more digits are out of any range here.
        (more < 8).then(|| value * 10_u64.pow(more as u32) + low)
    }

    /// The next eight bytes, zeros beyond the end.
    #[inline]
    fn word(&self) -> u64 {
        let rest = &self.body[self.at..];
        if let Some(word) = rest.first_chunk() {
            return u64::from_le_bytes(*word);
        }
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        u64::from_le_bytes(word)
    }
}

/// Value and number of the decimal digits at the start of eight bytes of text.
#[inline]
fn leading_digits(text: u64) -> (u64, usize) {
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
fn others_mask(text: &[u8; 64]) -> u64 {
    let (words, _) = text.as_chunks::<8>();
    let masks = words.iter().map(|&word| {
        // The multiplication gathers the high bits of eight bytes in the top one.
        (others(u64::from_le_bytes(word)) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    });
    masks.enumerate().fold(0, |all, (i, mask)| all | mask << (8 * i))
}

/// The number that eight digits make, the first one in the lowest byte.
#[inline]
fn joined(digits: u64) -> u64 {
    // Pairs, fours and eights are joined.
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let low = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let high = (pairs >> 16 & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}
