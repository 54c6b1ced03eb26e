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
