//! A hash table of cache lines: tags and values of a place lie in one line, so that what is looked for
//! is one cache miss away, mostly.
//!
//! What finds its line full goes to the next one that is not, and is counted in the lines that it
//! went past: a line with such values is where a search that has found nothing goes on.

use cache::prefetch;

/// A line; `W` is 8 or 16, above `N`. Of the tags the last one counts what went past, at most 255, for
/// good then; 0 is that of a vacant place.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line<T, const N: usize, const W: usize> {
    tags: [u8; W],
    values: [T; N],
}

impl<T: Copy + Default, const N: usize, const W: usize> Line<T, N, W> {
    fn vacant() -> Self {
        const { assert!(N < W && W.is_multiple_of(8), "the last tag is no tag") };
        Self { tags: [0; W], values: [T::default(); N] }
    }

    /// A bit for each place with the tag.
    #[inline]
    fn places(&self, tag: u8) -> u32 {
        // Compilers make two instructions of it.
        let mut places = 0;
        for (number, &known) in self.tags.iter().enumerate() {
            places |= u32::from(known == tag) << number;
        }
        places & ((1 << N) - 1)
    }

    #[inline]
    fn passed(&self) -> u8 {
        self.tags[W - 1]
    }

    fn pass(&mut self) {
        self.tags[W - 1] = self.tags[W - 1].saturating_add(1);
    }

    fn unpass(&mut self) {
        if self.tags[W - 1] < u8::MAX {
            self.tags[W - 1] -= 1;
        }
    }
}

/// Where a value is, or may be put.
#[derive(Clone, Copy)]
pub struct Spot {
    line: usize,
    place: usize,
}

pub struct Lines<T, const N: usize, const W: usize> {
    /// None, or a power of two of them.
    lines: Vec<Line<T, N, W>>,
    len: usize,
}

impl<T, const N: usize, const W: usize> Default for Lines<T, N, W> {
    fn default() -> Self {
        Self { lines: Vec::new(), len: 0 }
    }
}

#[inline]
fn tag_of(hash: u64) -> u8 {
    ((hash >> 56) as u8).max(1)
}

impl<T: Copy + Default, const N: usize, const W: usize> Lines<T, N, W> {
    pub fn new(lines: usize) -> Self {
        assert!(lines.is_power_of_two(), "a hash's low bits choose a line");
        Self { lines: vec![Line::vacant(); lines], len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Whether one more would make searches long: nine tenths of the places are taken.
    #[inline]
    pub fn is_full(&self) -> bool {
        10 * (self.len + 1) > 9 * N * self.lines.len()
    }

    /// Lines in which so many values leave as many places vacant.
    pub fn lines_for(len: usize) -> usize {
        (2 * len).div_ceil(N).next_power_of_two()
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.lines.len() - 1)
    }

    #[inline]
    fn next(&self, line: usize) -> usize {
        (line + 1) & (self.lines.len() - 1)
    }

    /// Has the line brought into the cache that `find` looks at first.
    #[inline]
    pub fn touch(&self, hash: u64) {
        if !self.lines.is_empty() {
            prefetch(&self.lines[self.home(hash)]);
        }
    }

    #[inline]
    pub fn find(&self, hash: u64, same: impl FnMut(&T) -> bool) -> Option<&T> {
        let spot = self.seek(hash, same)?;
        Some(&self.lines[spot.line].values[spot.place])
    }

    /// Where the value is.
    #[inline]
    pub fn seek(&self, hash: u64, mut same: impl FnMut(&T) -> bool) -> Option<Spot> {
        if self.lines.is_empty() {
            return None;
        }
        let tag = tag_of(hash);
        let mut number = self.home(hash);
        for _ in 0..self.lines.len() {
            let line = &self.lines[number];
            let mut places = line.places(tag);
            while places != 0 {
                let place = places.trailing_zeros() as usize;
                if same(&line.values[place]) {
                    return Some(Spot { line: number, place });
                }
                places &= places - 1;
            }
            if line.passed() == 0 {
                break;
            }
            number = self.next(number);
        }
        None
    }

    #[inline]
    pub fn at(&mut self, spot: Spot) -> &mut T {
        &mut self.lines[spot.line].values[spot.place]
    }

    /// Adds a value that is not there; the table must not be full.
    #[inline]
    pub fn insert(&mut self, hash: u64, value: T) {
        let mut number = self.home(hash);
        loop {
            let vacant = self.lines[number].places(0);
            if vacant != 0 {
                let place = vacant.trailing_zeros() as usize;
                let line = &mut self.lines[number];
                line.tags[place] = tag_of(hash);
                line.values[place] = value;
                self.len += 1;
                return;
            }
            self.lines[number].pass();
            number = self.next(number);
        }
    }

    /// Takes a value out, of which this is the hash.
    #[inline]
    pub fn remove(&mut self, hash: u64, spot: Spot) {
        self.lines[spot.line].tags[spot.place] = 0;
        self.len -= 1;
        let mut number = self.home(hash);
        while number != spot.line {
            self.lines[number].unpass();
            number = self.next(number);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.lines.iter().flat_map(|line| {
            (0..N).filter(|&place| line.tags[place] != 0).map(|place| &line.values[place])
        })
    }

    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.lines.into_iter().flat_map(|line| {
            (0..N).filter(move |&place| line.tags[place] != 0).map(move |place| line.values[place])
        })
    }

    pub fn memory_bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line<T, N, W>>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::Lines;
    use crate::random::Random;

    type Pairs = Lines<(u32, u32), 7, 8>;

    /// Few different ones, so that lines run over and tags are equal.
    fn hash_of(key: u32, spread: u64) -> u64 {
        let hash = Random(u64::from(key)).next();
        (hash >> 61 << 56) | (hash % spread)
    }

    fn check(lines: &Pairs, model: &HashMap<u32, u32>, spread: u64) {
        assert_eq!(lines.len(), model.len());
        let found: HashMap<u32, u32> = lines.iter().copied().collect();
        assert_eq!(&found, model);
        for (&key, &value) in model {
            let found = lines.find(hash_of(key, spread), |pair| pair.0 == key);
            assert_eq!(found, Some(&(key, value)));
        }
        let passed: usize = lines.lines.iter().map(|line| usize::from(line.passed())).sum();
        assert!(passed > 0 || model.len() < 7 * lines.lines());
    }

    #[test]
    fn lines_are_a_map_also_where_they_run_over() {
        for (seed, spread) in [(1, 3), (2, 16), (3, 1000), (4, u64::MAX)] {
            let mut random = Random(seed);
            let (mut lines, mut model) = (Pairs::new(64), HashMap::new());
            for step in 0..30_000_u32 {
                let key = random.below(700) as u32;
                let hash = hash_of(key, spread);
                match lines.seek(hash, |pair| pair.0 == key) {
                    Some(spot) if random.below(2) == 0 => {
                        lines.remove(hash, spot);
                        assert!(model.remove(&key).is_some());
                    }
                    Some(spot) => {
                        lines.at(spot).1 = step;
                        assert!(model.insert(key, step).is_some());
                    }
                    None if lines.is_full() => assert!(!model.contains_key(&key)),
                    None => {
                        lines.insert(hash, (key, step));
                        assert!(model.insert(key, step).is_none());
                    }
                }
                if step % 997 == 0 {
                    check(&lines, &model, spread);
                }
            }
            check(&lines, &model, spread);
            let values: HashMap<u32, u32> = lines.into_values().collect();
            assert_eq!(values, model, "seed {seed}");
        }
    }

    /// Else what is not there would be looked for in all lines for good.
    #[test]
    fn lines_forget_what_went_past_them() {
        let mut lines = Pairs::new(8);
        let keys: Vec<u32> = (0..50).collect();
        keys.iter().for_each(|&key| lines.insert(3, (key, 0)));
        assert!(lines.is_full());
        for key in keys {
            let spot = lines.seek(3, |pair| pair.0 == key).expect("it is there");
            lines.remove(3, spot);
        }
        assert!(lines.lines.iter().all(|line| line.tags == [0; 8]));
    }

    #[test]
    fn more_than_a_line_can_count_may_go_past_it() {
        let mut lines = Pairs::new(64);
        (0..300).for_each(|key| lines.insert(3, (key, 0)));
        for key in 0..299 {
            let spot = lines.seek(3, |pair| pair.0 == key).expect("it is there");
            lines.remove(3, spot);
            assert!(
                lines.find(3, |pair| pair.0 == 299).is_some(),
                "{key} is gone, and 299 with it"
            );
        }
    }

    #[test]
    fn little_is_looked_at_in_lines_that_are_just_full() {
        let mut random = Random(6);
        let mut lines = Pairs::new(64);
        while !lines.is_full() {
            lines.insert(random.next(), (0, 0));
        }
        assert_eq!((lines.len(), lines.lines()), (7 * 64 * 9 / 10, 64));
        let mut looked = 0;
        for _ in 0..1000 {
            let found = lines.find(random.next(), |_| {
                looked += 1;
                false
            });
            assert!(found.is_none());
        }
        assert!((1..150).contains(&looked), "{looked} values of 1000 that are not there");
    }

    #[test]
    fn half_of_the_places_of_new_lines_stay_vacant() {
        let lines = [0, 1, 3, 4, 7, 100, 7 * 1024].map(Pairs::lines_for);
        assert_eq!(lines, [1, 1, 1, 2, 2, 32, 2048]);
    }

    #[test]
    fn places_are_those_with_the_tag() {
        let mut random = Random(5);
        for _ in 0..2000 {
            let mut lines = Lines::<u32, 12, 16>::new(1);
            let line = &mut lines.lines[0];
            line.tags.iter_mut().for_each(|tag| *tag = [0, 1, 2, 127, 128, 255][random.below(6)]);
            for tag in [0, 1, 2, 127, 128, 254, 255] {
                let expected =
                    (0..12).filter(|&at| line.tags[at] == tag).fold(0, |bits, at| bits | 1 << at);
                assert_eq!(line.places(tag), expected, "{tag} in {:?}", line.tags);
            }
        }
    }

    #[test]
    fn a_line_is_a_line_of_the_cache() {
        assert_eq!(Lines::<u32, 12, 16>::new(4).memory_bytes(), 4 * 64);
        assert_eq!(Lines::<(u32, u32), 7, 8>::new(4).memory_bytes(), 4 * 64);
        assert_eq!(Lines::<(u64, u64), 7, 8>::new(4).memory_bytes(), 4 * 128);
    }
}
