//! Returns free memory to the system. While an engine builds a model it frees many blocks between others that stay, and
//! glibc keeps these holes. Trimming locks the allocator and stalls every thread that allocates meanwhile, so it runs
//! once before the server listens and once after a burst of loads and unloads.

/// Returns free whole pages to the system (`malloc_trim`). Does nothing without glibc.
#[cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "a call to libc"))]
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and locks what it looks at.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anonymous resident memory of this process, in KiB.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim_end_matches("kB").trim().parse().unwrap()
    }

    #[test]
    fn holes_between_what_stays_are_given_back() {
        const SIZE: usize = 64 * 1024;
        let mut pieces: Vec<_> = (0..2_048).map(|_| (vec![1_u8; SIZE], vec![1_u8; 64])).collect();
        // The small ones stay, so that the end of the heap is not free.
        let stay: Vec<_> = pieces.iter_mut().map(|(_, small)| std::mem::take(small)).collect();
        drop(pieces);
        let before = resident();
        trim();
        let after = resident();
        // Other tests run beside this one.
        let is_less = after + 64 * 1024 < before;
        assert!(is_less || cfg!(not(target_env = "gnu")), "128 MiB were free, and {before} became {after} KiB");
        assert_eq!(stay.len(), 2_048);
    }
}
