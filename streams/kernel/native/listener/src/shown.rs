//! What is answered from, and how far each scope's answers can be trusted.
//!
//! The service knows that, in Python; to ask it takes the interpreter's lock, for which a query may
//! wait for some 5 ms. So what it said is kept until it says that something has changed, or for as
//! long as it said; and a thread asks it again before that (`refresh`), so that queries seldom do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::RwLock;
use prefix_index::core::Core;
use prefix_index::names::{ScopeKey, ScopeRef};

/// Scopes whose states are kept; beyond, they are asked for anew.
const SCOPES_MAX: usize = 4096;

/// How far answers of a scope can be trusted: the number of the state, and how long that holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    pub state: usize,
    pub holds: Duration,
}

/// What answers for the table. Each call may take milliseconds.
pub trait Service: Send + Sync {
    /// What is answered from, and how long that holds; None while it is somebody else's to answer.
    fn core(&self) -> Option<(Arc<Core>, Duration)>;

    /// Of answers that are given now; None where it cannot be told.
    fn verdict(&self, scope: &ScopeRef) -> Option<Verdict>;
}

pub struct Shown<S> {
    service: S,
    /// How many changes there were.
    changes: AtomicU64,
    known: RwLock<Known>,
}

/// What the service said after so many changes.
struct Known {
    changes: u64,
    core: Option<(Arc<Core>, Instant)>,
    states: HashMap<ScopeKey, Said>,
}

struct Said {
    state: usize,
    until: Instant,
    /// Whether a query has used it since it was last looked at.
    is_used: AtomicBool,
}

impl<S> Shown<S> {
    /// What the service said holds no more. It never waits.
    pub fn change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }
}

impl<S: Service> Shown<S> {
    pub fn new(service: S) -> Self {
        let known = Known { changes: 0, core: None, states: HashMap::new() };
        Self { service, changes: AtomicU64::new(1), known: RwLock::new(known) }
    }

    /// What is answered from; None while nothing is, here.
    pub fn core(&self) -> Option<Arc<Core>> {
        let (changes, now) = (self.changes.load(Ordering::Acquire), Instant::now());
        {
            let known = self.known.read();
            if known.changes == changes
                && let Some((core, until)) = &known.core
                && now < *until
            {
                return Some(core.clone());
            }
        }
        let (core, holds) = self.service.core()?;
        let mut known = self.known.write();
        known.begin(changes);
        known.core = Some((core.clone(), now + holds));
        Some(core)
    }

    /// The number of the state of answers that were given before the call.
    pub fn state(&self, scope: &ScopeRef) -> Option<usize> {
        let (changes, now) = (self.changes.load(Ordering::Acquire), Instant::now());
        {
            let known = self.known.read();
            if known.changes == changes
                && let Some(said) = known.states.get(scope)
                && now < said.until
            {
                said.is_used.store(true, Ordering::Relaxed);
                return Some(said.state);
            }
        }
        let verdict = self.service.verdict(scope)?;
        let said = Said::new(verdict, now, true);
        self.known.write().say(changes, scope.to_key(), said);
        Some(verdict.state)
    }

    /// Asks again what queries have used since the last call, and forgets what they have not.
    /// Returns whether anything is known.
    pub fn refresh(&self) -> bool {
        let (changes, now) = (self.changes.load(Ordering::Acquire), Instant::now());
        let used: Vec<ScopeKey> = {
            let mut known = self.known.write();
            known.states.retain(|_, said| said.is_used.swap(false, Ordering::Relaxed));
            known.states.keys().cloned().collect()
        };
        if used.is_empty() {
            return false;
        }
        if let Some((core, holds)) = self.service.core() {
            let mut known = self.known.write();
            known.begin(changes);
            known.core = Some((core, now + holds));
        }
        for scope in used {
            if let Some(verdict) = self.service.verdict(&scope.as_ref()) {
                self.known.write().say(changes, scope, Said::new(verdict, now, false));
            }
        }
        true
    }
}

impl Said {
    fn new(verdict: Verdict, asked_at: Instant, is_used: bool) -> Self {
        let Verdict { state, holds } = verdict;
        Self { state, until: asked_at + holds, is_used: AtomicBool::new(is_used) }
    }
}

impl Known {
    /// What was said after another number of changes is forgotten.
    fn begin(&mut self, changes: u64) {
        if self.changes != changes {
            self.changes = changes;
            self.core = None;
            self.states.clear();
        }
    }

    fn say(&mut self, changes: u64, scope: ScopeKey, said: Said) {
        self.begin(changes);
        if self.states.len() >= SCOPES_MAX {
            self.states.clear();
        }
        self.states.insert(scope, said);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use prefix_index::limits::CLEARED_AT_ONCE_MAX;

    use super::*;

    /// Says a state for as long; counts how often it was asked.
    struct Fixed {
        state: AtomicUsize,
        asked: AtomicUsize,
        holds: Duration,
    }

    impl Service for Arc<Fixed> {
        fn core(&self) -> Option<(Arc<Core>, Duration)> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Some((Arc::new(Core::new(1, CLEARED_AT_ONCE_MAX, 1000, 1000)), self.holds))
        }

        fn verdict(&self, _: &ScopeRef) -> Option<Verdict> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let state = self.state.load(Ordering::Relaxed);
            (state < 9).then_some(Verdict { state, holds: self.holds })
        }
    }

    const SCOPE: ScopeRef = ScopeRef {
        tenant_id: "t",
        model_name: "m",
        lora_name: "",
        block_size: 16,
        additional_salt: "",
    };

    fn shown(holds: Duration) -> (Arc<Fixed>, Shown<Arc<Fixed>>) {
        let service = Fixed { state: 0.into(), asked: 0.into(), holds };
        let service = Arc::new(service);
        (service.clone(), Shown::new(service))
    }

    #[test]
    fn what_was_said_holds_until_something_changes() {
        let (service, shown) = shown(Duration::from_secs(3600));
        for _ in 0..3 {
            assert_eq!(shown.state(&SCOPE), Some(0));
            assert!(shown.core().is_some());
        }
        assert_eq!(service.asked.load(Ordering::Relaxed), 2);
        service.state.store(2, Ordering::Relaxed);
        shown.change();
        assert_eq!(shown.state(&SCOPE), Some(2));
        assert_eq!(shown.state(&ScopeRef { model_name: "n", ..SCOPE }), Some(2));
        assert!(shown.core().is_some());
        assert_eq!(service.asked.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn it_holds_no_longer_than_was_said() {
        let (service, shown) = shown(Duration::ZERO);
        shown.state(&SCOPE);
        shown.core();
        service.state.store(1, Ordering::Relaxed);
        assert_eq!(shown.state(&SCOPE), Some(1));
        shown.core();
        assert_eq!(service.asked.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn what_queries_use_is_asked_again_before_they_have_to() {
        let (service, shown) = shown(Duration::from_secs(3600));
        assert!(!shown.refresh(), "nothing is known");
        let asked = || service.asked.load(Ordering::Relaxed);
        shown.core();
        shown.state(&SCOPE);
        service.state.store(2, Ordering::Relaxed);
        shown.change();
        assert!(shown.refresh());
        assert_eq!(asked(), 4);
        assert_eq!(shown.state(&SCOPE), Some(2));
        assert!(shown.core().is_some());
        assert_eq!(asked(), 4, "by no query");
        assert!(shown.refresh());
        assert!(!shown.refresh(), "no query has used it since");
        assert_eq!(asked(), 6);
    }

    #[test]
    fn what_cannot_be_told_is_not_kept() {
        let (service, shown) = shown(Duration::from_secs(3600));
        service.state.store(9, Ordering::Relaxed);
        assert_eq!(shown.state(&SCOPE), None);
        service.state.store(3, Ordering::Relaxed);
        assert_eq!(shown.state(&SCOPE), Some(3));
    }
}
