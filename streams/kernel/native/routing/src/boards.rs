//! What decisions go by. Python publishes a board for each list of candidates that was asked for of
//! late; it counts for a short while, and what was decided since is added to it here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use prefix_index::names::ScopeRef;

use crate::answers::Answers;
pub use crate::answers::Bounds;
use crate::decided::{Effect, Effects, Item, Waiting, What};
use crate::open_decisions::OpenDecisions;
use crate::policy::{Costs, RecentWork, Rules};
use crate::predictions::{Mark, Predictions};

/// Lists of candidates; the one that was not used for longest goes.
pub const BOARDS_MAX: usize = 256;
/// Names of targets; those that nothing is known of any more go first.
const TARGETS_MAX: usize = 65_536;
/// Of these, in boards; the one that was not used for longest goes.
const BOARD_TARGETS_MAX: usize = TARGETS_MAX / 4;
/// So many times what Python takes at once may wait; then requests do.
const PACES_WAITING: usize = 2;
/// Unless Python has taken nothing for so long: then it is not behind, but held up, and half of what
/// it takes at once may come again and again, so that what it finds then is bounded by the time.
const PRESSED_MS: u64 = 50;
const PRESSED_EACH_MS: u64 = 10;
/// As `LOAD_SUM_MAX` in `routing/bounds.py`.
const LOAD_SUM_MAX: u64 = 1 << 40;

/// A target as it is registered, or as a request names it.
pub struct Target {
    pub instance_id: String,
    pub dp_rank: u32,
    pub endpoint: String,
    pub is_allowed: bool,
    pub is_degraded: bool,
    pub is_approximate: bool,
    /// Whether a request means all ranks of the instance, those included that only the index has.
    pub is_open: bool,
    /// Of `Roster::costs`.
    pub costs: usize,
    pub class_name: String,
    pub kv_bytes: u64,
    pub capacity: u64,
    pub p90: f64,
    pub is_sure: bool,
    pub doubts_adapters: bool,
    /// As it is known here.
    pub number: u32,
}

/// The candidates of a request, sorted.
pub struct Roster {
    pub targets: Vec<Target>,
    pub costs: Vec<Costs>,
    pub output_tokens: u64,
    pub output_token_s: f64,
    /// Whether holders that are not among them are candidates, too: then Python has to look.
    pub is_closed: bool,
    /// What Python calls it.
    pub label: u64,
}

/// What is at a target and not booked: as `routing.decisions.unbooked_load.UnbookedLoad`, with what
/// a request is like.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    pub at: f64,
    /// That run.
    pub requests: f64,
    pub waiting: f64,
    pub per_s: f64,
    pub tokens: f64,
    pub tokens_per_s: f64,
    /// As the sample has them.
    pub prefill_tokens: Option<f64>,
    pub usual: Usual,
    /// Seconds until one that waits finds room.
    pub each_s: f64,
}

/// As `TypicalRequest`.
#[derive(Clone, Copy, Debug)]
pub struct Usual {
    pub compute_s: f64,
    pub tokens: f64,
    pub token_s: f64,
}

/// What is late is so from then on, Unix seconds, and for so many seconds at most.
pub type Late = (f64, f64);

/// What a decision reads of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Carried {
    pub wait_s: f64,
    pub requests: u64,
    pub pending: u64,
    pub active: u64,
}

/// What a target carries: the numbers are of what is booked.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// When it would begin with another prompt, Unix seconds.
    pub free_at: f64,
    pub requests: u64,
    pub pending: u64,
    pub active: u64,
    pub kv_tokens: u64,
    /// Prompts that are not computed yet, and seconds that those take which were to be by then or
    /// later.
    pub queued: u64,
    pub queued_s: f64,
    pub summed_at: f64,
    pub work: Option<RecentWork>,
    pub waiting: u64,
    pub kv_usage: f64,
    pub is_reachable: bool,
    /// Of its newest sample: when, and the tokens that its cache has room for.
    pub sampled_at: Option<f64>,
    pub sampled_capacity: u64,
    pub beside: Option<Beside>,
    pub late: Box<[Late]>,
}

impl Load {
    fn add(&mut self, effect: &Effect) {
        let Effect { time, work_s, uncached, tokens, .. } = *effect;
        if let What::Told { begins, ends, end_at } = effect.what {
            return self.take_off(effect, begins, ends, end_at);
        }
        self.queued += 1;
        self.queued_s += work_s;
        self.free_at = (if self.free_at > time { self.free_at } else { time }) + work_s;
        self.requests = (self.requests + 1).min(LOAD_SUM_MAX);
        self.pending = (self.pending + uncached).min(LOAD_SUM_MAX);
        self.active = (self.active + uncached).min(LOAD_SUM_MAX);
        self.kv_tokens = (self.kv_tokens + tokens).min(LOAD_SUM_MAX);
        self.work.get_or_insert_default().note(time, work_s);
    }

    /// As `routing.fold.target_bookings` does it, but for what is late since the sum was made.
    fn take_off(&mut self, effect: &Effect, begins: bool, ends: bool, end_at: f64) {
        if begins {
            self.pending = self.pending.saturating_sub(effect.uncached);
            self.queued = self.queued.saturating_sub(1);
            if end_at > self.summed_at {
                self.queued_s = positive(self.queued_s - effect.work_s);
            }
            self.free_at = if self.queued > 0 { effect.time + self.queued_s } else { effect.time };
        }
        if ends {
            self.requests = self.requests.saturating_sub(1);
            self.active = self.active.saturating_sub(effect.uncached);
            self.kv_tokens = self.kv_tokens.saturating_sub(effect.tokens);
        }
    }

    /// As `LiveLoad.carried` has it at that time: what is booked drains, the rest by its own rules.
    pub fn carried(&self, now: f64) -> Carried {
        let booked = Carried {
            wait_s: positive(self.free_at - now) + self.late_s(now),
            requests: self.requests,
            pending: self.pending,
            active: self.active,
        };
        self.beside.map_or(booked, |beside| beside.added_to(booked, now))
    }

    fn late_s(&self, now: f64) -> f64 {
        let mut seconds = 0.0;
        for &(due, work_s) in self.late.iter().take_while(|&&(due, _)| due < now) {
            let late = now - due;
            seconds += if work_s < late { work_s } else { late };
        }
        seconds
    }
}

impl Beside {
    fn added_to(&self, booked: Carried, now: f64) -> Carried {
        let Usual { compute_s, tokens, token_s } = self.usual;
        let since = positive(now - self.at);
        let waiting = positive(self.waiting - self.per_s * since);
        let (computing, pending) = match self.prefill_tokens {
            None => (waiting * compute_s, (waiting * tokens).round_ties_even() as u64),
            Some(left) => {
                let to_do = positive(self.tokens - self.tokens_per_s * since) * token_s;
                (to_do, (left as u64).saturating_sub(booked.pending))
            }
        };
        let requests = self.requests + waiting.round_ties_even();
        let active = (requests * tokens).round_ties_even() as u64;
        let queued = waiting * self.each_s;
        let sum = |one: u64, other: u64| one.saturating_add(other).min(LOAD_SUM_MAX);
        Carried {
            wait_s: booked.wait_s + if queued > computing { queued } else { computing },
            requests: sum(booked.requests, requests as u64),
            pending: sum(booked.pending, pending),
            active: sum(booked.active, active),
        }
    }
}

fn positive(value: f64) -> f64 {
    if value > 0.0 { value } else { 0.0 }
}

pub(crate) struct Board {
    pub roster: Arc<Roster>,
    pub loads: Vec<Load>,
    places: HashMap<u32, usize>,
    /// Effects before this one are in the loads.
    applied: u64,
    until: Instant,
    is_used: bool,
    used_at: u64,
}

/// Tenant, model, and the candidates as they stand in a body; None: the model's.
pub type Name<'a> = (&'a str, &'a str, Option<&'a [u8]>);
type BoardKey = (Box<str>, Box<str>, Option<Box<[u8]>>);

#[derive(PartialEq, Eq, Hash)]
struct Borrowed<'a>(&'a str, &'a str, Option<&'a [u8]>);

impl hashbrown::Equivalent<BoardKey> for Borrowed<'_> {
    fn equivalent(&self, key: &BoardKey) -> bool {
        self.0 == &*key.0 && self.1 == &*key.1 && self.2 == key.2.as_deref()
    }
}

/// What a service goes by in all its decisions.
pub struct Settings {
    /// Names the decisions that are made here.
    pub run: u64,
    pub policy: String,
    pub parameters: String,
    pub rules: Rules,
    /// Beyond, a prompt may be advised a plan, which Python makes.
    pub too_long_s: f64,
    /// For which an engine without events is taken to hold a prompt.
    pub approximate_s: f64,
    pub waiting_max: usize,
    pub waiting_bytes_max: usize,
    pub answers: Bounds,
}

pub(crate) struct Inner {
    pub number: u64,
    boards: HashMap<BoardKey, Board>,
    uses: u64,
    named: u32,
    targets: HashMap<Box<str>, u32>,
    pub predictions: Predictions,
    pub effects: Effects,
    pub waiting: Waiting,
    pub answers: Answers,
    pub open: OpenDecisions,
    /// Whether what is decided is kept there: Python is sure to book it.
    pub keeps_open: bool,
}

pub struct Boards {
    pub settings: Settings,
    /// What the names of decisions begin with.
    pub(crate) run_name: String,
    pub(crate) inner: Mutex<Inner>,
    waits: AtomicUsize,
    /// How many Python takes at once; 0: all.
    pace: AtomicUsize,
    /// Milliseconds from `began` on to when it last took some.
    taken_ms: AtomicU64,
    began: Instant,
    /// Requests that may be answered though too many wait, and that were, since it took some.
    credits: AtomicUsize,
    used: AtomicUsize,
    pub decided: AtomicU64,
    pub repeated: AtomicU64,
    pub reported: AtomicU64,
    /// Requests that waited until Python had taken others.
    pub rested: AtomicU64,
    pub found_full: AtomicU64,
}

impl Boards {
    pub fn new(mut settings: Settings) -> Self {
        let nothing = Bounds { count: 0, bytes: 0, repeat_s: 0.0 };
        let inner = Inner {
            number: 0,
            boards: HashMap::new(),
            uses: 0,
            named: 0,
            targets: HashMap::new(),
            predictions: Predictions::default(),
            effects: Effects::default(),
            waiting: Waiting::new(settings.waiting_max, settings.waiting_bytes_max),
            answers: Answers::new(std::mem::replace(&mut settings.answers, nothing)),
            open: OpenDecisions::default(),
            keeps_open: true,
        };
        Self {
            run_name: format!("{:x}-", settings.run),
            settings,
            inner: Mutex::new(inner),
            waits: AtomicUsize::new(0),
            pace: AtomicUsize::new(0),
            taken_ms: AtomicU64::new(0),
            began: Instant::now(),
            credits: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            decided: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            rested: AtomicU64::new(0),
            found_full: AtomicU64::new(0),
        }
    }

    /// How many decisions and reports wait for Python. It never waits itself.
    pub fn waiting(&self) -> usize {
        self.waits.load(Ordering::Acquire)
    }

    pub(crate) fn note_waiting(&self, count: usize) {
        self.waits.store(count, Ordering::Release);
    }

    /// Python takes so many at once, and soon again where as many wait.
    pub fn set_pace(&self, count: usize) {
        self.pace.store(count, Ordering::Relaxed);
    }

    /// Whether a request may be answered now; else Python is behind and takes some soon, and as many
    /// may then be answered as it took, or half as many, of one window at most, until no more wait
    /// than may.
    pub fn admits(&self) -> bool {
        self.admits_at(self.now_ms())
    }

    fn admits_at(&self, now_ms: u64) -> bool {
        let pace = self.pace.load(Ordering::Relaxed);
        let waiting = self.waiting();
        if pace == 0 || waiting < PACES_WAITING * pace {
            return true;
        }
        if waiting >= self.settings.waiting_max {
            return false; // Python would have to book them all first
        }
        let since = now_ms.saturating_sub(self.taken_ms.load(Ordering::Relaxed));
        let late = since.checked_sub(PRESSED_MS).map_or(0, |late| late / PRESSED_EACH_MS + 1);
        let more = (late as usize).saturating_mul((pace / 2).max(1));
        let most = self.credits.load(Ordering::Relaxed).saturating_add(more);
        let one_more = |used: usize| (used < most).then_some(used + 1);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// The first of what waits, so many at the most, which do no more; and up to which effect these
    /// and all before are.
    pub fn take(&self, most: usize) -> (Vec<Item>, u64) {
        let mut inner = self.inner.lock();
        let (taken, behind) = inner.waiting.take(most);
        if inner.waiting.is_empty() {
            inner.open.taken();
        }
        self.note_waiting(inner.waiting.len());
        // Where all was taken at once, no more come at once than in any other window.
        let window = taken.len().min(self.pace.load(Ordering::Relaxed));
        self.credits.store(window / 2, Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
        self.taken_ms.store(self.now_ms(), Ordering::Relaxed);
        (taken, behind.unwrap_or(inner.effects.next()))
    }

    /// What decisions go by until then. The loads have all effects before `applied`.
    pub fn publish(
        &self,
        (tenant, model, candidates): Name,
        mut roster: Roster,
        loads: Vec<Load>,
        applied: u64,
        until: Instant,
    ) {
        let mut inner = self.inner.lock();
        inner.make_room(roster.targets.len()); // all of them, before the first is named
        let mut places = HashMap::with_capacity(roster.targets.len());
        for (place, one) in roster.targets.iter_mut().enumerate() {
            one.number = inner.number(tenant, &one.instance_id, one.dp_rank);
            places.insert(one.number, place);
        }
        let key = (tenant.into(), model.into(), candidates.map(Into::into));
        inner.uses += 1;
        let used_at = inner.uses;
        let roster = Arc::new(roster);
        let is_used = false;
        inner.boards.insert(key, Board { roster, loads, places, applied, until, is_used, used_at });
        while inner.boards.len() > 1 && inner.has_too_many() {
            let oldest = inner.boards.iter().min_by_key(|(_, board)| board.used_at);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { break };
            inner.boards.remove(&key);
        }
    }

    /// The same candidates carry something else now; says whether they are known.
    pub fn refresh(
        &self,
        (tenant, model, candidates): Name,
        loads: Vec<Load>,
        applied: u64,
        until: Instant,
    ) -> bool {
        let mut inner = self.inner.lock();
        let Some(board) = inner.boards.get_mut(&Borrowed(tenant, model, candidates)) else {
            return false;
        };
        if board.loads.len() != loads.len() {
            return false;
        }
        (board.loads, board.applied, board.until, board.is_used) = (loads, applied, until, false);
        true
    }

    /// Python decides of these from here on, until they are published again.
    pub fn withdraw(&self, (tenant, model, candidates): Name) {
        self.inner.lock().boards.remove(&Borrowed(tenant, model, candidates));
    }

    /// Python decides all.
    pub fn withdraw_all(&self) {
        self.inner.lock().boards.clear();
    }

    /// What Python calls those boards by which was decided since they were published last.
    pub fn used(&self) -> Vec<u64> {
        let inner = self.inner.lock();
        inner.boards.values().filter(|one| one.is_used).map(|one| one.roster.label).collect()
    }

    /// Python has decided, too.
    pub fn note(&self, tenant: &str, instance_id: &str, dp_rank: u32, effect: Effect) {
        let mut inner = self.inner.lock();
        let target = inner.number_of(tenant, instance_id, dp_rank);
        inner.effects.push(Effect { target, ..effect });
    }

    /// Python takes what is told of that decision from now on; says whether something of it waits.
    pub fn close(&self, number: u64) -> bool {
        self.inner.lock().open.close(number)
    }

    /// The same of all.
    pub fn close_all(&self) {
        self.inner.lock().open.close_all();
    }

    /// Whether Python has room to book what is decided.
    pub fn keep_open(&self, keeps_open: bool) {
        self.inner.lock().keeps_open = keeps_open;
    }

    /// Python has answered that request, or will where it comes again.
    pub fn note_answered(&self, tenant: &str, request_id: &str, now: f64) {
        self.inner.lock().answers.keep(tenant, request_id, now, None);
    }

    /// It is decided anew where it comes again.
    pub fn forget_answer(&self, tenant: &str, request_id: &str) {
        self.inner.lock().answers.forget(tenant, request_id);
    }

    /// See `Predictions`.
    pub fn hold(
        &self,
        now: f64,
        (tenant, instance_id, dp_rank): (&str, &str, u32),
        scope: &ScopeRef,
        marks: &[Mark],
        lasts_s: f64,
    ) {
        let mut inner = self.inner.lock();
        let target = inner.number_of(tenant, instance_id, dp_rank);
        inner.predictions.hold(now, target, scope, marks, lasts_s);
    }

    pub fn fail(
        &self,
        (tenant, instance_id, dp_rank): (&str, &str, u32),
        scope: &ScopeRef,
        marks: &[Mark],
    ) {
        let mut inner = self.inner.lock();
        let target = inner.number_of(tenant, instance_id, dp_rank);
        inner.predictions.fail(target, scope, marks);
    }

    pub fn forget(&self, (tenant, instance_id, dp_rank): (&str, &str, u32), model_name: &str) {
        let mut inner = self.inner.lock();
        let target = inner.number_of(tenant, instance_id, dp_rank);
        inner.predictions.forget(target, model_name);
    }

    pub fn forget_predictions(&self) {
        self.inner.lock().predictions = Predictions::default();
    }

    /// The candidates that a request means; None where Python has to say.
    pub fn roster(&self, (tenant, model, candidates): Name) -> Option<Arc<Roster>> {
        let inner = self.inner.lock();
        let board = inner.boards.get(&Borrowed(tenant, model, candidates))?;
        (Instant::now() < board.until).then(|| board.roster.clone())
    }
}

impl Inner {
    fn has_too_many(&self) -> bool {
        let targets = self.boards.values().map(|board| board.loads.len()).sum::<usize>();
        self.boards.len() > BOARDS_MAX || targets > BOARD_TARGETS_MAX
    }

    /// For so many names: those go that are in no board, and of which nothing was decided of late.
    /// Cost O(all that is known), no more than once in TARGETS_MAX / 2 names.
    fn make_room(&mut self, count: usize) {
        if self.targets.len() + count <= TARGETS_MAX {
            return;
        }
        let mut used: HashSet<u32> = HashSet::new();
        self.boards.values().for_each(|board| used.extend(board.places.keys()));
        used.extend(self.effects.targets());
        used.extend(self.predictions.targets());
        self.targets.retain(|_, number| used.contains(number));
        if self.targets.len() + count > TARGETS_MAX / 2 {
            self.targets.clear();
            self.boards.clear();
            self.predictions = Predictions::default();
        }
    }

    fn number_of(&mut self, tenant: &str, instance_id: &str, dp_rank: u32) -> u32 {
        self.make_room(1);
        self.number(tenant, instance_id, dp_rank)
    }

    fn number(&mut self, tenant: &str, instance_id: &str, dp_rank: u32) -> u32 {
        let name = format!("{tenant}\0{instance_id}\0{dp_rank}");
        if let Some(&number) = self.targets.get(name.as_str()) {
            return number;
        }
        // Never one that another target had.
        self.named += 1;
        let number = self.named;
        self.targets.insert(name.into(), number);
        number
    }

    /// The board of a list of candidates, with all that was decided since; None where Python has to
    /// decide, or has published others meanwhile.
    pub fn board(&mut self, (tenant, model, candidates): Name, roster: &Arc<Roster>) -> Option<()> {
        self.uses += 1;
        let board = self.boards.get_mut(&Borrowed(tenant, model, candidates))?;
        Arc::ptr_eq(&board.roster, roster).then_some(())?;
        for effect in self.effects.since(board.applied)? {
            if let Some(&place) = board.places.get(&effect.target) {
                board.loads[place].add(effect);
            }
        }
        board.applied = self.effects.next();
        board.is_used = true;
        board.used_at = self.uses;
        Some(())
    }

    pub fn loads(&self, (tenant, model, candidates): Name) -> &[Load] {
        self.boards.get(&Borrowed(tenant, model, candidates)).map_or(&[], |board| &board.loads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predictions::SCOPE;

    fn boards() -> Boards {
        let rules = Rules {
            degraded: crate::policy::Degraded::Keep,
            kv_usage_max: 1.0,
            wait_max_s: 1.0,
            waiting_max: 1,
            others: 0.0,
            work: 0.0,
        };
        Boards::new(Settings {
            run: 1,
            policy: String::new(),
            parameters: String::new(),
            rules,
            too_long_s: 1.0,
            approximate_s: 1.0,
            waiting_max: 1,
            waiting_bytes_max: 1,
            answers: Bounds { count: 1, bytes: 1, repeat_s: 1.0 },
        })
    }

    fn roster(names: impl Iterator<Item = String>) -> Roster {
        let target = |instance_id| Target {
            instance_id,
            dp_rank: 0,
            endpoint: String::new(),
            is_allowed: true,
            is_degraded: false,
            is_approximate: false,
            is_open: false,
            costs: 0,
            class_name: String::new(),
            kv_bytes: 0,
            capacity: 0,
            p90: 1.0,
            is_sure: true,
            doubts_adapters: false,
            number: 0,
        };
        let (costs, targets) = (Vec::new(), names.map(target).collect());
        let (output_tokens, output_token_s, is_closed, label) = (0, 0.0, false, 0);
        Roster { targets, costs, output_tokens, output_token_s, is_closed, label }
    }

    #[test]
    fn names_that_were_made_up_displace_nothing_that_is_in_use() {
        let boards = boards();
        let until = Instant::now() + std::time::Duration::from_secs(3600);
        let known = ("t", "m", None);
        let publish = |name: Name, roster: Roster| {
            let loads = vec![Load::default(); roster.targets.len()];
            boards.publish(name, roster, loads, 0, until);
        };
        publish(known, roster(["a".into()].into_iter()));
        boards.hold(1.0, ("t", "a", 0), &SCOPE, &[(1, 7)], 600.0);
        let number = boards.roster(known).unwrap().targets[0].number;
        for list in 0..80_u64 {
            let raw = list.to_le_bytes();
            let names = (0..1900).map(|one| format!("{list}-{one}"));
            publish(("t", "other", Some(&raw)), roster(names));
            let made_up = format!("{list}");
            boards.hold(1.0, ("t", &made_up, 0), &SCOPE, &[(1, list)], 0.1);
            let mut inner = boards.inner.lock();
            let roster = inner.boards[&Borrowed("t", "m", None)].roster.clone();
            inner.board(known, &roster).expect("it is in use");
            assert!(inner.targets.len() <= TARGETS_MAX);
            assert!(!inner.has_too_many());
        }
        assert_eq!(boards.inner.lock().number_of("t", "a", 0), number);
        let mut found = Vec::new();
        let hashes = [7_u64.to_le_bytes()];
        let inner = boards.inner.lock();
        inner.predictions.longest(&SCOPE, &hashes, 2.0, |target, _| found.push(target));
        assert_eq!(found, [number]);
    }

    #[test]
    fn as_many_are_answered_as_python_takes_while_it_is_behind() {
        let mut boards = boards();
        boards.settings.waiting_max = 100;
        boards.note_waiting(99);
        assert!(boards.admits_at(0), "without a pace");
        boards.set_pace(2);
        let wait = |count: usize| {
            for _ in 0..count {
                let mut inner = boards.inner.lock();
                inner.waiting.push(Item::Report(vec![0]), 0);
                boards.note_waiting(inner.waiting.len());
            }
        };
        boards.note_waiting(0);
        wait(3);
        assert!(boards.admits_at(0));
        wait(4);
        assert!(!boards.admits_at(0), "four may wait");
        assert_eq!([(); 2].map(|()| boards.admits_at(PRESSED_MS)), [true, false], "held up");
        assert!(boards.admits_at(PRESSED_MS + PRESSED_EACH_MS), "and still is");
        assert_eq!(boards.take(2).0.len(), 2);
        let now_ms = boards.taken_ms.load(Ordering::Relaxed);
        assert_eq!([(); 3].map(|()| boards.admits_at(now_ms)), [true, false, false]);
        assert_eq!(boards.take(2).0.len(), 2);
        assert!(boards.admits_at(now_ms) && boards.admits_at(now_ms), "three wait");
        wait(boards.settings.waiting_max);
        assert!(!boards.admits_at(now_ms + PRESSED_MS), "too many to book at once");
        assert!(boards.take(usize::MAX).0.len() > boards.settings.waiting_max);
        wait(4); // while those are booked
        let now_ms = boards.taken_ms.load(Ordering::Relaxed);
        assert_eq!([(); 2].map(|()| boards.admits_at(now_ms)), [true, false], "of one window");
    }

    #[test]
    fn what_is_told_takes_off_what_was_decided() {
        let effect = |time: f64, work_s: f64| Effect {
            target: 1,
            time,
            work_s,
            uncached: 10,
            tokens: 100,
            what: What::Decided,
        };
        let told = |of: &Effect, time: f64, begins: bool, ends: bool| Effect {
            time,
            what: What::Told { begins, ends, end_at: of.time + of.work_s },
            ..*of
        };
        let mut load = Load { summed_at: 1.0, ..Load::default() };
        let (first, second) = (effect(2.0, 1.0), effect(2.0, 3.0));
        load.add(&first);
        load.add(&second);
        assert_eq!((load.free_at, load.queued, load.queued_s), (6.0, 2, 4.0));
        load.add(&told(&first, 2.5, true, false));
        assert_eq!((load.free_at, load.pending, load.active, load.requests), (5.5, 10, 20, 2));
        load.add(&told(&first, 2.75, false, true));
        assert_eq!((load.free_at, load.active, load.requests, load.kv_tokens), (5.5, 10, 1, 100));
        load.add(&told(&second, 3.0, true, true));
        assert_eq!((load.free_at, load.pending, load.requests, load.queued_s), (3.0, 0, 0, 0.0));
    }

    #[test]
    fn what_stands_is_there_later_and_what_is_booked_is_not() {
        let usual = Usual { compute_s: 0.1, tokens: 100.0, token_s: 0.001 };
        let beside = Beside {
            at: 10.0,
            requests: 1.0,
            waiting: 4.0,
            per_s: 0.0,
            tokens: 0.0,
            tokens_per_s: 0.0,
            prefill_tokens: None,
            usual,
            each_s: 0.25,
        };
        let late = Box::new([(9.0, 0.5), (10.5, 9.0)]);
        let load = Load { free_at: 11.0, beside: Some(beside), late, ..Load::default() };
        let waits = [10.0, 11.0, 12.0].map(|now| load.carried(now).wait_s);
        assert_eq!(waits, [1.0 + 0.5 + 1.0, 0.5 + 0.5 + 1.0, 0.5 + 1.5 + 1.0]);
        let carried = load.carried(12.0);
        assert_eq!((carried.requests, carried.pending, carried.active), (5, 400, 500));
    }
}
