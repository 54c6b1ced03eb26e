//! A strict reader of msgpack over borrowed bytes. Every length is checked against the bytes that
//! are left before anything is made of it.

/// What was expected and where reading stopped.
#[derive(Debug)]
pub struct Malformed {
    pub expected: &'static str,
    pub at: usize,
}

pub type Result<T> = std::result::Result<T, Malformed>;

pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn seek(&mut self, at: usize) {
        self.at = at;
    }

    /// The bytes that are left, not taken.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    pub fn fail<T>(&self, expected: &'static str) -> Result<T> {
        Err(Malformed { expected, at: self.at })
    }

    pub fn end(&self) -> Result<()> {
        if self.at == self.bytes.len() { Ok(()) } else { self.fail("nothing after the array") }
    }

    /// The next byte, not taken.
    #[inline]
    pub fn peek(&self) -> Result<u8> {
        match self.bytes.get(self.at) {
            Some(&byte) => Ok(byte),
            None => self.fail("more bytes"),
        }
    }

    #[inline]
    pub fn byte(&mut self) -> Result<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        match self.bytes[self.at..].get(..len) {
            Some(taken) => {
                self.at += len;
                Ok(taken)
            }
            None => self.fail("more bytes"),
        }
    }

    /// A big-endian number of up to 8 bytes.
    #[inline]
    fn number(&mut self, len: usize) -> Result<u64> {
        let mut word = [0; 8];
        word[8 - len..].copy_from_slice(self.take(len)?);
        Ok(u64::from_be_bytes(word))
    }

    fn len(&mut self, bytes: usize) -> Result<usize> {
        Ok(self.number(bytes)? as usize)
    }

    /// The number of elements of an array. Each takes a byte at least, so it is at most the bytes
    /// left.
    pub fn array(&mut self) -> Result<usize> {
        let len = match self.peek()? {
            tag @ 0x90..=0x9f => self.tagged(|_| Ok(usize::from(tag & 0x0f)))?,
            0xdc => self.tagged(|reader| reader.len(2))?,
            0xdd => self.tagged(|reader| reader.len(4))?,
            _ => return self.fail("an array"),
        };
        self.fits(len)
    }

    /// The number of pairs of a map.
    pub fn map(&mut self) -> Result<usize> {
        let len = match self.peek()? {
            tag @ 0x80..=0x8f => self.tagged(|_| Ok(usize::from(tag & 0x0f)))?,
            0xde => self.tagged(|reader| reader.len(2))?,
            0xdf => self.tagged(|reader| reader.len(4))?,
            _ => return self.fail("a map"),
        };
        self.fits(2 * len)?;
        Ok(len)
    }

    fn fits(&self, len: usize) -> Result<usize> {
        if len <= self.bytes.len() - self.at { Ok(len) } else { self.fail("more bytes") }
    }

    fn tagged<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.at += 1;
        read(self)
    }

    /// A string's bytes; not checked to be UTF-8.
    pub fn str_bytes(&mut self) -> Result<&'a [u8]> {
        let len = match self.peek()? {
            tag @ 0xa0..=0xbf => self.tagged(|_| Ok(usize::from(tag & 0x1f)))?,
            0xd9 => self.tagged(|reader| reader.len(1))?,
            0xda => self.tagged(|reader| reader.len(2))?,
            0xdb => self.tagged(|reader| reader.len(4))?,
            _ => return self.fail("a string"),
        };
        self.take(len)
    }

    pub fn str(&mut self) -> Result<&'a str> {
        let bytes = self.str_bytes()?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(_) => self.fail("UTF-8"),
        }
    }

    pub fn bin(&mut self) -> Result<&'a [u8]> {
        let len = match self.peek()? {
            0xc4 => self.tagged(|reader| reader.len(1))?,
            0xc5 => self.tagged(|reader| reader.len(2))?,
            0xc6 => self.tagged(|reader| reader.len(4))?,
            _ => return self.fail("bytes"),
        };
        self.take(len)
    }

    /// Any integer: it is within i64 or u64.
    #[inline]
    pub fn int(&mut self) -> Result<i128> {
        let tag = self.peek()?;
        let value = match tag {
            0x00..=0x7f => self.tagged(|_| Ok(i128::from(tag)))?,
            0xe0..=0xff => self.tagged(|_| Ok(i128::from(tag as i8)))?,
            0xcc..=0xcf => self.tagged(|reader| reader.number(1 << (tag - 0xcc)))?.into(),
            0xd0 => (self.tagged(|reader| reader.number(1))? as i8).into(),
            0xd1 => (self.tagged(|reader| reader.number(2))? as i16).into(),
            0xd2 => (self.tagged(|reader| reader.number(4))? as i32).into(),
            0xd3 => (self.tagged(|reader| reader.number(8))? as i64).into(),
            _ => return self.fail("an integer"),
        };
        Ok(value)
    }

    /// A float of either width.
    pub fn float(&mut self) -> Result<f64> {
        match self.peek()? {
            0xca => Ok(f32::from_bits(self.tagged(|reader| reader.number(4))? as u32).into()),
            0xcb => Ok(f64::from_bits(self.tagged(|reader| reader.number(8))?)),
            _ => self.fail("a float"),
        }
    }

    pub fn bool(&mut self) -> Result<bool> {
        match self.peek()? {
            tag @ (0xc2 | 0xc3) => self.tagged(|_| Ok(tag == 0xc3)),
            _ => self.fail("true or false"),
        }
    }

    /// Takes a nil if there is one.
    pub fn nil(&mut self) -> Result<bool> {
        let is_nil = self.peek()? == 0xc0;
        self.at += usize::from(is_nil);
        Ok(is_nil)
    }

    /// Skips one value with all that is in it.
    pub fn skip(&mut self) -> Result<()> {
        self.skip_some(usize::MAX).map(|_| ())
    }

    /// Skips one value with all that is in it, or its first `most` values; how many those were.
    /// Counts what is left to skip, so nesting costs no stack.
    pub fn skip_some(&mut self, most: usize) -> Result<usize> {
        let mut left: usize = 1;
        let mut skipped: usize = 0;
        while left > 0 && skipped < most {
            left -= 1;
            skipped += 1;
            match self.peek()? {
                0x80..=0x8f | 0xde | 0xdf => left += 2 * self.map()?,
                0x90..=0x9f | 0xdc | 0xdd => left += self.array()?,
                0xa0..=0xbf | 0xd9..=0xdb => {
                    self.str_bytes()?;
                }
                0xc4..=0xc6 => {
                    self.bin()?;
                }
                0xca => {
                    self.tagged(|reader| reader.take(4))?;
                }
                0xcb => {
                    self.tagged(|reader| reader.take(8))?;
                }
                0xc7..=0xc9 | 0xd4..=0xd8 => self.skip_extension()?,
                0xc0 | 0xc2 | 0xc3 => self.at += 1,
                0xc1 => return self.fail("a msgpack value"),
                _ => {
                    self.int()?;
                }
            }
        }
        Ok(skipped)
    }

    /// Skips one value with all that is in it, nested no deeper than `depth`.
    pub fn skip_within(&mut self, depth: usize) -> Result<()> {
        let inner = match self.peek()? {
            0x80..=0x8f | 0xde | 0xdf => 2 * self.map()?,
            0x90..=0x9f | 0xdc | 0xdd => self.array()?,
            _ => return self.skip(),
        };
        if depth == 0 {
            return self.fail("a value of less depth");
        }
        for _ in 0..inner {
            self.skip_within(depth - 1)?;
        }
        Ok(())
    }

    fn skip_extension(&mut self) -> Result<()> {
        let tag = self.byte()?;
        let len = match tag {
            0xc7..=0xc9 => self.len(1 << (tag - 0xc7))?,
            _ => 1 << (tag - 0xd4),
        };
        self.take(1 + len)?;
        Ok(())
    }
}
