//! Appends values to bytes, each in its shortest form.

type Bytes = Vec<u8>;

pub fn nil(to: &mut Bytes) {
    to.push(0xc0);
}

pub fn bool(to: &mut Bytes, value: bool) {
    to.push(if value { 0xc3 } else { 0xc2 });
}

/// A number that is not negative is written as unsigned; `value` is within i64 or u64.
pub fn int(to: &mut Bytes, value: i128) {
    match value {
        0.. => uint(to, value as u64),
        -0x20.. => to.push(value as u8),
        -0x80.. => tagged(to, 0xd0, &(value as i8).to_be_bytes()),
        -0x8000.. => tagged(to, 0xd1, &(value as i16).to_be_bytes()),
        -0x8000_0000.. => tagged(to, 0xd2, &(value as i32).to_be_bytes()),
        _ => tagged(to, 0xd3, &(value as i64).to_be_bytes()),
    }
}

pub fn uint(to: &mut Bytes, value: u64) {
    match value {
        0..0x80 => to.push(value as u8),
        0x80..0x100 => tagged(to, 0xcc, &[value as u8]),
        0x100..0x1_0000 => tagged(to, 0xcd, &(value as u16).to_be_bytes()),
        0x1_0000..0x1_0000_0000 => tagged(to, 0xce, &(value as u32).to_be_bytes()),
        _ => tagged(to, 0xcf, &value.to_be_bytes()),
    }
}

pub fn float(to: &mut Bytes, value: f64) {
    tagged(to, 0xcb, &value.to_be_bytes());
}

pub fn str(to: &mut Bytes, value: &str) {
    header(to, value.len(), Some((0xa0, 32)), [Some(0xd9), Some(0xda), Some(0xdb)]);
    to.extend_from_slice(value.as_bytes());
}

pub fn bin(to: &mut Bytes, value: &[u8]) {
    header(to, value.len(), None, [Some(0xc4), Some(0xc5), Some(0xc6)]);
    to.extend_from_slice(value);
}

/// What begins an array of so many elements, which are to follow.
pub fn array(to: &mut Bytes, len: usize) {
    header(to, len, Some((0x90, 16)), [None, Some(0xdc), Some(0xdd)]);
}

/// What begins a map of so many pairs, which are to follow.
pub fn map(to: &mut Bytes, len: usize) {
    header(to, len, Some((0x80, 16)), [None, Some(0xde), Some(0xdf)]);
}

/// The same in two bytes whatever it is: so msgspec writes a struct that may have more than 15.
pub fn wide_map(to: &mut Bytes, len: usize) {
    tagged(to, 0xde, &(len as u16).to_be_bytes());
}

/// A length: in the tag itself where it is below `short.1`, else behind one of the tags for 1, 2
/// and 4 bytes.
fn header(to: &mut Bytes, len: usize, short: Option<(u8, usize)>, tags: [Option<u8>; 3]) {
    if let Some((tag, below)) = short
        && len < below
    {
        return to.push(tag | len as u8);
    }
    match (tags, len) {
        ([Some(tag), _, _], 0..0x100) => tagged(to, tag, &[len as u8]),
        ([_, Some(tag), _], 0..0x1_0000) => tagged(to, tag, &(len as u16).to_be_bytes()),
        ([_, _, Some(tag)], _) => tagged(to, tag, &(len as u32).to_be_bytes()),
        _ => unreachable!("each kind has a tag for 2 and for 4 bytes"),
    }
}

fn tagged(to: &mut Bytes, tag: u8, value: &[u8]) {
    to.push(tag);
    to.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;

    fn written(write: impl FnOnce(&mut Bytes)) -> Bytes {
        let mut to = Bytes::new();
        write(&mut to);
        to
    }

    #[test]
    fn an_integer_is_read_as_it_was_written_and_is_as_short_as_it_can_be() {
        let edges = [7, 8, 15, 16, 31, 32, 63, 64].map(|bits| 1_i128 << bits);
        let near = edges.iter().flat_map(|edge| [-edge - 1, -edge, -edge + 1, edge - 1, *edge]);
        let range = i128::from(i64::MIN)..=i128::from(u64::MAX);
        for value in near.chain([0, 1, -1, -32, -33]).filter(|value| range.contains(value)) {
            let bytes = written(|to| int(to, value));
            assert_eq!(Reader::new(&bytes).int().unwrap(), value);
            let expected = match value {
                -32..128 => 1,
                -128..256 => 2,
                -32_768..65_536 => 3,
                -2_147_483_648..4_294_967_296 => 5,
                _ => 9,
            };
            assert_eq!(bytes.len(), expected, "{value}");
        }
    }

    #[test]
    fn a_string_and_bytes_of_any_length_are_read_as_they_were_written() {
        for len in [0, 1, 31, 32, 255, 256, 65_535, 65_536] {
            let text = "x".repeat(len);
            let bytes = written(|to| str(to, &text));
            assert_eq!(Reader::new(&bytes).str().unwrap(), text);
            let bytes = written(|to| bin(to, text.as_bytes()));
            assert_eq!(Reader::new(&bytes).bin().unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn a_map_begins_with_its_length() {
        for len in [0, 15, 16, 65_535, 65_536] {
            let mut bytes = written(|to| map(to, len));
            bytes.resize(bytes.len() + 2 * len, 0);
            assert_eq!(Reader::new(&bytes).map().unwrap(), len);
        }
    }

    #[test]
    fn a_wide_map_is_as_long_as_it_says() {
        for len in [0, 15, 16, 65_535] {
            let mut bytes = written(|to| wide_map(to, len));
            assert_eq!(bytes.len(), 3);
            bytes.resize(bytes.len() + 2 * len, 0);
            assert_eq!(Reader::new(&bytes).map().unwrap(), len);
        }
    }

    #[test]
    fn an_array_begins_with_its_length() {
        for len in [0, 15, 16, 255, 256, 65_535, 65_536] {
            let mut bytes = written(|to| array(to, len));
            assert_eq!(
                bytes.len(),
                if len < 16 {
                    1
                } else if len < 65_536 {
                    3
                } else {
                    5
                }
            );
            bytes.resize(bytes.len() + len, 0);
            assert_eq!(Reader::new(&bytes).array().unwrap(), len);
        }
    }
}
