//! What stands in the URL of a plain query: `hits_only`, and where the body is octets, all that is
//! not in it.
//!
//! Anything unusual gives None, and the caller then reads it in full; so what is accepted here must
//! mean the same there, in `query_api/http/requests`.

use crate::limits::BLOCK_SIZE_MAX;
use crate::query_fields::{Names, PackedQuery, whole_values};

/// More parameters than there are.
const PARAMETERS_MAX: usize = 16;

/// Whether only instances that hold something are wanted, where the URL asks for nothing else.
pub fn read_option(url_query: &[u8]) -> Option<bool> {
    match url_query {
        b"" => Some(false),
        b"hits_only=1" => Some(true),
        _ => None,
    }
}

/// The query whose body is tokens, u32 LE, or hashes, u64 LE; and whether only instances that hold
/// something are wanted.
pub fn read_octets<'a>(
    url_query: &'a [u8],
    body: &'a [u8],
    by_hash: bool,
) -> Option<(PackedQuery<'a>, bool)> {
    let content = whole_values(body, by_hash)?;
    // As they stand: nothing that a URL writes otherwise, or that begins a fragment.
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b'+' | b'#');
    url_query.iter().all(is_plain).then_some(())?;
    let text = std::str::from_utf8(url_query).ok()?;
    let mut names = Names::default();
    let (mut block_size, mut hits_only) = (None, None);
    for (count, pair) in text.split('&').enumerate() {
        let (name, value) = pair.split_once('=')?;
        (count < PARAMETERS_MAX).then_some(())?;
        let number = match name {
            "block_size" => &mut block_size,
            "hits_only" => &mut hits_only,
            _ => {
                names.set(name, value)?;
                continue;
            }
        };
        number.replace(value).is_none().then_some(())?;
    }
    let hits_only = match hits_only {
        None | Some("0") => false,
        Some("1") => true,
        Some(_) => return None,
    };
    Some((names.into_query(read_block_size(block_size?)?, content)?, hits_only))
}

fn read_block_size(digits: &str) -> Option<u32> {
    let is_number = (1..=9).contains(&digits.len()) && digits.bytes().all(|d| d.is_ascii_digit());
    let size = is_number.then(|| digits.parse::<u32>().ok())??;
    (1..=BLOCK_SIZE_MAX).contains(&u64::from(size)).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::NAME_BYTES_MAX;
    use crate::scan::DEFAULT_TENANT;

    const BODY: [u8; 16] = [7; 16];

    #[test]
    fn what_is_plain_is_read() {
        let url = b"model=m/7&block_size=16&tenant_id=&instance_id=a&lora_name=l&cache_salt=s=s";
        let (query, hits_only) = read_octets(url, &BODY, false).unwrap();
        assert_eq!((query.model, query.block_size, query.tenant_id), ("m/7", 16, DEFAULT_TENANT));
        assert_eq!((query.instance_id, query.lora_name), (Some("a"), "l"));
        assert_eq!((query.cache_salt, query.content), ("s=s", &BODY[..]));
        assert!(!hits_only);
        assert!(read_octets(b"hits_only=1&block_size=1&model=m", b"", true).unwrap().1);
        assert_eq!(read_option(b"hits_only=1"), Some(true));
        assert_eq!(read_option(b""), Some(false));
    }

    #[test]
    fn what_is_not_is_left_to_the_caller() {
        for url in [
            "",
            "model=m",
            "block_size=16",
            "model=&block_size=16",
            "model=m&block_size=0",
            "model=m&block_size=65537",
            "model=m&block_size=1234567890",
            "model=m&block_size=0000000016",
            "model=m&block_size=+1",
            "model=m&block_size=16&",
            "model=m&block_size=16&detail=1",
            "model=m&block_size=16&model=m",
            "model=m&block_size=16&hits_only=true",
            "model=m%20&block_size=16",
            "model=m#&block_size=16",
            "model=m\u{e9}&block_size=16",
        ] {
            assert!(read_octets(url.as_bytes(), &BODY, false).is_none(), "{url}");
        }
        let url = b"model=m&block_size=16";
        assert!(read_octets(url, &BODY[..13], false).is_none());
        assert!(read_octets(url, &BODY[..12], true).is_none());
        let long = format!("model={}&block_size=16", "m".repeat(NAME_BYTES_MAX + 1));
        assert!(read_octets(long.as_bytes(), &BODY, false).is_none());
        assert_eq!(read_option(b"hits_only=0"), None);
    }
}
