//! The plain msgpack body of `POST /query` and `/query_by_hash`: tokens or hashes as one `bin`.
//!
//! Anything unusual gives None, and the caller then parses in full; so what is accepted here must
//! mean the same there, in `query_api/http/requests/queries.py`.

use msgpack::Reader;

use crate::limits::BLOCK_SIZE_MAX;
use crate::query_fields::{Names, PackedQuery, whole_values};

/// More fields than there are.
const FIELDS_MAX: usize = 15;

pub fn read_query(body: &[u8], by_hash: bool) -> Option<PackedQuery<'_>> {
    let content_name = if by_hash { "seq_hashes" } else { "token_ids" };
    let mut reader = Reader::new(body);
    let mut names = Names::default();
    let (mut block_size, mut content) = (None, None);
    let fields = reader.map().ok().filter(|&fields| fields <= FIELDS_MAX)?;
    for _ in 0..fields {
        let name = reader.str().ok()?;
        if name == "block_size" {
            let size = reader.int().ok()?;
            let is_usual = (1..=i128::from(BLOCK_SIZE_MAX)).contains(&size);
            is_usual.then_some(())?;
            block_size.replace(size as u32).is_none().then_some(())?;
        } else if name == content_name {
            let values = whole_values(reader.bin().ok()?, by_hash)?;
            content.replace(values).is_none().then_some(())?;
        } else {
            names.set(name, reader.str().ok()?)?;
        }
    }
    reader.end().ok()?;
    names.into_query(block_size?, content?)
}

#[cfg(test)]
mod tests {
    use msgpack::write;

    use super::*;

    fn names() -> Vec<(&'static str, &'static str)> {
        let names = ["model", "lora_name", "tenant_id", "instance_id", "cache_salt"];
        names.into_iter().zip(["m", "l", "t", "i", "s"]).collect()
    }

    fn body(names: &[(&str, &str)], numbers: &[(&str, i128)], bytes: &[(&str, &[u8])]) -> Vec<u8> {
        let mut to = Vec::new();
        write::map(&mut to, names.len() + numbers.len() + bytes.len());
        for (name, value) in bytes {
            write::str(&mut to, name);
            write::bin(&mut to, value);
        }
        for (name, value) in numbers {
            write::str(&mut to, name);
            write::int(&mut to, *value);
        }
        for (name, value) in names {
            write::str(&mut to, name);
            write::str(&mut to, value);
        }
        to
    }

    #[test]
    fn every_field_is_read() {
        for (content, by_hash) in [("token_ids", false), ("seq_hashes", true)] {
            for size in [1, 16, 65_536] {
                let body = body(&names(), &[("block_size", size)], &[(content, &[7; 16])]);
                let query = read_query(&body, by_hash).expect("a plain body");
                let texts = [query.model, query.lora_name, query.tenant_id, query.cache_salt];
                assert_eq!(texts, ["m", "l", "t", "s"]);
                assert_eq!((query.instance_id, i128::from(query.block_size)), (Some("i"), size));
                assert_eq!(query.content, [7; 16]);
                assert!(read_query(&body, !by_hash).is_none());
                assert!(read_query(&body[..body.len() - 1], by_hash).is_none());
                assert!(read_query(&[&body[..], &[0xc0]].concat(), by_hash).is_none());
            }
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_caller() {
        let (size, tokens) = (("block_size", 16), ("token_ids", &[7; 16][..]));
        let twice = [&names()[..], &[("model", "m")]].concat();
        for body in [
            body(&names(), &[size, size], &[tokens]),
            body(&names(), &[size], &[tokens, tokens]),
            body(&names(), &[], &[tokens]),
            body(&names(), &[size], &[]),
            body(&names()[1..], &[size], &[tokens]),
            body(&names(), &[("block_size", 0)], &[tokens]),
            body(&names(), &[("block_size", 65_537)], &[tokens]),
            body(&names(), &[size], &[("token_ids", &[7; 15])]),
            body(&names(), &[size], &[("tokens", &[7; 16])]),
            body(&twice, &[size], &[tokens]),
        ] {
            assert!(read_query(&body, false).is_none(), "{body:?}");
        }
    }
}
