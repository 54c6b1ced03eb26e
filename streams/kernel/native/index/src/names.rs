//! The names that lead to a scope, a publisher, a change list or a tier, as
//! `schemas/identities.py` defines them.

use std::sync::Arc;

use hashbrown::Equivalent;

use crate::limits::NAME_BYTES_MAX;

/// The media in the order of their tiers' codes.
pub const MEDIA: [&str; 3] = ["GPU", "CPU", "DISK"];
/// Codes of the tiers: first the media of a publisher itself, then the same as shared pools, then the
/// CPU and the DISK of an owner beside the engine, of whom each block is held once.
pub const TIERS: u32 = OWNED + 2;
/// Tiers from here up to `OWNED` are shared pools.
pub const SHARED: u32 = MEDIA.len() as u32;
/// Tiers from here on have the blocks of another owner.
pub const OWNED: u32 = 2 * SHARED;

/// Whether a tier is a pool.
#[inline]
pub fn is_shared(tier: u32) -> bool {
    (SHARED..OWNED).contains(&tier)
}

/// The tier as which answers count one: what another owns, the engine can read like its own.
#[inline]
pub fn answered_tier(tier: u32) -> u32 {
    if tier >= OWNED { tier - OWNED + 1 } else { tier }
}

/// Where another owner has blocks on a medium; the engine's own tier for the GPU.
#[inline]
pub fn owned_tier(medium: u32) -> u32 {
    if medium > 0 { OWNED + medium - 1 } else { medium }
}

/// What the names of the scopes begin with in which blocks wait; see `waiting`.
const WAITING: &str = "\0waiting:";

/// The LoRA name of the scope in which blocks wait for those of an adapter; None where it would be
/// too long for a row.
pub fn waiting_name(lora_name: &str) -> Option<String> {
    let is_short = lora_name.len() + WAITING.len() <= NAME_BYTES_MAX;
    is_short.then(|| format!("{WAITING}{lora_name}"))
}

/// Whether a scope of this LoRA name is one in which blocks wait.
pub fn is_waiting(lora_name: &str) -> bool {
    lora_name.starts_with(WAITING)
}

/// What the names of the scopes begin with that have what engines call the blocks of which a pool has
/// objects; see `waiting`.
const ALIASES: &str = "\0aliases:";

/// The LoRA name of the scope that has what engines call the blocks of an adapter; likewise.
pub fn aliases_name(lora_name: &str) -> Option<String> {
    let is_short = lora_name.len() + ALIASES.len() <= NAME_BYTES_MAX;
    is_short.then(|| format!("{ALIASES}{lora_name}"))
}

/// Whether a scope of this LoRA name has what engines call blocks, and no block.
pub fn is_aliases(lora_name: &str) -> bool {
    lora_name.starts_with(ALIASES)
}

/// What the names of the scopes begin with that have the blocks of sparse cache groups; see
/// `sparse_groups`.
const SPARSE: &str = "\0sparse:";

/// The name of the scopes that have those of which it is not known yet which blocks they are.
pub const UNPLACED: &str = "\0unplaced";

/// The name of the scopes that have by which rule engines use them.
pub const RULES: &str = "\0rules";

/// The LoRA name of the scope that has an adapter's blocks of sparse groups; likewise.
pub fn sparse_name(lora_name: &str) -> Option<String> {
    let is_short = lora_name.len() + SPARSE.len() <= NAME_BYTES_MAX;
    is_short.then(|| format!("{SPARSE}{lora_name}"))
}

/// Whether a scope of this LoRA name has blocks of sparse groups.
pub fn is_sparse(lora_name: &str) -> bool {
    lora_name.starts_with(SPARSE) || lora_name == UNPLACED
}

/// What the names of the scopes begin with that have blocks which are left out; see `left_out`.
pub const LEFT_OUT: &str = "\0left_out:";

/// Whether a scope of this LoRA name has blocks that are left out.
pub fn is_left_out(lora_name: &str) -> bool {
    lora_name.starts_with(LEFT_OUT)
}

/// The name of the scopes that have how often blocks were announced again; see `left_out`.
pub const REPEATED: &str = "\0repeated";

/// The name of the scopes that have which cache groups form prefixes; see `groups`.
pub const GROUPS: &str = "\0groups";

/// Whether a scope of this LoRA name is any of these, and in no answer.
pub fn is_hidden(lora_name: &str) -> bool {
    lora_name.starts_with('\0')
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ScopeKey {
    pub tenant_id: Arc<str>,
    pub model_name: Arc<str>,
    pub lora_name: Arc<str>,
    pub block_size: u32,
    pub additional_salt: Arc<str>,
}

/// A `ScopeKey` that borrows, for looking up. It must hash alike: same fields in the same order.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
pub struct ScopeRef<'a> {
    pub tenant_id: &'a str,
    pub model_name: &'a str,
    pub lora_name: &'a str,
    pub block_size: u32,
    pub additional_salt: &'a str,
}

impl ScopeKey {
    pub fn as_ref(&self) -> ScopeRef<'_> {
        ScopeRef {
            tenant_id: &self.tenant_id,
            model_name: &self.model_name,
            lora_name: &self.lora_name,
            block_size: self.block_size,
            additional_salt: &self.additional_salt,
        }
    }
}

impl ScopeRef<'_> {
    pub fn to_key(&self) -> ScopeKey {
        ScopeKey {
            tenant_id: self.tenant_id.into(),
            model_name: self.model_name.into(),
            lora_name: self.lora_name.into(),
            block_size: self.block_size,
            additional_salt: self.additional_salt.into(),
        }
    }
}

impl Equivalent<ScopeKey> for ScopeRef<'_> {
    fn equivalent(&self, key: &ScopeKey) -> bool {
        self.block_size == key.block_size
            && *self.model_name == *key.model_name
            && *self.tenant_id == *key.tenant_id
            && *self.lora_name == *key.lora_name
            && *self.additional_salt == *key.additional_salt
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct StreamKey {
    pub tenant_id: Arc<str>,
    pub model_name: Arc<str>,
    pub block_size: u32,
    pub additional_salt: Arc<str>,
    pub instance_id: Arc<str>,
}

impl StreamKey {
    pub fn scope_ref<'a>(&'a self, lora_name: &'a str) -> ScopeRef<'a> {
        ScopeRef {
            tenant_id: &self.tenant_id,
            model_name: &self.model_name,
            lora_name,
            block_size: self.block_size,
            additional_salt: &self.additional_salt,
        }
    }

    pub fn scope(&self, lora_name: &str) -> ScopeKey {
        ScopeKey {
            tenant_id: self.tenant_id.clone(),
            model_name: self.model_name.clone(),
            lora_name: lora_name.into(),
            block_size: self.block_size,
            additional_salt: self.additional_salt.clone(),
        }
    }
}

/// What a registration says of shared blocks.
#[derive(Clone, Default, PartialEq)]
pub struct Sharing {
    /// Whose count for it beside those of its own instance; None: everybody's.
    pub reads: Option<Arc<[Arc<str>]>>,
    /// What others call it there, where that is not its instance.
    pub shared_as: Option<Arc<str>>,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ContextKey {
    pub scope: ScopeKey,
    pub instance_id: Arc<str>,
}

impl ContextKey {
    pub fn stream(&self) -> StreamKey {
        StreamKey {
            tenant_id: self.scope.tenant_id.clone(),
            model_name: self.scope.model_name.clone(),
            block_size: self.scope.block_size,
            additional_salt: self.scope.additional_salt.clone(),
            instance_id: self.instance_id.clone(),
        }
    }
}

#[cfg(test)]
pub fn test_context(instance_id: &str) -> ContextKey {
    let scope = ScopeKey {
        tenant_id: "t".into(),
        model_name: "m".into(),
        lora_name: "".into(),
        block_size: 16,
        additional_salt: "".into(),
    };
    ContextKey { scope, instance_id: instance_id.into() }
}
