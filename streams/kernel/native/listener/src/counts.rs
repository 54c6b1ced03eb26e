//! What was answered, counted as Prometheus counts: to be taken and added up elsewhere.

/// Counts by upper bound, and above the last of them.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: Vec<f64>,
    pub counts: Vec<u64>,
    pub sum: f64,
}

impl Histogram {
    /// `bounds` rise.
    pub fn new(bounds: Vec<f64>) -> Self {
        Self { counts: vec![0; bounds.len() + 1], bounds, sum: 0.0 }
    }

    /// A value that equals a bound falls under it.
    pub fn observe(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|&bound| bound < value)] += 1;
        self.sum += value;
    }
}

/// Of one path.
#[derive(Clone, Debug)]
pub struct Queries {
    pub answered: u64,
    pub seconds: Histogram,
    pub tokens: Histogram,
    pub hit_tokens: u64,
}

impl Queries {
    pub fn new(seconds: Vec<f64>, tokens: Vec<f64>) -> Self {
        let (seconds, tokens) = (Histogram::new(seconds), Histogram::new(tokens));
        Self { answered: 0, seconds, tokens, hit_tokens: 0 }
    }

    pub fn count(&mut self, seconds: f64, tokens: usize, hit_tokens: u64) {
        self.answered += 1;
        self.seconds.observe(seconds);
        self.tokens.observe(tokens as f64);
        self.hit_tokens += hit_tokens;
    }

    /// What was counted; it counts from nothing again.
    pub fn take(&mut self) -> Self {
        let empty = Self::new(self.seconds.bounds.clone(), self.tokens.bounds.clone());
        std::mem::replace(self, empty)
    }
}

#[cfg(test)]
mod tests {
    use super::Queries;

    #[test]
    fn queries_are_counted_and_taken() {
        let mut queries = Queries::new(vec![0.5, 1.0], vec![64.0]);
        queries.count(0.5, 64, 3);
        queries.count(0.75, 65, 4);
        queries.count(2.0, 0, 0);
        let taken = queries.take();
        assert_eq!((taken.answered, taken.hit_tokens), (3, 7));
        assert_eq!((&taken.seconds.counts[..], taken.seconds.sum), (&[1, 1, 1][..], 3.25));
        assert_eq!((&taken.tokens.counts[..], taken.tokens.sum), (&[2, 1][..], 129.0));
        let nothing = queries.take();
        assert_eq!((nothing.answered, nothing.hit_tokens, nothing.seconds.sum), (0, 0, 0.0));
        assert_eq!(nothing.seconds.counts, [0, 0, 0]);
    }
}
