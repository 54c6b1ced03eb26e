//! Runs of numbers in a text, as they stand in a JSON array: `1, 2,3,`.
//!
//!     words       one number at a time, on every processor
//!     vectors     eight at a time, on those with AVX2: found out when it runs
//!
//! Both read numbers of up to eight digits without leading zeros, each with the comma behind it and
//! any blank before it that they know, and stop before anything else. Either may stop earlier, for
//! the caller reads the next number by itself and calls again.

#![deny(clippy::all)]
#![deny(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod vectors;
mod words;

pub use words::leading_digits;

/// Appends the numbers from `at` on as u32 LE, while `to` has less than `bytes_max`; returns where
/// the first one begins that was not read.
pub fn append_numbers(text: &[u8], at: usize, to: &mut Vec<u8>, bytes_max: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") {
        // SAFETY: the processor has what the function is compiled for.
        #[allow(unsafe_code)]
        let at = unsafe { vectors::append_numbers(text, at, to, bytes_max) };
        return words::append_numbers(text, at, to, bytes_max);
    }
    words::append_numbers(text, at, to, bytes_max)
}

#[cfg(test)]
mod tests {
    use super::words::BLOCK;
    use super::*;

    type Append = fn(&[u8], usize, &mut Vec<u8>, usize) -> usize;

    const WAYS: [(&str, Append); 2] =
        [("words", words::append_numbers), ("as chosen", append_numbers)];
    /// Numbers never stand in the first bytes of a body.
    const PREFIX: &str = "{\"token_ids\":[";
    const NO_BOUND: usize = usize::MAX / 2;

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *state >> 33
    }

    /// What is read of the text one number at a time, and where that stops, blanks behind it.
    fn plainly(text: &[u8], mut at: usize) -> (Vec<u32>, usize) {
        let mut numbers = Vec::new();
        loop {
            let mut start = at;
            while matches!(text.get(start), Some(b' ' | b'\n' | b'\r' | b'\t')) {
                start += 1;
            }
            let digits = text[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let is_usual = (1..=8).contains(&digits)
                && (text[start] != b'0' || digits == 1)
                && text.get(start + digits) == Some(&b',');
            if !is_usual {
                return (numbers, start);
            }
            let number = std::str::from_utf8(&text[start..start + digits]).unwrap();
            numbers.push(number.parse().unwrap());
            at = start + digits + 1;
        }
    }

    fn check(text: &[u8], at: usize) {
        let (expected, end) = plainly(text, at);
        let expected: Vec<u8> = expected.iter().flat_map(|number| number.to_le_bytes()).collect();
        for (way, append) in WAYS {
            let mut to = vec![7; 4];
            let stopped = append(text, at, &mut to, NO_BOUND);
            let read = to.len() - 4;
            let shown = String::from_utf8_lossy(text);
            assert_eq!(to[..4], [7; 4]);
            assert!(stopped <= end && read <= expected.len(), "{way}: {shown}");
            assert_eq!(to[4..], expected[..read], "{way}: {shown}");
            // What it says it has read is what it has appended.
            let (left, _) = plainly(text, stopped);
            assert_eq!(read / 4 + left.len(), expected.len() / 4, "{way}: {shown}");
            let is_plain = |two: &[u8]| two != b"  " && two[0] != b'\n';
            if end + 2 * BLOCK < text.len() && text[at..end].windows(2).all(is_plain) {
                assert_eq!(read, expected.len(), "{way} stopped at {stopped}: {shown}");
            }
        }
    }

    fn text(state: &mut u64, separator: &str, numbers: usize) -> Vec<u8> {
        let mut text = String::from(PREFIX);
        for _ in 0..numbers {
            let bits = random(state) % 27;
            let number = random(state) & ((1 << bits) - 1);
            text.push_str(&format!("{number}{separator}"));
        }
        text.into_bytes()
    }

    #[test]
    fn numbers_are_read_whatever_stands_between_them() {
        let mut state = 1;
        for separator in [",", ", ", ",\n", ",  "] {
            for numbers in [0, 1, 5, 11, 12, 40, 1000] {
                let mut text = text(&mut state, separator, numbers);
                check(&text, PREFIX.len());
                text.extend_from_slice(&[b'x'; 3 * BLOCK]);
                check(&text, PREFIX.len());
            }
        }
    }

    #[test]
    fn reading_stops_before_anything_else_wherever_it_stands() {
        let mut state = 2;
        for _ in 0..20_000 {
            let separator = if random(&mut state).is_multiple_of(2) { "," } else { ", " };
            let mut text = text(&mut state, separator, 60);
            for _ in 0..1 + random(&mut state) % 3 {
                let at = PREFIX.len() + random(&mut state) as usize % (text.len() - PREFIX.len());
                text[at] = b"0,, -]x\n.e\"\xff/:"[random(&mut state) as usize % 14];
            }
            check(&text, PREFIX.len());
        }
    }

    #[test]
    fn numbers_of_every_length_are_read_and_longer_ones_are_not() {
        for digits in 1..=11 {
            let number = "9".repeat(digits);
            let many = format!("{PREFIX}{}", format!("{number},").repeat(100));
            for (way, append) in WAYS {
                let mut to = Vec::new();
                let stopped = append(many.as_bytes(), PREFIX.len(), &mut to, NO_BOUND);
                if digits > 8 {
                    assert_eq!((stopped, to.len()), (PREFIX.len(), 0), "{way}: {digits}");
                } else {
                    assert!(to.len() >= 4 * 80, "{way}: {digits}");
                    let expected = number.parse::<u32>().unwrap().to_le_bytes();
                    assert!(to.chunks(4).all(|one| one == expected), "{way}: {digits}");
                }
            }
        }
    }

    #[test]
    fn no_more_is_read_than_there_is_room_for() {
        let many = format!("{PREFIX}{}", "1,".repeat(1000));
        for (way, append) in WAYS {
            for bound in [0, 255, 256, 1000, 2000] {
                let mut to = Vec::new();
                append(many.as_bytes(), PREFIX.len(), &mut to, bound);
                assert!(to.len() <= bound, "{way}: {bound}, {}", to.len());
            }
        }
    }
}
