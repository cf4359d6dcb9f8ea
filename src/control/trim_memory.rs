//! Memory that loading left behind, given back to the system. An engine builds a model out of pieces that it frees
//! again, between others that stay, and glibc keeps such holes for later. Called once, before requests come, for
//! it holds up every thread that asks for memory meanwhile; bounded by the memory there is to look through.

/// Gives back whole pages that are free. Does nothing where the allocator is not glibc's.
#[cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "a call to libc"))]
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and locks what it looks at.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of this process that is no file's, in KiB.
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
        give_back();
        let after = resident();
        // Other tests run beside this one.
        let is_less = after + 64 * 1024 < before;
        assert!(is_less || cfg!(not(target_env = "gnu")), "128 MiB were free, and {before} became {after} KiB");
        assert_eq!(stay.len(), 2_048);
    }
}
