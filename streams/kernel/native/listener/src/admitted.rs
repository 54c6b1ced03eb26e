//! Whose requests are answered without Python: those whose `Authorization` field Python has let
//! through a moment ago, and says that it need not look at again for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use heads::Path;
use parking_lot::RwLock;

/// Beyond, the others are left to Python.
const FIELDS_MAX: usize = 4096;

pub struct Admitted {
    /// None: whoever reaches the address may ask.
    fields: Option<RwLock<HashMap<Vec<u8>, Field>>>,
}

struct Field {
    until: Instant,
    key: Arc<Key>,
}

/// What it may ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rights {
    pub queries: bool,
    pub routes: bool,
    pub reports: bool,
}

/// What it may ask, about whom, everybody where there is None, and how many requests were answered.
struct Key {
    rights: Rights,
    tenants: Option<Vec<String>>,
    answered: AtomicU64,
}

/// That a request may be answered; says so when it was.
pub struct Admission(Option<Arc<Key>>);

impl Admission {
    pub fn tenants(&self) -> Option<&[String]> {
        self.0.as_ref()?.tenants.as_deref()
    }

    pub fn use_up(&self) {
        if let Some(key) = &self.0 {
            key.answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Admitted {
    pub fn new(needs_keys: bool) -> Self {
        Self { fields: needs_keys.then(RwLock::default) }
    }

    /// None where Python has to look.
    pub fn find(&self, field: Option<&[u8]>, path: Path, now: Instant) -> Option<Admission> {
        let Some(fields) = &self.fields else {
            return Some(Admission(None));
        };
        let fields = fields.read();
        let found = fields.get(field?)?;
        let Rights { queries, routes, reports } = found.key.rights;
        let may = match path {
            Path::Query | Path::QueryByHash => queries,
            Path::Route => routes,
            Path::Feedback => reports,
        };
        (may && now < found.until).then(|| Admission(Some(found.key.clone())))
    }

    /// It need not be looked at until then, where it asks about these tenants; None: about any.
    pub fn admit(
        &self,
        field: &[u8],
        until: Instant,
        rights: Rights,
        tenants: Option<Vec<String>>,
    ) {
        let Some(fields) = &self.fields else { return };
        let mut fields = fields.write();
        if let Some(found) = fields.get_mut(field) {
            found.until = until;
            if found.key.tenants != tenants || found.key.rights != rights {
                let answered = found.key.answered.swap(0, Ordering::Relaxed).into();
                found.key = Arc::new(Key { rights, tenants, answered });
            }
        } else if fields.len() < FIELDS_MAX {
            let key = Arc::new(Key { rights, tenants, answered: AtomicU64::new(0) });
            fields.insert(field.to_vec(), Field { until, key });
        }
    }

    /// None of them holds any more.
    pub fn forget(&self, now: Instant) {
        let Some(fields) = &self.fields else { return };
        for field in fields.write().values_mut() {
            field.until = now;
        }
    }

    /// How many queries of each were answered since the last call; those that hold no more are
    /// dropped.
    pub fn take_counts(&self, now: Instant) -> Vec<(Vec<u8>, u64)> {
        let Some(fields) = &self.fields else { return Vec::new() };
        let mut taken = Vec::new();
        fields.write().retain(|name, field| {
            let answered = field.key.answered.swap(0, Ordering::Relaxed);
            if answered > 0 {
                taken.push((name.clone(), answered));
            }
            // One that is being answered now says so later.
            now < field.until || answered > 0 || Arc::strong_count(&field.key) > 1
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const ALL: Rights = Rights { queries: true, routes: true, reports: true };

    #[test]
    fn without_keys_everybody_is_let_through() {
        let admitted = Admitted::new(false);
        let now = Instant::now();
        for field in [None, Some(&b"x"[..])] {
            admitted.find(field, Path::Query, now).unwrap().use_up();
        }
        admitted.admit(b"x", now + SECOND, ALL, None);
        assert!(admitted.take_counts(now).is_empty());
    }

    #[test]
    fn a_field_is_let_through_for_as_long_as_was_said() {
        let (admitted, now) = (Admitted::new(true), Instant::now());
        assert!(admitted.find(None, Path::Query, now).is_none());
        assert!(admitted.find(Some(b"a"), Path::Query, now).is_none());
        admitted.admit(b"a", now + SECOND, ALL, None);
        assert!(admitted.find(Some(b"a"), Path::Query, now).is_some());
        assert!(admitted.find(Some(b"A"), Path::Query, now).is_none());
        assert!(admitted.find(Some(b"a "), Path::Query, now).is_none());
        assert!(admitted.find(None, Path::Query, now).is_none());
        assert!(admitted.find(Some(b"a"), Path::Query, now + SECOND).is_none());
        admitted.admit(b"a", now + 2 * SECOND, ALL, None);
        assert!(admitted.find(Some(b"a"), Path::Query, now + SECOND).is_some());
    }

    #[test]
    fn what_is_forgotten_holds_no_more_and_is_counted_all_the_same() {
        let (admitted, now) = (Admitted::new(true), Instant::now());
        admitted.admit(b"a", now + SECOND, ALL, None);
        admitted.admit(b"b", now + SECOND, ALL, None);
        let under_way = admitted.find(Some(b"a"), Path::Query, now).unwrap();
        admitted.find(Some(b"b"), Path::Query, now).unwrap().use_up();
        admitted.forget(now);
        assert!(admitted.find(Some(b"a"), Path::Query, now).is_none());
        assert_eq!(admitted.take_counts(now), [(b"b".to_vec(), 1)]);
        under_way.use_up();
        drop(under_way);
        assert_eq!(admitted.take_counts(now), [(b"a".to_vec(), 1)]);
        assert!(admitted.take_counts(now).is_empty());
        assert_eq!(admitted.fields.unwrap().read().len(), 0);
    }

    #[test]
    fn a_field_has_the_tenants_that_were_said_last() {
        let (admitted, now) = (Admitted::new(true), Instant::now());
        let tenants = Some(vec!["t".to_owned()]);
        admitted.admit(b"a", now + SECOND, ALL, tenants.clone());
        assert_eq!(
            admitted.find(Some(b"a"), Path::Query, now).unwrap().tenants(),
            tenants.as_deref()
        );
        admitted.admit(b"a", now + SECOND, ALL, None);
        assert_eq!(admitted.find(Some(b"a"), Path::Query, now).unwrap().tenants(), None);
    }

    #[test]
    fn there_are_so_many_at_the_most() {
        let (admitted, now) = (Admitted::new(true), Instant::now());
        for number in 0..=FIELDS_MAX {
            admitted.admit(number.to_string().as_bytes(), now + SECOND, ALL, None);
        }
        assert!(admitted.find(Some(b"0"), Path::Query, now).is_some());
        assert!(admitted.find(Some(FIELDS_MAX.to_string().as_bytes()), Path::Query, now).is_none());
    }

    #[test]
    fn it_may_ask_what_its_key_may() {
        let (admitted, now) = (Admitted::new(true), Instant::now());
        for (queries, routes, reports) in
            [(true, false, false), (false, true, false), (false, false, true), (true, true, true)]
        {
            admitted.admit(b"a", now + SECOND, Rights { queries, routes, reports }, None);
            assert_eq!(admitted.find(Some(b"a"), Path::Query, now).is_some(), queries);
            assert_eq!(admitted.find(Some(b"a"), Path::QueryByHash, now).is_some(), queries);
            assert_eq!(admitted.find(Some(b"a"), Path::Route, now).is_some(), routes);
            assert_eq!(admitted.find(Some(b"a"), Path::Feedback, now).is_some(), reports);
        }
        assert!(Admitted::new(false).find(None, Path::Route, now).is_some(), "there are no keys");
    }
}
