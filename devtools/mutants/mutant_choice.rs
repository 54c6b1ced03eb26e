
/// Which mutant of `devtools/mutants/combined.py` is in force. The environment says so, and is read
/// anew until it does: a process that has loaded this may fork, and each fork choose another one.
#[doc(hidden)]
pub(crate) mod mutant_choice {
    use std::fs::{File, OpenOptions};
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

    const MOST: usize = 4096;
    const UNREAD: u32 = u32::MAX;
    const RECORDING: u32 = u32::MAX - 1;

    static CHOSEN: AtomicU32 = AtomicU32::new(UNREAD);
    static REACHED: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];
    static FILE: OnceLock<File> = OnceLock::new();

    #[inline]
    pub fn is(number: u32) -> bool {
        let chosen = CHOSEN.load(Relaxed);
        chosen == number || (chosen >= RECORDING && look(number))
    }

    #[cold]
    fn look(number: u32) -> bool {
        if CHOSEN.load(Relaxed) == UNREAD {
            if let Some(chosen) = std::env::var_os("REPRISE_MUTANT") {
                let chosen = chosen.to_str().unwrap().parse().unwrap();
                CHOSEN.store(chosen, Relaxed);
                return chosen == number;
            }
            let Some(path) = std::env::var_os("REPRISE_MUTANTS_REACHED") else {
                return false;
            };
            FILE.get_or_init(|| OpenOptions::new().append(true).create(true).open(path).unwrap());
            CHOSEN.store(RECORDING, Relaxed);
        }
        if !REACHED[number as usize].swap(true, Relaxed) {
            FILE.get().unwrap().write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        false
    }
}
