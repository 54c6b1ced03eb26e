//! Who is chosen: `decide` of `routing/policies/decide.py` with the policy `least-delay` that fetches
//! nothing, without an objective or a session. The same operations in the same order give the same
//! floats.

use xxhash_rust::xxh3::xxh3_64;

/// As `routing.costs.Costs`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    pub fixed_s: f64,
    pub prefill_tokens_per_s: f64,
    pub token_squared_s: f64,
    pub load_tokens_per_s: f64,
    pub fetch_tokens_per_s: f64,
    pub pool_tokens_per_s: f64,
    pub disk_tokens_per_s: f64,
}

impl Costs {
    pub fn of(fields: [f64; 7]) -> Self {
        let [fixed_s, prefill_tokens_per_s, token_squared_s, load_tokens_per_s, ..] = fields;
        let [.., fetch_tokens_per_s, pool_tokens_per_s, disk_tokens_per_s] = fields;
        Self {
            fixed_s,
            prefill_tokens_per_s,
            token_squared_s,
            load_tokens_per_s,
            fetch_tokens_per_s,
            pool_tokens_per_s,
            disk_tokens_per_s,
        }
    }

    pub fn fields(&self) -> [f64; 7] {
        [
            self.fixed_s,
            self.prefill_tokens_per_s,
            self.token_squared_s,
            self.load_tokens_per_s,
            self.fetch_tokens_per_s,
            self.pool_tokens_per_s,
            self.disk_tokens_per_s,
        ]
    }

    fn prefill_s(&self, prompt: u64, cached: u64) -> f64 {
        // A prompt has fewer than 2^31 tokens, so these are exact.
        self.fixed_s
            + (prompt - cached) as f64 / self.prefill_tokens_per_s
            + self.token_squared_s * (prompt * prompt - cached * cached) as f64
    }

    fn load_s(&self, tokens: u64, on_disk: u64) -> f64 {
        let seconds = tokens as f64 / self.load_tokens_per_s;
        if on_disk > 0 { seconds + on_disk as f64 / self.disk_tokens_per_s } else { seconds }
    }
}

/// What is made of a candidate that has lost something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Degraded {
    Keep,
    Zero,
    Drop,
}

impl Degraded {
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "keep" => Some(Self::Keep),
            "zero" => Some(Self::Zero),
            "drop" => Some(Self::Drop),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Zero => "zero",
            Self::Drop => "drop",
        }
    }
}

/// What leaves candidates out, and what counts beside their time.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub degraded: Degraded,
    pub kv_usage_max: f64,
    pub wait_max_s: f64,
    pub waiting_max: u64,
    pub others: f64,
    pub work: f64,
}

/// As `routing.interface.Candidate`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidate {
    pub cached: u64,
    pub gpu: u64,
    pub disk: u64,
    pub predicted: u64,
    pub wait_s: f64,
    pub requests: u64,
    pub pending: u64,
    pub active: u64,
    pub others: f64,
    pub costs: usize,
    pub waiting: u64,
    pub kv_usage: f64,
    pub is_allowed: bool,
    pub is_reachable: bool,
    pub is_degraded: bool,
}

/// What the policy made of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Judged {
    LeftOut(&'static str),
    Ranked(Choice),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub key: f64,
    pub prefix: u64,
    pub queue_s: f64,
    pub load_s: f64,
    pub prefill_s: f64,
}

impl Choice {
    /// What it is expected to take until the first token; nothing is fetched.
    pub fn predicted_s(&self) -> f64 {
        self.queue_s + self.load_s + 0.0 + self.prefill_s
    }

    /// What it takes of the target.
    pub fn work_s(&self) -> f64 {
        self.load_s + 0.0 + self.prefill_s
    }
}

/// Why one is left out before the policy sees it.
fn reason_of(one: &Candidate, rules: &Rules) -> Option<&'static str> {
    if !one.is_allowed {
        return Some("not_allowed");
    }
    if !one.is_reachable {
        return Some("unreachable");
    }
    if one.is_degraded && rules.degraded == Degraded::Drop {
        return Some("degraded");
    }
    if one.kv_usage > rules.kv_usage_max {
        return Some("memory");
    }
    let is_full = one.wait_s > rules.wait_max_s || one.waiting > rules.waiting_max;
    is_full.then_some("queue_full")
}

fn rank(one: &Candidate, prompt: u64, rules: &Rules, costs: &Costs) -> Choice {
    let is_nothing = one.is_degraded && rules.degraded == Degraded::Zero;
    let (cached, gpu, disk) = if is_nothing { (0, 0, 0) } else { (one.cached, one.gpu, one.disk) };
    let load_s = costs.load_s(cached - gpu, disk);
    let prefill_s = costs.prefill_s(prompt, cached);
    let own_s = load_s + prefill_s;
    let weighed =
        rules.work * prefill_s + rules.others * (one.others * own_s * (one.wait_s + own_s / 2.0));
    let key = one.wait_s + load_s + prefill_s + weighed;
    Choice { key, prefix: cached, queue_s: one.wait_s, load_s, prefill_s }
}

/// What is made of each, and the place of the one that is chosen; None where none can be.
pub fn decide<'a>(
    candidates: &[Candidate],
    names: impl Fn(usize) -> (&'a str, u32),
    prompt: u64,
    tie: u64,
    rules: &Rules,
    costs: &[Costs],
) -> (Vec<Judged>, Option<usize>) {
    let mut judged = Vec::with_capacity(candidates.len());
    let mut best: Option<(usize, f64)> = None;
    let mut best_digest = None;
    let mut buffer = Vec::new();
    let mut digest = |place: usize| tie_break(tie, names(place), &mut buffer);
    for (place, one) in candidates.iter().enumerate() {
        if let Some(reason) = reason_of(one, rules) {
            judged.push(Judged::LeftOut(reason));
            continue;
        }
        let choice = rank(one, prompt, rules, &costs[one.costs]);
        judged.push(Judged::Ranked(choice));
        match best {
            Some((_, key)) if choice.key > key => {}
            Some((before, key)) if choice.key == key => {
                let known = *best_digest.get_or_insert_with(|| digest(before));
                let own = digest(place);
                if own < known {
                    best = Some((place, key));
                    best_digest = Some(own);
                }
            }
            _ => {
                best = Some((place, choice.key));
                best_digest = None;
            }
        }
    }
    (judged, best.map(|(place, _)| place))
}

/// The tie of a decision of a run.
pub fn tie_of(run: u64, number: u64) -> u64 {
    let mut packed = [0; 16];
    packed[..8].copy_from_slice(&run.to_le_bytes());
    packed[8..].copy_from_slice(&number.to_le_bytes());
    xxh3_64(&packed)
}

/// Where a candidate stands among equals.
fn tie_break(tie: u64, (instance_id, dp_rank): (&str, u32), buffer: &mut Vec<u8>) -> u64 {
    buffer.clear();
    buffer.extend_from_slice(&tie.to_le_bytes());
    buffer.extend_from_slice(instance_id.as_bytes());
    if dp_rank > 0 {
        buffer.push(0);
        buffer.extend_from_slice(dp_rank.to_string().as_bytes());
    }
    xxh3_64(buffer)
}

/// What was sent to a target of late: as `routing.policies.recent_work.RecentWork`.
#[derive(Clone, Copy, Debug)]
pub struct RecentWork {
    pub at: f64,
    pub requests: f64,
    pub seconds: f64,
    pub span_s: f64,
}

const LAST_REQUESTS: f64 = 32.0;
const FIRST_SPAN: f64 = 10.0;
const BUSIEST: f64 = 0.9;

impl Default for RecentWork {
    fn default() -> Self {
        Self { at: 0.0, requests: 0.0, seconds: 0.0, span_s: FIRST_SPAN }
    }
}

impl RecentWork {
    pub fn note(&mut self, now: f64, seconds: f64) {
        let left = 1.0 - 1.0 / LAST_REQUESTS;
        self.span_s = self.span_s * left + self.since(now);
        self.requests = self.requests * left + 1.0;
        self.seconds = self.seconds * left + seconds;
        self.at = later(now, self.at);
    }

    pub fn others(&self, now: f64) -> f64 {
        let span = self.span_s + self.since(now);
        let busy = self.seconds / span;
        self.requests / (span * (1.0 - if BUSIEST < busy { BUSIEST } else { busy }))
    }

    fn since(&self, now: f64) -> f64 {
        if self.requests == 0.0 { 0.0 } else { later(now - self.at, 0.0) }
    }
}

/// As Python's `max`.
fn later(one: f64, other: f64) -> f64 {
    if other > one { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        fixed_s: 0.0,
        prefill_tokens_per_s: 1000.0,
        token_squared_s: 0.0,
        load_tokens_per_s: 10_000.0,
        fetch_tokens_per_s: 1.0,
        pool_tokens_per_s: 1.0,
        disk_tokens_per_s: 1000.0,
    };
    const RULES: Rules = Rules {
        degraded: Degraded::Zero,
        kv_usage_max: 0.9,
        wait_max_s: 30.0,
        waiting_max: 8,
        others: 1.0,
        work: 0.0,
    };
    const IDLE: Candidate = Candidate {
        cached: 0,
        gpu: 0,
        disk: 0,
        predicted: 0,
        wait_s: 0.0,
        requests: 0,
        pending: 0,
        active: 0,
        others: 0.0,
        costs: 0,
        waiting: 0,
        kv_usage: 0.0,
        is_allowed: true,
        is_reachable: true,
        is_degraded: false,
    };

    fn chosen(candidates: &[Candidate], tie: u64) -> Option<usize> {
        decide(candidates, |_| ("same", 0), 1000, tie, &RULES, &[COSTS]).1
    }

    #[test]
    fn the_lowest_key_is_chosen_and_of_equals_the_lowest_digest() {
        let holder = Candidate { cached: 500, gpu: 500, ..IDLE };
        assert_eq!(chosen(&[IDLE, holder, IDLE], 0), Some(1));
        let names = ["a", "b", "c"];
        for tie in 0..64 {
            let named = |place: usize| (names[place], 0);
            let found = decide(&[IDLE; 3], named, 1000, tie, &RULES, &[COSTS]).1;
            let mut buffer = Vec::new();
            let digests = names.map(|name| tie_break(tie, (name, 0), &mut buffer));
            assert_eq!(found, (0..3).min_by_key(|&place| digests[place]));
        }
    }

    #[test]
    fn who_cannot_be_chosen_is_left_out_for_its_first_reason() {
        let out = [
            (Candidate { is_allowed: false, is_reachable: false, ..IDLE }, "not_allowed"),
            (Candidate { is_reachable: false, kv_usage: 1.0, ..IDLE }, "unreachable"),
            (Candidate { kv_usage: 0.95, wait_s: 99.0, ..IDLE }, "memory"),
            (Candidate { wait_s: 30.5, ..IDLE }, "queue_full"),
            (Candidate { waiting: 9, ..IDLE }, "queue_full"),
        ];
        for (one, reason) in out {
            let (judged, chosen) = decide(&[one], |_| ("a", 0), 10, 0, &RULES, &[COSTS]);
            assert_eq!((judged, chosen), (vec![Judged::LeftOut(reason)], None));
        }
        let lossy = Candidate { cached: 900, gpu: 900, is_degraded: true, ..IDLE };
        let few = Candidate { cached: 10, gpu: 10, ..IDLE };
        assert_eq!(chosen(&[lossy, few], 0), Some(1), "it counts as holding nothing");
    }

    #[test]
    fn what_was_sent_of_late_counts_by_its_time() {
        let mut work = RecentWork::default();
        assert_eq!(work.others(5.0), 0.0);
        work.note(100.0, 1.0);
        assert!(work.others(100.0) > work.others(101.0));
        work.note(99.0, 1.0);
        assert_eq!(work.at, 100.0, "it never goes back");
    }
}
