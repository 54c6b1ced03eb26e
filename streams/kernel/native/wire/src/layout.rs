//! Which fields the events of a kind of publisher have, in which form and order.

/// What a field of an event means; one name means the same of every kind of publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    SpecKind,
    Window,
    Locality,
    Ownership,
    Origin,
    CacheSalt,
    Metadata,
    /// It names no block.
    Ignored,
    /// What few blocks have: where one has it, the event is left to the specification.
    Unusual,
    /// Likewise, where it is given at all.
    CopyCounts,
}

impl Field {
    /// The field of this name; None where it is not known here.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "block_hashes" => Self::Hashes,
            "parent_block_hash" => Self::Parent,
            "token_ids" => Self::Tokens,
            "block_size" => Self::BlockSize,
            "lora_id" => Self::LoraId,
            "medium" => Self::Medium,
            "lora_name" => Self::LoraName,
            "extra_keys" => Self::ExtraKeys,
            "group_idx" => Self::Group,
            "kv_cache_spec_kind" => Self::SpecKind,
            "locality" => Self::Locality,
            "ownership" => Self::Ownership,
            "origin" => Self::Origin,
            "cache_salt" => Self::CacheSalt,
            "metadata" => Self::Metadata,
            "kv_cache_spec_sliding_window" => Self::Window,
            "session_id" | "reason" | "component_types" => Self::Ignored,
            "mm_keys" | "block_mm_infos" | "lookahead_token_ids" => Self::Unusual,
            "remaining_copy_counts" => Self::CopyCounts,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Stored,
    Removed,
    Cleared,
}

impl Kind {
    /// The kind of event of this tag; None where it is not known here.
    #[inline]
    pub fn tagged(tag: &[u8]) -> Option<Self> {
        match tag {
            b"BlockStored" => Some(Self::Stored),
            b"BlockRemoved" => Some(Self::Removed),
            b"AllBlocksCleared" => Some(Self::Cleared),
            _ => None,
        }
    }
}

/// The fields of one event, in the order of its array.
pub struct Fields {
    kind: Kind,
    named: Vec<(Box<str>, Field)>,
}

impl Fields {
    /// The first so many, in order; None where there are fewer.
    #[inline]
    pub fn first(&self, count: usize) -> Option<impl Iterator<Item = Field>> {
        Some(self.named.get(..count)?.iter().map(|&(_, field)| field))
    }

    /// The field of this name, and its place. `next`: where it is likely to be.
    #[inline]
    pub fn find(&self, name: &[u8], next: usize) -> Option<(usize, Field)> {
        let is_it = |&place: &usize| {
            self.named.get(place).is_some_and(|(known, _)| known.as_bytes() == name)
        };
        let place = Some(next).filter(is_it).or_else(|| (0..self.named.len()).find(is_it))?;
        Some((place, self.named[place].1))
    }
}

/// The events that a kind of publisher sends in one form, as arrays or as maps.
#[derive(Default)]
pub struct Layout {
    events: Vec<Fields>,
}

impl Layout {
    /// Adds an event; None where its tag, or a field, is not known here, or means nothing there.
    pub fn add(&mut self, tag: &str, names: &[String]) -> Option<()> {
        let kind = Kind::tagged(tag.as_bytes())?;
        let mut named = Vec::with_capacity(names.len());
        for name in names {
            let mut field = Field::named(name)?;
            if kind == Kind::Removed && field == Field::LoraName {
                field = Field::Ignored; // a key says which block it is
            }
            let is_of_all = matches!(field, Field::Hashes | Field::Ignored | Field::Unusual);
            let is_of_removed = matches!(
                field,
                Field::Medium
                    | Field::Group
                    | Field::Locality
                    | Field::Ownership
                    | Field::CopyCounts
            );
            let is_known = match kind {
                Kind::Stored => true,
                Kind::Removed => is_of_all || is_of_removed,
                Kind::Cleared => false,
            };
            if !is_known || named.len() >= u32::BITS as usize {
                return None;
            }
            named.push((name.as_str().into(), field));
        }
        self.events.push(Fields { kind, named });
        Some(())
    }

    #[inline]
    pub fn fields(&self, kind: Kind) -> Option<&Fields> {
        self.events.iter().find(|fields| fields.kind == kind)
    }
}
