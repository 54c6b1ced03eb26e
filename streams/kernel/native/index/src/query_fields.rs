//! The fields of a plain query, whichever way they came: in a msgpack body, or in the URL.

use crate::limits::{NAME_BYTES_MAX, QUERY_TOKENS_MAX};
use crate::scan::DEFAULT_TENANT;

pub struct PackedQuery<'a> {
    pub model: &'a str,
    pub lora_name: &'a str,
    pub tenant_id: &'a str,
    pub instance_id: Option<&'a str>,
    pub block_size: u32,
    pub cache_salt: &'a str,
    /// Tokens, u32 LE, or hashes, u64 LE.
    pub content: &'a [u8],
}

/// The names that were given, each at most once.
#[derive(Default)]
pub struct Names<'a> {
    model: Option<&'a str>,
    lora_name: Option<&'a str>,
    tenant_id: Option<&'a str>,
    instance_id: Option<&'a str>,
    cache_salt: Option<&'a str>,
}

impl<'a> Names<'a> {
    /// None where there is no such field, where it was given before, and where the value is longer
    /// than a name may be.
    pub fn set(&mut self, field: &str, value: &'a str) -> Option<()> {
        let place = match field {
            "model" => &mut self.model,
            "lora_name" => &mut self.lora_name,
            "tenant_id" => &mut self.tenant_id,
            "instance_id" => &mut self.instance_id,
            "cache_salt" => &mut self.cache_salt,
            _ => return None,
        };
        (value.len() <= NAME_BYTES_MAX).then_some(())?;
        place.replace(value).is_none().then_some(())
    }

    /// None where no model was given. A tenant that was not given, or is empty, is the default.
    pub fn into_query(self, block_size: u32, content: &'a [u8]) -> Option<PackedQuery<'a>> {
        Some(PackedQuery {
            model: self.model.filter(|name| !name.is_empty())?,
            lora_name: self.lora_name.unwrap_or_default(),
            tenant_id: self.tenant_id.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_TENANT),
            instance_id: self.instance_id,
            block_size,
            cache_salt: self.cache_salt.unwrap_or_default(),
            content,
        })
    }
}

/// The bytes, if they are a number of whole tokens or hashes that a query may have.
pub fn whole_values(content: &[u8], by_hash: bool) -> Option<&[u8]> {
    let width = if by_hash { 8 } else { 4 };
    let is_usual = content.len().is_multiple_of(width) && content.len() / width <= QUERY_TOKENS_MAX;
    is_usual.then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_so_many_whole_values() {
        let content = vec![0; 8 * QUERY_TOKENS_MAX + 8];
        for (by_hash, width) in [(false, 4), (true, 8)] {
            let most = width * QUERY_TOKENS_MAX;
            for len in [0, width, most] {
                let values = whole_values(&content[..len], by_hash);
                assert_eq!(values.map(<[u8]>::len), Some(len));
            }
            for len in [1, width - 1, width + 1, most + width] {
                assert!(whole_values(&content[..len], by_hash).is_none(), "{len} bytes");
            }
        }
    }
}
