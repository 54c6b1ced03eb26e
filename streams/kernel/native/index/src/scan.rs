//! The plain JSON body of `POST /query`, read in one pass. Anything unusual gives None, and the
//! caller then parses in full; so what is accepted here must mean the same there.
//!
//! `streams/kernel/scan.py` is the specification: both accept the same bodies and read the same in
//! them. What the full parse accepts is in `query_api/http/requests`.

use digits::{append_numbers, leading_digits};

use crate::limits::{BLOCK_SIZE_MAX, NAME_BYTES_MAX, QUERY_TOKENS_MAX};

pub const DEFAULT_TENANT: &str = "default";
/// Of a number with a fraction; the full parse has longer ones.
const FLOAT_CHARS_MAX: usize = 32;

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
    let mut fields = Fields::default();
    read_object(body, |key, scanner| match key {
        "model" => once(&mut fields.model, scanner.string()?),
        "lora_name" => once(&mut fields.lora_name, scanner.string()?),
        "tenant_id" => once(&mut fields.tenant_id, scanner.string()?),
        "instance_id" => once(&mut fields.instance_id, scanner.string()?),
        "cache_salt" => once(&mut fields.cache_salt, scanner.string()?),
        "block_size" => once(&mut fields.block_size, scanner.integer()?),
        "token_ids" => once(&mut fields.tokens, scanner.tokens()?),
        _ => None,
    })?;
    check(fields)
}

/// Reads a body that is one object. `field` reads the value of each key; None from it ends the whole.
pub fn read_object<'a>(
    body: &'a [u8],
    mut field: impl FnMut(&'a str, &mut Scanner<'a>) -> Option<()>,
) -> Option<()> {
    let mut scanner = Scanner { body, at: 0 };
    scanner.object(&mut field)?;
    scanner.end()
}

/// Reads a body that is one object, or a list of one to `most`; `field` is given the one that it is of.
pub fn read_objects<'a, T: Default>(
    body: &'a [u8],
    most: usize,
    mut field: impl FnMut(&mut T, &'a str, &mut Scanner<'a>) -> Option<()>,
) -> Option<Vec<T>> {
    let mut scanner = Scanner { body, at: 0 };
    let mut found = Vec::new();
    let mut read = |scanner: &mut Scanner<'a>| {
        let mut one = T::default();
        scanner.object(&mut |key, scanner| field(&mut one, key, scanner))?;
        found.push(one);
        (found.len() <= most).then_some(())
    };
    scanner.blanks();
    if body.get(scanner.at) == Some(&b'[') {
        scanner.at += 1;
        loop {
            read(&mut scanner)?;
            scanner.blanks();
            match scanner.byte()? {
                b',' => {}
                b']' => break,
                _ => return None,
            }
        }
    } else {
        read(&mut scanner)?;
    }
    scanner.end()?;
    Some(found)
}

/// A key that stands twice is unusual.
pub fn once<T>(field: &mut Option<T>, value: T) -> Option<()> {
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

/// Reads values in the order in which they stand; None for one that is unusual.
pub struct Scanner<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn object(
        &mut self,
        field: &mut impl FnMut(&'a str, &mut Scanner<'a>) -> Option<()>,
    ) -> Option<()> {
        self.expect(b'{')?;
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            field(key, self)?;
            self.blanks();
            match self.byte()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    /// Nothing else stands there.
    fn end(&mut self) -> Option<()> {
        self.blanks();
        (self.at == self.body.len()).then_some(())
    }

    /// An array as it stands, whatever is in it.
    pub fn array(&mut self) -> Option<&'a [u8]> {
        self.expect(b'[')?;
        let (start, mut depth) = (self.at - 1, 1);
        while depth > 0 {
            match self.byte()? {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth -= 1,
                b'"' => {
                    while self.byte()? != b'"' {
                        if self.body[self.at - 1] == b'\\' {
                            self.byte()?;
                        }
                    }
                }
                _ => {}
            }
        }
        Some(&self.body[start..self.at])
    }

    /// `true` and nothing else.
    pub fn yes(&mut self) -> Option<()> {
        self.blanks();
        let is_yes = self.body[self.at..].starts_with(b"true");
        self.at += 4;
        is_yes.then_some(())
    }

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
    pub fn string(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let rest = &self.body[self.at..];
        let len = rest.iter().position(|&byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
        if rest[len] != b'"' || len > NAME_BYTES_MAX {
            return None;
        }
        self.at += len + 1;
        std::str::from_utf8(&rest[..len]).ok()
    }

    pub fn tokens(&mut self) -> Option<Vec<u8>> {
        self.expect(b'[')?;
        self.blanks();
        if self.body.get(self.at) == Some(&b']') {
            self.at += 1;
            return Some(Vec::new());
        }
        // A token takes two bytes of text at least, and mostly six.
        let mut tokens = Vec::with_capacity((self.body.len() - self.at) / 5 * 4 + 64);
        loop {
            self.at = append_numbers(self.body, self.at, &mut tokens, 4 * QUERY_TOKENS_MAX);
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

    /// A number that stands alone.
    pub fn integer(&mut self) -> Option<u64> {
        self.blanks();
        self.number()
    }

    /// A number from 0 on, as JSON has it.
    pub fn float(&mut self) -> Option<f64> {
        self.blanks();
        let rest = &self.body[self.at..];
        let is_of_it = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
        let text = &rest[..rest.iter().take_while(is_of_it).count()];
        let digits =
            |from: usize| text[from..].iter().take_while(|one| one.is_ascii_digit()).count();
        let mut at = digits(0);
        if at == 0 || text[0] == b'0' && at > 1 {
            return None;
        }
        if text.get(at) == Some(&b'.') {
            let more = digits(at + 1);
            at += (more > 0).then_some(more + 1)?;
        }
        if matches!(text.get(at), Some(b'e' | b'E')) {
            at += 1 + usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
            let more = digits(at);
            at += (more > 0).then_some(more)?;
        }
        (at == text.len() && at <= FLOAT_CHARS_MAX).then_some(())?;
        self.at += at;
        std::str::from_utf8(text).ok()?.parse().ok().filter(|value: &f64| value.is_finite())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Model, adapter, tenant, instance, block size, salt and tokens.
    type Read = (String, String, String, Option<String>, u64, String, Vec<u32>);

    fn read(body: &str) -> Option<Read> {
        let query = scan_query(body.as_bytes())?;
        let (tokens, []) = query.tokens.as_chunks() else { panic!("a part of a token") };
        Some((
            query.model.into(),
            query.lora_name.into(),
            query.tenant_id.into(),
            query.instance_id.map(str::to_owned),
            query.block_size,
            query.cache_salt.into(),
            tokens.iter().map(|&token| u32::from_le_bytes(token)).collect(),
        ))
    }

    fn plain(tokens: &[u32], block_size: u64) -> Option<Read> {
        let (model, tenant) = ("m".to_owned(), "default".to_owned());
        Some((model, String::new(), tenant, None, block_size, String::new(), tokens.to_vec()))
    }

    #[test]
    fn every_field_is_read_in_any_order_with_any_blanks() {
        let fields = [
            r#""model" : "m/7""#,
            r#""lora_name":"l""#,
            "\"tenant_id\":\t\"t\"",
            " \"instance_id\":\"\u{e9}\"",
            "\"block_size\"\r:\n16",
            r#""cache_salt": "s ""#,
            "\"token_ids\":[ 1 ,\t22\n, 4294967295,-1 ,-2147483648, 0,-0,12345678 ]\n",
        ];
        let tokens = vec![1, 22, u32::MAX, u32::MAX, 1 << 31, 0, 0, 12_345_678];
        let instance = Some("\u{e9}".to_owned());
        for first in 0..fields.len() {
            let mut fields: Vec<&str> = fields.to_vec();
            fields.rotate_left(first);
            let body = format!(" \r\n{{{}}}\t ", fields.join(","));
            let [model, lora, tenant, salt] = ["m/7", "l", "t", "s "].map(str::to_owned);
            let expected = (model, lora, tenant, instance.clone(), 16, salt, tokens.clone());
            assert_eq!(read(&body), Some(expected), "{body}");
        }
        let few = r#"{"tenant_id":"","model":"m","token_ids":[],"block_size":1}"#;
        assert_eq!(read(few), plain(&[], 1));
    }

    #[test]
    fn numbers_are_read_digit_by_digit() {
        for len in 1..=9 {
            let bound = 10_u64.pow(len);
            for number in [bound / 10, bound - 1, 123_456_789 % bound] {
                let body = format!(r#"{{"model":"m","block_size":4,"token_ids":[{number}]}}"#);
                assert_eq!(read(&body), plain(&[number as u32], 4), "{number}");
            }
        }
        for size in [1, 9, 10, 65_535, 65_536] {
            let body = format!(r#"{{"model":"m","token_ids":[7],"block_size":{size}}}"#);
            assert_eq!(read(&body), plain(&[7], size), "{size}");
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_caller() {
        let with =
            |field: &str| format!(r#"{{"model":"m","token_ids":[7],"block_size":4,{field}}}"#);
        assert!(read(&with(r#""cache_salt":"""#)).is_some());
        for field in [
            r#""model":"m""#,
            r#""block_size":4"#,
            r#""token_ids":[7]"#,
            r#""cache_salt":"","cache_salt":"""#,
            r#""other":1"#,
            r#""instance_id":"""#,
            r#""instance_id":null"#,
            r#""instance_id":"a\n""#,
            "\"instance_id\":\"a\u{1f}\"",
            r#""instance_id" "a""#,
            "",
        ] {
            assert_eq!(read(&with(field)), None, "{field}");
        }
        for [model, tokens, size] in [
            [r#""""#, "[7]", "4"],
            [r#""m""#, "[7]", "0"],
            [r#""m""#, "[7]", "65537"],
            [r#""m""#, "[7]", "04"],
            [r#""m""#, "[7]", "00"],
            [r#""m""#, "[7]", "-4"],
            [r#""m""#, "[7]", "4.0"],
            [r#""m""#, "[7]", ""],
            [r#""m""#, "[7]", "1000000000000004"],
            [r#""m""#, "[7]", "100000000000000000000000"],
            [r#""m""#, "[4294967296]", "4"],
            [r#""m""#, "[-2147483649]", "4"],
            [r#""m""#, "[7,]", "4"],
            [r#""m""#, "[,7]", "4"],
            [r#""m""#, "[7 7]", "4"],
            [r#""m""#, "[7", "4"],
            [r#""m""#, "[07]", "4"],
            [r#""m""#, "[--7]", "4"],
            [r#""m""#, "[-]", "4"],
            [r#""m""#, "7", "4"],
            [r#""m""#, "[7.5]", "4"],
        ] {
            let body = format!(r#"{{"model":{model},"token_ids":{tokens},"block_size":{size}}}"#);
            assert_eq!(read(&body), None, "{body}");
        }
        let whole = r#"{"model":"m","token_ids":[7],"block_size":4}"#;
        assert_eq!(read(whole), plain(&[7], 4));
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), None, "{}", &whole[..end]);
        }
        for body in [
            format!("{whole}x"),
            format!("{whole}}}"),
            whole.replacen('{', "[", 1),
            whole.replace(",\"block", ";\"block"),
            whole.replace(",\"block_size\":4", ""),
            whole.replace("\"model\":\"m\",", ""),
            whole.replace("\"token_ids\":[7],", ""),
        ] {
            assert_eq!(read(&body), None, "{body}");
        }
        let bytes = whole.replace("\"m\"", "\"\u{7f}\"").into_bytes();
        let no_text: Vec<u8> =
            bytes.iter().map(|&byte| if byte == 0x7f { 0xff } else { byte }).collect();
        assert!(scan_query(&bytes).is_some() && scan_query(&no_text).is_none());
    }

    #[test]
    fn numbers_with_fractions_are_read_as_json_has_them() {
        let read = |text: &str| {
            let mut found = None;
            let body = format!("{{\"a\": {text} }}");
            read_object(body.as_bytes(), |_, scanner| once(&mut found, scanner.float()?))?;
            found
        };
        for (text, value) in
            [("0", 0.0), ("20", 20.0), ("0.5", 0.5), ("12.25e-1", 1.225), ("1E+2", 100.0)]
        {
            assert_eq!(read(text), Some(value), "{text}");
        }
        let long = "1".repeat(FLOAT_CHARS_MAX + 1);
        for text in [
            "", "-1", "+1", "00", "01", ".5", "1.", "1e", "1e+", "1.e5", "1e999", "1.5.2", "inf",
            &long,
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn one_object_is_read_or_a_list_of_them() {
        let read = |body: &str| {
            read_objects(body.as_bytes(), 2, |one: &mut Option<u64>, key, scanner| {
                (key == "a").then_some(())?;
                once(one, scanner.integer()?)
            })
        };
        assert_eq!(read(r#" {"a":1} "#), Some(vec![Some(1)]));
        assert_eq!(read(r#"[{"a":1}, {"a":2}]"#), Some(vec![Some(1), Some(2)]));
        for body in [
            "[]",
            "{}",
            r#"[{"a":1},]"#,
            r#"[{"a":1}"#,
            r#"{"a":1}]"#,
            r#"[{"a":1}{"a":1}]"#,
            r#"[[{"a":1}]]"#,
            r#"[{"a":1,"a":1}]"#,
            r#"[{"a":1},{"a":2},{"a":3}]"#,
            "[1]",
            "",
        ] {
            assert_eq!(read(body), None, "{body}");
        }
    }

    #[test]
    fn names_and_prompts_have_their_bounds() {
        for (len, is_read) in [(NAME_BYTES_MAX, true), (NAME_BYTES_MAX + 1, false)] {
            let name = "x".repeat(len);
            let body = format!(r#"{{"model":"{name}","token_ids":[7],"block_size":4}}"#);
            assert_eq!(read(&body).is_some(), is_read, "{len} bytes");
        }
        for (len, is_read) in [(QUERY_TOKENS_MAX, true), (QUERY_TOKENS_MAX + 1, false)] {
            let tokens = "1,".repeat(len - 1);
            let body = format!(r#"{{"model":"m","block_size":4,"token_ids":[{tokens}1]}}"#);
            let read = scan_query(body.as_bytes()).map(|query| query.tokens.len());
            assert_eq!(read, is_read.then_some(4 * len));
        }
    }
}
