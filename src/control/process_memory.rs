//! The memory of this process: how much it may have, and how free memory returns to the system. While an engine builds
//! a model it frees many blocks between others that stay, and glibc keeps these holes. Trimming locks the allocator and
//! stalls every thread that allocates meanwhile, so it runs once before the server listens and once after a burst of
//! loads and unloads.

use std::fs;
use std::path::Path;

use crate::limits::{PYTHON_MEMORY_PART, RUN_MEMORY_PART};
use crate::settings::Settings;

/// Returns free whole pages to the system (`malloc_trim`). Does nothing without glibc.
#[cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "a call to libc"))]
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and locks what it looks at.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes that this process may have: those of the machine, or of the smallest control group that it is in.
pub fn limit() -> usize {
    limit_beneath(Path::new("/"))
}

/// Bytes that one region between the server and a Python process may have.
pub fn python_region_max(settings: &Settings) -> usize {
    settings.python_memory_bytes_max.unwrap_or_else(|| limit() / PYTHON_MEMORY_PART)
}

/// Bytes that one run of the embedded engine may take.
pub fn run_max(settings: &Settings) -> usize {
    settings.run_memory_bytes_max.unwrap_or_else(|| limit() / RUN_MEMORY_PART)
}

/// What a process knows of itself from `/proc` and `/sys` beneath a folder.
fn limit_beneath(root: &Path) -> usize {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let line = |line: &str| number(line.strip_prefix("MemTotal:")?.trim_end_matches("kB"));
    let total = read("proc/meminfo").lines().find_map(line).map(|size| size.saturating_mul(1024));
    // `0::PATH` is of version 2, whose groups have files of their own up to the root.
    let groups = read("proc/self/cgroup");
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let of_group = |group: &Path| number(&fs::read_to_string(group.join("memory.max")).ok()?);
    let mount = root.join("sys/fs/cgroup");
    let folder = mount.join(own);
    let grouped = folder.ancestors().take_while(|group| group.starts_with(&mount)).filter_map(of_group).min();
    let first = number(&read("sys/fs/cgroup/memory/memory.limit_in_bytes"));
    [total, grouped, first].into_iter().flatten().min().unwrap_or(UNKNOWN_SIZE)
}

/// Bytes of a machine that does not say what it has: a small one.
const UNKNOWN_SIZE: usize = 2 * 1024 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_process_is_that_of_the_machine_or_of_a_group_around_it() {
        let root = std::env::temp_dir().join(format!("deuteron-memory-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(limit_beneath(&root), UNKNOWN_SIZE);
        write("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n");
        assert_eq!(limit_beneath(&root), 16_777_216);
        write("proc/self/cgroup", "1:cpu:/x\n0::/a/b\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(limit_beneath(&root), 16_777_216, "a group without a bound");
        write("sys/fs/cgroup/a/memory.max", "8000000\n");
        assert_eq!(limit_beneath(&root), 8_000_000, "one around it");
        write("sys/fs/cgroup/a/b/memory.max", "7000000\n");
        assert_eq!(limit_beneath(&root), 7_000_000);
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "6000000\n");
        assert_eq!(limit_beneath(&root), 6_000_000, "of version 1");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_region_of_a_python_process_has_what_the_flag_says_or_a_quarter() {
        let given = Settings { python_memory_bytes_max: Some(4_096), ..Settings::default() };
        assert_eq!(python_region_max(&given), 4_096);
        assert_eq!(python_region_max(&Settings::default()), limit() / 4);
    }

    #[test]
    fn a_run_has_what_the_flag_says_or_half() {
        let given = Settings { run_memory_bytes_max: Some(4_096), ..Settings::default() };
        assert_eq!((run_max(&given), run_max(&Settings::default())), (4_096, limit() / 2));
    }

    /// Anonymous resident memory of this process, in KiB.
    fn resident() -> usize {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim_end_matches("kB").trim().parse().unwrap()
    }

    #[test]
    fn holes_between_what_stays_are_given_back() {
        const SIZE: usize = 64 * 1024;
        let freed = || {
            let mut pieces: Vec<_> = (0..2_048).map(|_| (vec![1_u8; SIZE], vec![1_u8; 64])).collect();
            // The small ones stay, so that the end of the heap is not free.
            let stay: Vec<_> = pieces.iter_mut().map(|(_, small)| std::mem::take(small)).collect();
            drop(pieces);
            let before = resident();
            trim();
            let after = resident();
            assert_eq!(stay.len(), 2_048);
            (before, after)
        };
        // Other tests run beside this one, and some of them take as much: one time of a few is undisturbed.
        let is_less = |(before, after): (usize, usize)| after + 64 * 1024 < before;
        let is_given_back = (0..40).map(|_| freed()).any(is_less);
        assert!(is_given_back || cfg!(not(target_env = "gnu")), "128 MiB were free, and stayed resident each time");
    }
}
