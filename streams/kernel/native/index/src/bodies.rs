//! The plain msgpack body of `POST /query` and `/query_by_hash`: tokens or hashes as one `bin`.
//!
//! Anything unusual gives None, and the caller then parses in full; so what is accepted here must
//! mean the same there, in `query_api/http/requests/queries.py`.

use msgpack::Reader;

use crate::limits::{BLOCK_SIZE_MAX, NAME_BYTES_MAX, QUERY_TOKENS_MAX};
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

/// More fields than there are.
const FIELDS_MAX: usize = 15;

pub fn read_query(body: &[u8], by_hash: bool) -> Option<PackedQuery<'_>> {
    let content_name = if by_hash { "seq_hashes" } else { "token_ids" };
    let width = if by_hash { 8 } else { 4 };
    let mut reader = Reader::new(body);
    let [mut model, mut lora_name, mut tenant_id, mut instance_id, mut cache_salt] = [None; 5];
    let (mut block_size, mut content) = (None, None);
    let fields = reader.map().ok().filter(|&fields| fields <= FIELDS_MAX)?;
    for _ in 0..fields {
        let name = reader.str().ok()?;
        let text = match name {
            "model" => &mut model,
            "lora_name" => &mut lora_name,
            "tenant_id" => &mut tenant_id,
            "instance_id" => &mut instance_id,
            "cache_salt" => &mut cache_salt,
            "block_size" => {
                let size = reader.int().ok()?;
                let is_usual = (1..=i128::from(BLOCK_SIZE_MAX)).contains(&size);
                is_usual.then_some(())?;
                block_size.replace(size as u32).is_none().then_some(())?;
                continue;
            }
            _ if name == content_name => {
                let packed = reader.bin().ok()?;
                let is_usual =
                    packed.len().is_multiple_of(width) && packed.len() / width <= QUERY_TOKENS_MAX;
                is_usual.then_some(())?;
                content.replace(packed).is_none().then_some(())?;
                continue;
            }
            _ => return None,
        };
        let value = reader.str().ok().filter(|value| value.len() <= NAME_BYTES_MAX)?;
        text.replace(value).is_none().then_some(())?;
    }
    reader.end().ok()?;
    Some(PackedQuery {
        model: model.filter(|name| !name.is_empty())?,
        lora_name: lora_name.unwrap_or_default(),
        tenant_id: tenant_id.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_TENANT),
        instance_id,
        block_size: block_size?,
        cache_salt: cache_salt.unwrap_or_default(),
        content: content?,
    })
}
