//! Drives one entry of `rollcall-fuzz`, named by `ROLLCALL_FUZZ_ENTRY`, with libFuzzer.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use rollcall_fuzz::{ENTRIES, Entry, n_kept};

fn chosen() -> Entry {
    static CHOSEN: OnceLock<Entry> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("ROLLCALL_FUZZ_ENTRY").unwrap_or_default();
        let names: Vec<_> = ENTRIES.iter().map(|(name, _, _)| *name).collect();
        match ENTRIES.iter().find(|(known, _, _)| *known == name) {
            Some((_, entry, _)) => *entry,
            None => panic!("ROLLCALL_FUZZ_ENTRY={name:?}, there are {names:?}"),
        }
    })
}

fuzz_target!(|input: &[u8]| {
    chosen()(input);
    assert_eq!(n_kept(), 1, "the instance of another client is still listed");
});
