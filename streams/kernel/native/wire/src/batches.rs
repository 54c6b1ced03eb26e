//! Whole batches: what an engine sent, to the canonical events of a record, in one pass.
//!
//!     batch   [ts, events, data_parallel_rank, ...] | {ts, events, data_parallel_rank, ...}
//!     event   [tag, field, ...] | {"type": tag, field: ...}
//!
//! What comes out is, byte for byte, what `bridge/wire/` makes of the batch. Where anything is bad,
//! or of a form that no engine sends, nothing comes out: the specification then says what is wrong
//! and what can be used, so that one source words each error.

use std::borrow::Cow;
use std::collections::HashSet;

use msgpack::{Reader, write};

use crate::arrays::{append_hashes, append_pairs_or_tokens};
use crate::extra_keys::ExtraKeys;
use crate::layout::{Field, Fields, Kind, Layout};

/// Deeper values of fields that are ignored are left to the specification.
const IGNORED_DEPTH_MAX: usize = 16;

const GPU: &str = "GPU";
const CPU: &str = "CPU";
const DISK: &str = "DISK";
const REMOTE: &str = "REMOTE";
/// Whose blocks are sets: of `schemas/events.py`.
const OWNERS: [&str; 1] = ["kvcr"];
/// Among media: the blocks are of all instances.
const SHARES: u32 = 1 << 7;
/// Likewise: several blocks of another owner in one event.
const OWNED_CHUNKS: u32 = 1 << 9;
/// Likewise: nothing says how many tokens they have.
const UNSIZED: u32 = 1 << 12;
/// Likewise: blocks of the CPU by their tokens, without extra keys; and that some are removed from
/// there. The same where it is spelled in small letters.
const DESCRIBED: u32 = 1 << 14;
const TAKEN_BACK: u32 = 1 << 15;
const LOWER_DESCRIBED: u32 = 1 << 17;
const LOWER_TAKEN_BACK: u32 = 1 << 18;
/// Likewise: on a disk, without extra keys; and from its names to that blocks are removed there.
const DISK_STORED: u32 = 1 << 19;
const DISK_TAKEN_BACK_SHIFT: u32 = 18;
/// Likewise: of such as all instances hold; and of such as name an owner.
const SHARED_TAKEN_BACK: u32 = 1 << 25;
const OWNED_ON_CPU: u32 = 1 << 27;
const OWNED_ON_CPU_TAKEN_BACK: u32 = 1 << 28;
const OWNED_ON_DISK: u32 = 1 << 29;
const OWNED_ON_DISK_TAKEN_BACK: u32 = 1 << 30;
/// Attention windows by which a rule is known, in tokens.
const WINDOW_MIN: i128 = 2;
const WINDOW_MAX: i128 = (1 << 31) - 1;
const REUSED: &str = "REUSED";
/// CPython's hash(()), by which SGLang up to 0.5.0 says that nothing is before a page.
const NOTHING_BEFORE: u64 = 5_740_354_900_026_072_187;

/// The bounds of `schemas/limits.py` on a batch.
pub struct Limits {
    pub batch_events: usize,
    pub event_blocks: usize,
    pub block_size: i128,
    pub group: i128,
    pub name_bytes: usize,
    pub lora_names: usize,
    pub packed_bytes: usize,
}

/// A batch whose events can all be used.
pub struct Packed<'a> {
    /// The engine's own timestamp, Unix seconds; finite.
    pub engine_time: f64,
    pub events: usize,
    /// Whether one of them says that the publisher holds nothing any more.
    pub clears: bool,
    /// The events one after the other, as a record has them.
    pub run: Vec<u8>,
    /// The adapters that they name, each once.
    pub lora_names: Vec<Cow<'a, str>>,
    /// By what names of media they store, as `bridge.wire.fields` numbers them.
    pub media: u32,
    /// What the first blocks of prompts are called, u64 LE.
    pub first_blocks: Vec<u8>,
}

/// Packs one publisher's batches.
pub struct BatchPacker {
    pub arrays: Layout,
    pub maps: Layout,
    pub dp_rank: i128,
    /// Of the publisher's registration; "" for none.
    pub lora_name: String,
    /// What chains from the first block of a prompt on are marked as.
    pub roots: Roots,
    /// Whether the chains that hang on a block, or are on other tiers, are marked, too.
    pub all_chains: bool,
    /// Whether events without extra keys name their blocks alone, where these are not on the GPU of
    /// their instance.
    pub scopeless_tiers: bool,
    /// Whether what an engine needs of sparse groups is as vLLM needs it.
    pub has_rules: bool,
    pub limits: Limits,
}

/// See `bridge.wire.hit_reports`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Roots {
    Copies,
    Reported,
    Undecided,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Array,
    Map,
}

enum LoraId<'a> {
    Number(i128),
    Text(&'a str),
}

/// One event's fields as they are read; hashes, tokens and extra keys are in the batch's buffers.
struct Event<'a> {
    /// By the fields' places; maps may repeat one.
    seen: u32,
    has_hashes: bool,
    parent: Option<u64>,
    block_size: u64,
    lora_id: Option<LoraId<'a>>,
    lora_name: &'a str,
    names_adapter: bool, // it has the field, whatever is there
    medium: &'static str,
    /// Its name, likewise, and whether that is spelled `cpu`.
    media: u32,
    is_lower: bool,
    shared: bool,
    is_owned: bool,
    is_known_owner: bool,
    reported: bool,
    /// Whether the event itself says whether its blocks were there before.
    has_origin: bool,
    group: u64,
    spec_kind: &'a str,
    /// The attention window of its group, in tokens, where it is of use.
    window: Option<u64>,
    cache_salt: &'a str,
    /// Where its rows begin.
    extra_keys_at: Option<usize>,
    has_extra_keys: bool,
}

impl Event<'_> {
    /// Whether its blocks are a set of an owner that is known: see `StoredBlocks.owned`.
    fn has_set(&self) -> bool {
        self.is_known_owner && self.medium != GPU && !self.shared
    }
}

impl Default for Event<'_> {
    fn default() -> Self {
        Self {
            seen: 0,
            has_hashes: false,
            parent: None,
            block_size: 0,
            lora_id: None,
            lora_name: "",
            names_adapter: false,
            medium: GPU,
            media: 0,
            is_lower: false,
            shared: false,
            is_owned: false,
            is_known_owner: false,
            reported: false,
            has_origin: false,
            group: 0,
            spec_kind: "",
            window: None,
            cache_salt: "",
            extra_keys_at: None,
            has_extra_keys: false,
        }
    }
}

/// A batch under way.
pub(crate) struct Batch<'a, 'p> {
    packer: &'p BatchPacker,
    reader: Reader<'a>,
    form: Option<Form>,
    sequence: u64,
    pub(crate) clears: bool,
    pub(crate) run: Vec<u8>,
    run_bytes_max: usize,
    lora_names: HashSet<Cow<'a, str>>,
    /// The same in the order in which they came.
    pub(crate) named: Vec<Cow<'a, str>>,
    pub(crate) media: u32,
    /// What the first blocks of prompts are called, u64 LE.
    pub(crate) first_blocks: Vec<u8>,
    hashes: Vec<u8>,
    tokens: Vec<u8>,
    /// Where they are pairs, the second ones.
    seconds: Vec<u8>,
    extra_keys: ExtraKeys,
}

impl BatchPacker {
    /// The batch of this number; see the module for None. Cost O(bytes).
    pub fn pack<'a>(&self, payload: &'a [u8], sequence: u64) -> Option<Packed<'a>> {
        let room = payload.len() + payload.len() / 4;
        let mut batch = Batch::new(self, room, self.limits.packed_bytes);
        let (engine_time, events) = batch.read(payload, sequence)?;
        let Batch { clears, run, named, media, first_blocks, .. } = batch;
        Some(Packed { engine_time, events, clears, run, lora_names: named, media, first_blocks })
    }
}

impl<'a, 'p> Batch<'a, 'p> {
    pub(crate) fn new(packer: &'p BatchPacker, room: usize, run_bytes_max: usize) -> Self {
        Self {
            packer,
            reader: Reader::new(&[]),
            form: None,
            sequence: 0,
            clears: false,
            run: Vec::with_capacity(room),
            run_bytes_max,
            lora_names: HashSet::new(),
            named: Vec::new(),
            media: 0,
            first_blocks: Vec::new(),
            hashes: Vec::new(),
            tokens: Vec::new(),
            seconds: Vec::new(),
            extra_keys: ExtraKeys::default(),
        }
    }

    /// Appends the batch's events to the run; its time, and how many there are.
    pub(crate) fn read(&mut self, payload: &'a [u8], sequence: u64) -> Option<(f64, usize)> {
        self.reader = Reader::new(payload);
        self.form = None;
        self.sequence = sequence;
        let read = self.read_batch()?;
        self.reader.end().ok()?;
        Some(read)
    }

    /// Forgets what the last batch has added to a run and names of these lengths.
    pub(crate) fn take_back(&mut self, run: usize, named: usize) {
        self.run.truncate(run);
        for name in self.named.drain(named..) {
            self.lora_names.remove(&name);
        }
    }

    fn read_batch(&mut self) -> Option<(f64, usize)> {
        if matches!(self.reader.peek().ok()?, 0x80..=0x8f | 0xde | 0xdf) {
            return self.read_map();
        }
        let len = self.reader.array().ok()?;
        if len < 2 {
            return None;
        }
        let engine_time = self.read_time()?;
        let events = self.read_events()?;
        if len > 2 {
            self.read_rank()?;
        }
        for _ in 3..len {
            self.skip()?;
        }
        Some((engine_time, events))
    }

    fn read_map(&mut self) -> Option<(f64, usize)> {
        let (mut engine_time, mut events, mut has_rank) = (None, None, false);
        for _ in 0..self.reader.map().ok()? {
            match self.reader.str_bytes().ok()? {
                b"ts" if engine_time.is_none() => engine_time = Some(self.read_time()?),
                b"events" if events.is_none() => events = Some(self.read_events()?),
                b"data_parallel_rank" if !has_rank => {
                    has_rank = true;
                    self.read_rank()?;
                }
                b"ts" | b"events" | b"data_parallel_rank" => return None,
                _ => self.skip()?,
            }
        }
        Some((engine_time?, events?))
    }

    fn skip(&mut self) -> Option<()> {
        self.reader.skip_within(IGNORED_DEPTH_MAX).ok()
    }

    fn read_time(&mut self) -> Option<f64> {
        let time = match self.reader.peek().ok()? {
            0xca | 0xcb => self.reader.float().ok()?,
            _ => self.reader.int().ok()? as f64,
        };
        time.is_finite().then_some(time)
    }

    fn read_rank(&mut self) -> Option<()> {
        let is_it = self.reader.nil().ok()? || self.reader.int().ok()? == self.packer.dp_rank;
        is_it.then_some(())
    }

    fn read_events(&mut self) -> Option<usize> {
        let len = self.reader.array().ok()?;
        if len > self.packer.limits.batch_events {
            return None;
        }
        for _ in 0..len {
            self.read_event()?;
            if self.run.len() > self.run_bytes_max {
                return None;
            }
        }
        Some(len)
    }

    fn read_event(&mut self) -> Option<()> {
        let is_map = matches!(self.reader.peek().ok()?, 0x80..=0x8f | 0xde | 0xdf);
        let form = if is_map { Form::Map } else { Form::Array };
        // An engine sends one form; the specification takes a batch of both apart.
        if *self.form.get_or_insert(form) != form {
            return None;
        }
        let mut event = Event::default();
        self.hashes.clear();
        self.tokens.clear();
        self.seconds.clear();
        self.extra_keys.clear();
        let kind = match form {
            Form::Array => self.read_array_event(&mut event)?,
            Form::Map => self.read_map_event(&mut event)?,
        };
        match kind {
            Kind::Cleared => self.write_cleared(),
            _ if !event.has_hashes => return None,
            Kind::Removed => {
                if !self.hashes.is_empty() && !event.has_set() {
                    self.media |= taken_back(&event);
                }
                self.write_removed(&event);
            }
            Kind::Stored => {
                // Of a set all is told that goes, by a name that is no other's.
                if event.has_set() {
                    self.media |= OWNED_ON_CPU | OWNED_ON_CPU_TAKEN_BACK;
                    self.media |= if self.hashes.len() > 8 { OWNED_CHUNKS } else { 0 };
                } else {
                    self.media |= event.media | if event.shared { SHARES } else { 0 };
                    if !event.has_extra_keys {
                        self.media |= stored(&event, !self.tokens.is_empty());
                    }
                }
                if self.is_scopeless(&event) {
                    self.tokens.clear();
                    event.parent = None;
                }
                self.note_blocks(&event);
                self.write_stored(&event)?;
            }
        }
        Some(())
    }

    fn read_array_event(&mut self, event: &mut Event<'a>) -> Option<Kind> {
        let count = self.reader.array().ok()?.checked_sub(1)?;
        let kind = Kind::tagged(self.reader.str_bytes().ok()?)?;
        for field in self.packer.arrays.fields(kind)?.first(count)? {
            self.read_field(field, event)?;
        }
        Some(kind)
    }

    fn read_map_event(&mut self, event: &mut Event<'a>) -> Option<Kind> {
        let count = self.reader.map().ok()?;
        let at = self.reader.at();
        let (kind, fields) = self.read_tag(count)?;
        self.reader.seek(at);
        let (mut next, mut has_tag) = (0, false);
        for _ in 0..count {
            let name = self.reader.str_bytes().ok()?;
            if let Some((place, field)) = fields.find(name, next) {
                if event.seen >> place & 1 == 1 {
                    return None;
                }
                event.seen |= 1 << place;
                next = place + 1;
                self.read_field(field, event)?;
            } else if name == b"type" && !has_tag {
                has_tag = true;
                self.reader.str_bytes().ok()?;
            } else {
                return None;
            }
        }
        Some(kind)
    }

    /// What a map of so many pairs says it is; almost always at once.
    fn read_tag(&mut self, count: usize) -> Option<(Kind, &'p Fields)> {
        for _ in 0..count {
            if self.reader.str_bytes().ok()? == b"type" {
                let kind = Kind::tagged(self.reader.str_bytes().ok()?)?;
                return Some((kind, self.packer.maps.fields(kind)?));
            }
            self.skip()?;
        }
        None
    }

    fn read_field(&mut self, field: Field, event: &mut Event<'a>) -> Option<()> {
        let limits = &self.packer.limits;
        let reader = &mut self.reader;
        match field {
            Field::Hashes => {
                append_hashes(reader, &mut self.hashes).ok()?;
                event.has_hashes = self.hashes.len() <= 8 * limits.event_blocks;
                return event.has_hashes.then_some(());
            }
            Field::Tokens => {
                return append_pairs_or_tokens(reader, &mut self.tokens, &mut self.seconds).ok();
            }
            Field::Ignored => return self.skip(),
            Field::Window => {
                let at = reader.at();
                let tokens = reader.int().ok();
                event.window = tokens
                    .filter(|tokens| (WINDOW_MIN..=WINDOW_MAX).contains(tokens))
                    .map(|tokens| tokens as u64);
                if tokens.is_none() {
                    reader.seek(at);
                    return self.skip();
                }
                return Some(());
            }
            Field::Unusual => return skip_nothing(reader),
            _ => {}
        }
        if field == Field::ExtraKeys {
            event.extra_keys_at = Some(reader.at());
            event.has_extra_keys = !reader.nil().ok()?;
            return if event.has_extra_keys { self.skip() } else { Some(()) };
        }
        event.names_adapter |= field == Field::LoraName;
        if reader.nil().ok()? {
            return Some(());
        }
        match field {
            Field::Parent => {
                event.parent = Some(read_hash(reader)?).filter(|&parent| parent != NOTHING_BEFORE);
            }
            Field::BlockSize => event.block_size = read_up_to(reader, limits.block_size)?,
            Field::Group => event.group = read_up_to(reader, limits.group)?,
            Field::Medium => {
                let name = reader.str().ok()?;
                (event.medium, event.media) = medium(name)?;
                event.is_lower = name.starts_with("cpu");
            }
            Field::CopyCounts => return None,
            Field::LoraName => event.lora_name = reader.str().ok()?,
            Field::SpecKind => event.spec_kind = read_name(reader, limits.name_bytes)?,
            Field::CacheSalt => event.cache_salt = reader.str().ok()?,
            Field::Locality => {
                let name = reader.str().ok()?;
                event.shared = name.eq_ignore_ascii_case(REMOTE);
                // Python folds case beyond ASCII, too.
                return name.is_ascii().then_some(());
            }
            Field::Ownership => {
                event.is_owned = true;
                let at = reader.at();
                event.is_known_owner = reader.str().is_ok_and(|name| OWNERS.contains(&name));
                reader.seek(at);
                return self.skip();
            }
            Field::Origin => {
                let name = reader.str().ok()?;
                event.reported = name.eq_ignore_ascii_case(REUSED);
                event.has_origin = true;
                return name.is_ascii().then_some(());
            }
            Field::LoraId => {
                let is_text = matches!(reader.peek().ok()?, 0xa0..=0xbf | 0xd9..=0xdb);
                event.lora_id = Some(if is_text {
                    LoraId::Text(reader.str().ok()?)
                } else {
                    LoraId::Number(reader.int().ok()?)
                });
            }
            Field::Metadata => {
                let len = reader.map().ok()?;
                if len > 1 || len == 1 && reader.str_bytes().ok()? != b"cache_salt" {
                    return None;
                }
                if len == 1 && !reader.nil().ok()? {
                    event.cache_salt = reader.str().ok()?;
                }
            }
            Field::Hashes
            | Field::Tokens
            | Field::Ignored
            | Field::Window
            | Field::Unusual
            | Field::ExtraKeys => {
                unreachable!()
            }
        }
        Some(())
    }

    /// The adapter's level in the table: by the event's name, the registration's, or the id. An
    /// event that has the field and names none there is of the base model.
    fn lora_name(&mut self, event: &Event<'a>) -> Option<Cow<'a, str>> {
        let packer = self.packer;
        let name: Cow<'a, str> = if !event.lora_name.is_empty() {
            event.lora_name.into()
        } else if event.names_adapter && event.lora_id.is_none() {
            return Some("".into());
        } else if packer.lora_name.is_empty() {
            match &event.lora_id {
                None => return Some("".into()),
                Some(LoraId::Number(id)) => format!("lora_id:{id}").into(),
                Some(LoraId::Text(id)) => format!("lora_id:{id}").into(),
            }
        } else {
            return Some(packer.lora_name.clone().into());
        };
        if !self.lora_names.contains(&name) {
            let has_room = self.lora_names.len() < packer.limits.lora_names;
            if name.len() > packer.limits.name_bytes || !has_room {
                return None;
            }
            self.lora_names.insert(name.clone());
            self.named.push(name.clone());
        }
        Some(name)
    }

    /// Whether the event does not say what enters its blocks beside their tokens.
    fn is_scopeless(&self, event: &Event<'a>) -> bool {
        let is_on_gpu = event.medium == GPU && !event.shared;
        self.packer.scopeless_tiers && !is_on_gpu && !event.has_extra_keys
    }

    /// Notes what tells whether an engine keeps several blocks as one: see `bridge.publisher.media`.
    fn note_blocks(&mut self, event: &Event<'a>) {
        if self.hashes.is_empty() || event.shared || !forms_prefix(event.spec_kind) {
            return;
        }
        let blocks = (self.hashes.len() / 8) as u64;
        if event.medium != GPU && self.tokens.is_empty() && event.block_size == 0 {
            self.media |= UNSIZED;
        } else if event.medium == GPU
            && event.parent.is_none()
            && event.block_size > 0
            && self.tokens.len() as u64 == 4 * event.block_size * blocks
        {
            self.first_blocks.extend_from_slice(&self.hashes[..8]);
        }
    }

    /// See `bridge.wire.vllm.last_blocks_of`.
    fn last_blocks(&self, event: &Event<'a>) -> u64 {
        if !self.packer.has_rules {
            return 0;
        }
        match (event.spec_kind, event.window) {
            ("mamba", _) => 1,
            ("sliding_window" | "sliding_window_mla", Some(tokens)) if event.block_size > 0 => {
                (tokens - 1).div_ceil(event.block_size)
            }
            _ => 0,
        }
    }

    fn write_stored(&mut self, event: &Event<'a>) -> Option<()> {
        let lora_name = self.lora_name(event)?;
        if let Some(at) = event.extra_keys_at {
            if !event.cache_salt.is_empty() {
                return None; // of no engine
            }
            let behind = self.reader.at();
            self.reader.seek(at);
            self.extra_keys.read(&mut self.reader, &lora_name)?;
            self.reader.seek(behind);
        } else if event.parent.is_none() {
            // A salt enters the first block of a chain; the others inherit it.
            self.extra_keys.salt(event.cache_salt, self.hashes.len() / 8);
        }
        let width = 4 * event.block_size as usize;
        if width > 0 && !self.seconds.is_empty() {
            self.extra_keys.pair(&self.seconds, width, self.hashes.len() / 8);
        }
        let has_keys = self.extra_keys.any();
        let last_blocks = self.last_blocks(event);
        let roots = self.roots_of(event, last_blocks > 0);
        let reported = event.reported || roots == Roots::Reported;
        let undecided = roots == Roots::Undecided;
        let optional = [
            !self.tokens.is_empty(),
            event.parent.is_some(),
            event.block_size != 0,
            event.medium != GPU,
            event.shared,
            event.has_set(),
            !lora_name.is_empty(),
            event.group != 0,
            !event.spec_kind.is_empty(),
            last_blocks > 0,
            reported,
            undecided,
            has_keys,
        ];
        let run = &mut self.run;
        begin(run, "stored", self.sequence, 1 + count(&optional));
        write_field(run, "hashes", |run| write::bin(run, &self.hashes));
        if !self.tokens.is_empty() {
            write_field(run, "tokens", |run| write::bin(run, &self.tokens));
        }
        if let Some(parent) = event.parent {
            write_field(run, "parent", |run| write::uint(run, parent));
        }
        if event.block_size != 0 {
            write_field(run, "block_size", |run| write::uint(run, event.block_size));
        }
        write_place(run, event);
        if !lora_name.is_empty() {
            write_field(run, "lora_name", |run| write::str(run, &lora_name));
        }
        if event.group != 0 {
            write_field(run, "group", |run| write::uint(run, event.group));
        }
        if !event.spec_kind.is_empty() {
            write_field(run, "spec_kind", |run| write::str(run, event.spec_kind));
        }
        if last_blocks > 0 {
            write_field(run, "last_blocks", |run| write::uint(run, last_blocks));
        }
        if reported {
            write_field(run, "reported", |run| write::bool(run, true));
        }
        if undecided {
            write_field(run, "undecided", |run| write::bool(run, true));
        }
        if has_keys {
            write_field(run, "extra_keys", |run| self.extra_keys.append_to(run));
        }
        Some(())
    }

    /// What the event is marked as.
    fn roots_of(&self, event: &Event<'a>, has_rule: bool) -> Roots {
        let is_root = event.parent.is_none() && event.medium == GPU;
        let is_told = (is_root || self.packer.all_chains)
            && !self.tokens.is_empty()
            && !event.shared
            && !event.has_origin
            && (has_rule || forms_prefix(event.spec_kind));
        match self.packer.roots {
            roots if !is_told || roots == Roots::Copies => Roots::Copies,
            // Releases of vLLM that send arrays have no such mode.
            Roots::Undecided if self.form == Some(Form::Array) && !self.packer.all_chains => {
                Roots::Copies
            }
            roots => roots,
        }
    }

    fn write_removed(&mut self, event: &Event<'a>) {
        let optional = [event.medium != GPU, event.shared, event.has_set(), event.group != 0];
        let run = &mut self.run;
        begin(run, "removed", self.sequence, 1 + count(&optional));
        write_field(run, "hashes", |run| write::bin(run, &self.hashes));
        write_place(run, event);
        if event.group != 0 {
            write_field(run, "group", |run| write::uint(run, event.group));
        }
    }

    fn write_cleared(&mut self) {
        self.clears = true;
        begin(&mut self.run, "cleared", self.sequence, 0);
    }
}

/// Takes a value for each block, where none of them says anything.
fn skip_nothing(reader: &mut Reader) -> Option<()> {
    if reader.nil().ok()? {
        return Some(());
    }
    for _ in 0..reader.array().ok()? {
        if !reader.nil().ok()? && reader.array().ok()? > 0 {
            return None;
        }
    }
    Some(())
}

fn read_hash(reader: &mut Reader) -> Option<u64> {
    match reader.peek().ok()? {
        0xc4..=0xc6 => reader.bin().ok()?.last_chunk().map(|last| u64::from_be_bytes(*last)),
        _ => Some(reader.int().ok()? as u64),
    }
}

fn read_up_to(reader: &mut Reader, most: i128) -> Option<u64> {
    let value = reader.int().ok()?;
    (0..=most).contains(&value).then_some(value as u64)
}

fn read_name<'a>(reader: &mut Reader<'a>, bytes_max: usize) -> Option<&'a str> {
    reader.str().ok().filter(|name| name.len() <= bytes_max)
}

/// The tier, and which of its names it is; engines spell it in either case, with a device index
/// (`cpu:0`).
fn medium(name: &str) -> Option<(&'static str, u32)> {
    match name {
        GPU => return Some((GPU, 0)),
        CPU => return Some((CPU, 1)),
        _ => {}
    }
    let tier = name.split(':').next()?;
    if !tier.is_ascii() {
        return None; // Python folds case beyond ASCII, too
    }
    Some(match tier.to_ascii_uppercase().as_str() {
        "GPU" => (GPU, 0),
        "CPU" => (CPU, 1),
        "CPU_PINNED" => (CPU, 1 << 1),
        "DISK" => (DISK, 1 << 2),
        "STORAGE" => (DISK, 1 << 3),
        "FS" => (DISK, 1 << 4),
        "OBJ" => (DISK, 1 << 5),
        "EXTERNAL" => (DISK, 1 << 6),
        _ => return None,
    })
}

/// See `bridge.wire.fields.stored_bits`.
fn stored(event: &Event, has_tokens: bool) -> u32 {
    match event.medium {
        DISK if event.is_owned => OWNED_ON_DISK,
        DISK => DISK_STORED,
        CPU if has_tokens && event.is_owned => OWNED_ON_CPU,
        CPU if has_tokens && event.is_lower => LOWER_DESCRIBED,
        CPU if has_tokens => DESCRIBED,
        _ => 0,
    }
}

/// See `bridge.wire.fields.taken_back_bits`.
fn taken_back(event: &Event) -> u32 {
    let shared = if event.shared { SHARED_TAKEN_BACK } else { 0 };
    match event.medium {
        DISK if event.is_owned => OWNED_ON_DISK_TAKEN_BACK,
        DISK => shared | event.media << DISK_TAKEN_BACK_SHIFT,
        CPU if event.is_owned => OWNED_ON_CPU_TAKEN_BACK,
        CPU if event.is_lower => shared | LOWER_TAKEN_BACK,
        CPU => shared | TAKEN_BACK,
        _ => 0,
    }
}

/// Of `schemas/events.py`.
fn forms_prefix(spec_kind: &str) -> bool {
    !matches!(
        spec_kind,
        "sliding_window"
            | "sliding_window_mla"
            | "chunked_local_attention"
            | "mamba"
            | "encoder_only_attention"
            | "cross_attention"
    )
}

fn count(present: &[bool]) -> usize {
    present.iter().filter(|&&is| is).count()
}

/// What every event begins with; `fields` are to follow.
fn begin(run: &mut Vec<u8>, kind: &str, sequence: u64, fields: usize) {
    if kind == "stored" {
        write::wide_map(run, 2 + fields);
    } else {
        write::map(run, 2 + fields);
    }
    write_field(run, "type", |run| write::str(run, kind));
    write_field(run, "sequence", |run| write::uint(run, sequence));
}

fn write_field(run: &mut Vec<u8>, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
    write::str(run, name);
    value(run);
}

fn write_place(run: &mut Vec<u8>, event: &Event) {
    if event.medium != GPU {
        write_field(run, "medium", |run| write::str(run, event.medium));
    }
    if event.shared {
        write_field(run, "shared", |run| write::bool(run, true));
    }
    if event.has_set() {
        write_field(run, "owned", |run| write::bool(run, true));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    pub fn packer() -> BatchPacker {
        let stored = names(&["block_hashes", "parent_block_hash", "token_ids", "block_size"]);
        let removed = names(&["block_hashes", "medium"]);
        let layout = || {
            let mut layout = Layout::default();
            layout.add("BlockStored", &stored).unwrap();
            layout.add("BlockRemoved", &removed).unwrap();
            layout.add("AllBlocksCleared", &[]).unwrap();
            layout
        };
        let limits = Limits {
            batch_events: 100,
            event_blocks: 100,
            block_size: 100,
            group: 100,
            name_bytes: 100,
            lora_names: 100,
            packed_bytes: 10_000,
        };
        let lora_name = String::new();
        let roots = Roots::Copies;
        BatchPacker {
            arrays: layout(),
            maps: layout(),
            dp_rank: 0,
            lora_name,
            roots,
            all_chains: false,
            scopeless_tiers: false,
            has_rules: true,
            limits,
        }
    }

    pub fn numbers(to: &mut Vec<u8>, numbers: &[u64]) {
        write::array(to, numbers.len());
        numbers.iter().for_each(|&number| write::uint(to, number));
    }

    /// One stored event, one removed, one cleared, as arrays.
    pub fn batch() -> Vec<u8> {
        let mut to = Vec::new();
        write::array(&mut to, 3);
        write::float(&mut to, 1.5);
        write::array(&mut to, 3);
        write::array(&mut to, 5);
        write::str(&mut to, "BlockStored");
        numbers(&mut to, &[u64::MAX, 7]);
        write::uint(&mut to, 1 << 40);
        numbers(&mut to, &[1, 200, 70_000, 5]);
        write::uint(&mut to, 2);
        write::array(&mut to, 3);
        write::str(&mut to, "BlockRemoved");
        numbers(&mut to, &[7]);
        write::str(&mut to, "cpu:1");
        write::array(&mut to, 1);
        write::str(&mut to, "AllBlocksCleared");
        write::nil(&mut to);
        to
    }

    #[test]
    fn a_batch_that_is_left_out_of_a_run_leaves_no_names_behind() {
        let packer = packer();
        let mut batch = Batch::new(&packer, 0, 100);
        batch.lora_names = HashSet::from(["one".into(), "two".into()]);
        batch.named = vec!["one".into(), "two".into()];
        batch.run = vec![1, 2, 3];
        batch.take_back(2, 1);
        assert_eq!((batch.run.len(), batch.named.len()), (2, 1));
        assert_eq!(batch.lora_names, HashSet::from(["one".into()]));
    }

    #[test]
    fn a_batch_is_packed() {
        let payload = batch();
        let packed = packer().pack(&payload, 9).unwrap();
        assert_eq!((packed.engine_time, packed.events, packed.clears), (1.5, 3, true));
        let mut reader = Reader::new(&packed.run);
        assert_eq!(reader.map().unwrap(), 6);
        let mut expect = |name: &str| assert_eq!(reader.str().unwrap(), name);
        expect("type");
        expect("stored");
        expect("sequence");
        assert_eq!(reader.int().unwrap(), 9);
        assert_eq!(reader.str().unwrap(), "hashes");
        assert_eq!(reader.bin().unwrap(), [u64::MAX, 7].map(u64::to_le_bytes).concat());
        assert_eq!(reader.str().unwrap(), "tokens");
        assert_eq!(reader.bin().unwrap(), [1, 200, 70_000, 5].map(u32::to_le_bytes).concat());
    }

    #[test]
    fn a_batch_that_ends_too_early_is_refused_wherever_that_is() {
        let payload = batch();
        for end in 0..payload.len() {
            assert!(packer().pack(&payload[..end], 9).is_none(), "{end}");
        }
    }

    #[test]
    fn whatever_a_byte_is_it_is_read_or_refused() {
        let payload = batch();
        for at in 0..payload.len() {
            for byte in 0..=u8::MAX {
                let mut changed = payload.clone();
                changed[at] = byte;
                if let Some(packed) = packer().pack(&changed, 9) {
                    assert!(packed.run.len() < 10_000);
                }
            }
        }
    }

    #[test]
    fn a_length_that_the_bytes_cannot_have_reserves_nothing() {
        for tag in [[0xdd, 0xff, 0xff, 0xff, 0xff], [0xdf, 0xff, 0xff, 0xff, 0xff]] {
            let mut payload = vec![0x92, 0x01];
            payload.extend_from_slice(&tag);
            assert!(packer().pack(&payload, 9).is_none());
            assert!(packer().pack(&tag, 9).is_none());
        }
    }

    #[test]
    fn the_bounds_are_of_what_is_in_the_batch() {
        let payload = batch();
        let mut bounded = packer();
        bounded.limits.batch_events = 3;
        bounded.limits.event_blocks = 2;
        bounded.limits.block_size = 2;
        assert!(bounded.pack(&payload, 9).is_some());
        bounded.limits.block_size = 1;
        assert!(bounded.pack(&payload, 9).is_none());
        bounded = packer();
        bounded.limits.event_blocks = 1;
        assert!(bounded.pack(&payload, 9).is_none());
        bounded = packer();
        bounded.limits.batch_events = 2;
        assert!(bounded.pack(&payload, 9).is_none());
        bounded = packer();
        bounded.limits.packed_bytes = 20;
        assert!(bounded.pack(&payload, 9).is_none());
    }

    #[test]
    fn a_field_that_is_not_known_makes_no_layout() {
        assert!(Layout::default().add("BlockStored", &names(&["block_hashes", "new"])).is_none());
        assert!(Layout::default().add("BlockMoved", &names(&["block_hashes"])).is_none());
        assert!(Layout::default().add("BlockRemoved", &names(&["token_ids"])).is_none());
    }
}
