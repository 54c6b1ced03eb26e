//! Tells stored events that only report hits. `bridge/wire/hit_reports.py` is the specification.

use hashbrown::HashMap;
use msgpack::{Reader, Result, write};

/// What a repeat counts beyond 1 where the same batch goes on behind it.
const CONTINUED: usize = 3;
/// A prompt of one block is computed again whatever of it is cached.
const REPEAT_BLOCKS: usize = 2;

/// Two groups may have the same hash: no block of one is one of the other.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A block: its hash, and its group.
type Key = u64;

pub struct Limits {
    /// Of those that are remembered, and of those that are taken back.
    pub blocks: usize,
    /// From which on the publisher reports hits.
    pub score: usize,
    /// Prompts that repeat nothing, by which the score falls by 1.
    pub fresh: usize,
}

/// Events of which some report hits: as they are to be written, how many were added, and how many
/// were marked.
pub struct Marked {
    pub run: Vec<u8>,
    pub added: usize,
    pub reports: usize,
}

pub struct HitReports {
    pub are_known: bool,
    /// Whether some of what was announced again is no longer remembered.
    pub has_left_out: bool,
    limits: Limits,
    /// Blocks that were announced and not removed, with the batch that did so first.
    announced: HashMap<Key, i64>,
    /// Group and hashes of what was counted twice.
    repeats: Vec<(i128, Vec<u8>)>,
    repeated: usize,
    score: usize,
    /// Chains that begin a prompt and repeat nothing, since the score fell.
    fresh: usize,
    /// Of the repeats in this batch, the last block.
    ends: Vec<Key>,
    sequence: i64,
}

impl HitReports {
    pub fn new(are_known: bool, limits: Limits) -> Self {
        Self {
            are_known,
            has_left_out: false,
            limits,
            announced: HashMap::new(),
            repeats: Vec::new(),
            repeated: 0,
            score: 0,
            fresh: 0,
            ends: Vec::new(),
            sequence: -1,
        }
    }

    /// The events as they are to be written; None for as they are.
    pub fn take(&mut self, run: &[u8]) -> Result<Option<Marked>> {
        let mut reader = Reader::new(run);
        if self.are_known {
            return mark_rest(&mut reader, run, 0);
        }
        while !reader.rest().is_empty() {
            let event = Event::read(&mut reader)?;
            self.look(&event);
            if self.score < self.limits.score {
                continue;
            }
            let mut before = run[..reader.at()].to_vec();
            for (group, hashes) in &self.repeats {
                write_removed(&mut before, event.sequence, hashes, *group);
            }
            let added = self.repeats.len();
            self.begin_anew();
            self.are_known = true;
            let at = reader.at();
            let rest = mark_rest(&mut reader, run, at)?;
            let reports = rest.as_ref().map_or(0, |marked| marked.reports);
            before.extend_from_slice(rest.as_ref().map_or(&run[at..], |marked| &marked.run));
            return Ok((added > 0 || reports > 0).then_some(Marked {
                run: before,
                added,
                reports,
            }));
        }
        Ok(None)
    }

    /// The same of a part of a large batch.
    pub fn mark(&mut self, run: &[u8]) -> Result<Option<Marked>> {
        if self.are_known {
            return mark_rest(&mut Reader::new(run), run, 0);
        }
        self.has_left_out |= !self.repeats.is_empty();
        self.begin_anew();
        Ok(None)
    }

    /// Events are missing between what was taken and what comes.
    pub fn forget(&mut self) {
        self.has_left_out = false;
        self.begin_anew();
    }

    fn begin_anew(&mut self) {
        self.announced.clear();
        self.repeats.clear();
        self.ends.clear();
        (self.repeated, self.score, self.fresh) = (0, 0, 0);
    }

    fn look(&mut self, event: &Event) {
        if event.sequence != self.sequence {
            self.sequence = event.sequence;
            self.ends.clear();
        }
        match event.kind {
            Kind::Cleared if event.is_of_gpu => self.forget(),
            Kind::Removed if event.is_of_gpu && !self.announced.is_empty() => {
                for key in event.keys() {
                    self.announced.remove(&key);
                }
            }
            Kind::Stored if event.is_chain() => self.look_at_chain(event),
            _ => {}
        }
    }

    fn look_at_chain(&mut self, event: &Event) {
        let blocks = event.hashes.len();
        if let Some(parent) = event.parent {
            let parent = key_of(event.group, parent);
            if let Some(at) = self.ends.iter().position(|&end| end == parent) {
                self.ends.swap_remove(at);
                self.score += CONTINUED;
            }
        } else if blocks > 0 && event.keys().all(|key| self.announced.contains_key(&key)) {
            if self.repeated + blocks <= self.limits.blocks {
                self.repeated += blocks;
                self.repeats.push((event.group, event.hashes.as_flattened().to_vec()));
            } else {
                self.has_left_out = true;
            }
            if blocks >= REPEAT_BLOCKS && event.keys().all(|key| self.is_known(key)) {
                self.score += 1;
                if let Some(end) = event.keys().last()
                    && !self.ends.contains(&end)
                {
                    self.ends.push(end);
                }
            }
            return;
        } else if blocks >= REPEAT_BLOCKS {
            self.note_fresh();
        }
        if self.announced.len() + blocks > self.limits.blocks {
            self.announced.clear();
        }
        if blocks <= self.limits.blocks {
            for key in event.keys() {
                self.announced.entry(key).or_insert(event.sequence);
            }
        }
    }

    fn note_fresh(&mut self) {
        self.fresh += 1;
        if self.fresh < self.limits.fresh {
            return;
        }
        self.fresh = 0;
        self.score = self.score.saturating_sub(1);
        if self.score == 0 {
            self.has_left_out |= !self.repeats.is_empty();
            self.repeats.clear();
            self.repeated = 0;
        }
    }

    /// Whether an earlier batch has announced it.
    fn is_known(&self, key: Key) -> bool {
        self.announced.get(&key).is_some_and(|&since| since != self.sequence)
    }
}

#[derive(PartialEq)]
enum Kind {
    Stored,
    Removed,
    Cleared,
}

/// What matters here of an event, and where in the run it is.
struct Event<'a> {
    kind: Kind,
    sequence: i64,
    hashes: &'a [[u8; 8]],
    parent: Option<u64>,
    group: i128,
    is_of_gpu: bool,
    has_tokens: bool,
    /// Whether it is reported, by hashes alone, or of a group that forms no prefix.
    is_other: bool,
    fields: usize,
    /// Where the fields begin, and where the one that says that it is reported would stand.
    begin: usize,
    place: usize,
}

impl<'a> Event<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self> {
        let fields = reader.map()?;
        let mut event = Self {
            kind: Kind::Stored,
            sequence: 0,
            hashes: &[],
            parent: None,
            group: 0,
            is_of_gpu: true,
            has_tokens: false,
            is_other: false,
            fields,
            begin: reader.at(),
            place: 0,
        };
        for _ in 0..fields {
            let at = reader.at();
            match reader.str_bytes()? {
                b"type" => {
                    event.kind = match reader.str_bytes()? {
                        b"stored" => Kind::Stored,
                        b"removed" => Kind::Removed,
                        _ => Kind::Cleared,
                    }
                }
                b"sequence" => event.sequence = reader.int()? as i64,
                b"hashes" => event.hashes = reader.bin()?.as_chunks().0,
                b"tokens" => event.has_tokens = !reader.bin()?.is_empty(),
                b"parent" => {
                    event.parent = if reader.nil()? { None } else { Some(reader.int()? as u64) }
                }
                b"medium" => event.is_of_gpu &= reader.str_bytes()? == b"GPU",
                b"shared" => event.is_of_gpu &= !reader.bool()?,
                b"group" => event.group = reader.int()?,
                b"spec_kind" => event.is_other |= !forms_prefix(reader.str_bytes()?),
                b"by_hash" | b"reported" => event.is_other |= reader.bool()?,
                b"token_hashes" => event.is_other |= !reader.bin()?.is_empty(),
                b"extra_keys" => {
                    reader.skip()?;
                    event.place = at;
                    continue;
                }
                _ => reader.skip()?,
            }
        }
        if event.place == 0 {
            event.place = reader.at();
        }
        Ok(event)
    }

    /// Whether it stores blocks by their tokens, in a group that forms a prefix, on the GPU.
    fn is_chain(&self) -> bool {
        self.kind == Kind::Stored && self.has_tokens && !self.is_other && self.is_of_gpu
    }

    fn keys(&self) -> impl Iterator<Item = Key> + 'a {
        let group = self.group;
        self.hashes.iter().map(move |hash| key_of(group, u64::from_le_bytes(*hash)))
    }
}

fn key_of(group: i128, hash: u64) -> Key {
    hash ^ (group as u64).wrapping_mul(SPREAD)
}

/// Of `schemas/events.py`.
fn forms_prefix(spec_kind: &[u8]) -> bool {
    !matches!(
        spec_kind,
        b"sliding_window"
            | b"sliding_window_mla"
            | b"chunked_local_attention"
            | b"mamba"
            | b"encoder_only_attention"
            | b"cross_attention"
    )
}

/// The events from there on, those that begin a prompt as reports; None where none does.
fn mark_rest(reader: &mut Reader, run: &[u8], from: usize) -> Result<Option<Marked>> {
    let (mut marked, mut done) = (Marked { run: Vec::new(), added: 0, reports: 0 }, from);
    while !reader.rest().is_empty() {
        let start = reader.at();
        let event = Event::read(reader)?;
        if event.parent.is_some() || !event.is_chain() {
            continue;
        }
        marked.run.extend_from_slice(&run[done..start]);
        write::wide_map(&mut marked.run, event.fields + 1);
        marked.run.extend_from_slice(&run[event.begin..event.place]);
        write::str(&mut marked.run, "reported");
        write::bool(&mut marked.run, true);
        done = event.place;
        marked.reports += 1;
    }
    if marked.reports == 0 {
        return Ok(None);
    }
    marked.run.extend_from_slice(&run[done..]);
    Ok(Some(marked))
}

fn write_removed(to: &mut Vec<u8>, sequence: i64, hashes: &[u8], group: i128) {
    write::map(to, if group == 0 { 3 } else { 4 });
    write::str(to, "type");
    write::str(to, "removed");
    write::str(to, "sequence");
    write::int(to, i128::from(sequence));
    write::str(to, "hashes");
    write::bin(to, hashes);
    if group != 0 {
        write::str(to, "group");
        write::int(to, group);
    }
}
