//! Batches that follow on one another, packed together: what is spent on each message weighs most
//! where engines send few blocks in each.

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use crate::batches::{Batch, BatchPacker};

/// Batches that follow on one another, together.
pub struct PackedRun<'a> {
    /// The XXH3-64 of each one's payload.
    pub digests: Vec<u64>,
    /// Of the last of them.
    pub engine_time: f64,
    /// As of one batch; none of them says that the publisher holds nothing any more.
    pub events: usize,
    pub run: Vec<u8>,
    pub lora_names: Vec<Cow<'a, str>>,
    pub media: u32,
    pub first_blocks: Vec<u8>,
}

impl BatchPacker {
    /// As many of the first batches as are plain, together: of consecutive numbers, none of which
    /// clears, and all of them within so many bytes. What is left is for `pack`. Cost O(bytes).
    ///
    /// `messages` are the batches' numbers, of eight bytes as they were sent, and their payloads.
    pub fn pack_run<'a>(
        &self,
        messages: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        sequence: u64,
        bytes_max: usize,
    ) -> PackedRun<'a> {
        let mut batch = Batch::new(self, 0, bytes_max);
        let (mut digests, mut last_time, mut all_events) = (Vec::new(), 0.0, 0);
        for (number, payload) in messages {
            let expected = sequence + digests.len() as u64;
            if number != expected.to_be_bytes() {
                break;
            }
            let (run, named, media) = (batch.run.len(), batch.named.len(), batch.media);
            let first_blocks = batch.first_blocks.len();
            let read = batch.read(payload, expected).filter(|_| !batch.clears);
            let Some((engine_time, events)) = read else {
                batch.take_back(run, named);
                batch.media = media;
                batch.first_blocks.truncate(first_blocks);
                break;
            };
            last_time = engine_time;
            all_events += events;
            digests.push(xxh3_64(payload));
        }
        let Batch { run, named, media, first_blocks, .. } = batch;
        let (engine_time, events) = (last_time, all_events);
        PackedRun { digests, engine_time, events, run, lora_names: named, media, first_blocks }
    }
}

#[cfg(test)]
mod tests {
    use msgpack::write;

    use super::*;
    use crate::batches::tests::{batch, numbers, packer};

    fn parts_of(payload: &[u8], packer: &BatchPacker, count: u64) -> Vec<u8> {
        (0..count).flat_map(|at| packer.pack(payload, 9 + at).unwrap().run).collect()
    }

    #[test]
    fn plain_batches_are_packed_together_up_to_what_is_not_plain() {
        let (packer, clears) = (packer(), batch());
        let mut plain = Vec::new();
        write::array(&mut plain, 2);
        write::float(&mut plain, 2.5);
        write::array(&mut plain, 1);
        write::array(&mut plain, 2);
        write::str(&mut plain, "BlockRemoved");
        numbers(&mut plain, &[7, 8]);
        let packed = |numbers: &[u64], payloads: &[&[u8]], bytes_max| {
            let numbers: Vec<_> = numbers.iter().map(|number| number.to_be_bytes()).collect();
            let messages = numbers.iter().map(|number| &number[..]).zip(payloads.iter().copied());
            let run = packer.pack_run(messages, 9, bytes_max);
            assert_eq!(run.run, parts_of(&plain, &packer, run.digests.len() as u64));
            assert_eq!(run.events, run.digests.len());
            assert!(run.digests.iter().all(|&digest| digest == xxh3_64(&plain)));
            (run.digests.len(), run.engine_time)
        };
        let all: [&[u8]; 3] = [&plain, &plain, &plain];
        assert_eq!(packed(&[9, 10, 11], &all, 1000), (3, 2.5));
        assert_eq!(packed(&[9, 11, 12], &all, 1000), (1, 2.5));
        assert_eq!(packed(&[8, 9, 10], &all, 1000), (0, 0.0));
        assert_eq!(packed(&[9, 10, 11], &[&plain, &clears, &plain], 1000), (1, 2.5));
        assert_eq!(packed(&[9, 10, 11], &[&plain, &plain, &plain[..9]], 1000), (2, 2.5));
        let two = parts_of(&plain, &packer, 2).len();
        assert_eq!(packed(&[9, 10, 11], &all, two), (2, 2.5));
        assert_eq!(packed(&[9, 10, 11], &all, two - 1), (1, 2.5));
    }
}
