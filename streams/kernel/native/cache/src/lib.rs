//! Asking for memory before it is needed.
//!
//! A table that has grown out of the caches is read at the speed of waiting: some 100 ns for each
//! line. What is asked for ahead comes while other work is done, and many lines come at once.

#![deny(clippy::all)]

/// Has the line brought into the cache that the value begins in, and does not wait for it.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    let address = std::ptr::from_ref(value);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program sees, of any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{0}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::prefetch;

    /// Also where nothing is there to read.
    #[test]
    fn what_is_asked_for_stays_as_it_was() {
        let values = vec![7_u64; 1000];
        values.iter().for_each(prefetch);
        prefetch(&());
        let none: &[[u64; 9]; 0] = &[];
        prefetch(none);
        assert!(values.iter().all(|&value| value == 7));
    }
}
