//! The memory of this process: its limit, its use, and the return of free memory to the system.
//! While an engine builds a model it frees many blocks between others that stay, and glibc keeps
//! these holes. Trimming locks the allocator and stalls every thread that allocates meanwhile, so
//! it runs once before the server listens, once after a burst of loads and unloads, and once if
//! memory runs short.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Code, Error};
use crate::limits::{PYTHON_MEMORY_PART, RUN_MEMORY_PART};
use crate::log;
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

/// The memory that this process may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub size: usize,
    /// The source of the limit.
    pub source: LimitSource,
}

/// The source of a limit on the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitSource {
    /// `--memory-limit`.
    Flag,
    /// The control group of this folder, with all processes in it.
    Group(PathBuf),
    /// The machine, with all its memory.
    Machine,
}

impl MemoryLimit {
    /// Returns the limit of the flag, or the smallest control group that the process is in, or the
    /// machine.
    pub fn new(settings: &Settings) -> Self {
        match settings.memory_limit {
            Some(size) => Self { size, source: LimitSource::Flag },
            None => Self::beneath(Path::new("/")),
        }
    }

    /// Returns the limit that `/proc` and `/sys` beneath a folder show.
    fn beneath(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let line = |line: &str| number(line.strip_prefix("MemTotal:")?.trim_end_matches("kB"));
        let total = read("proc/meminfo").lines().find_map(line).map(|size| size.saturating_mul(1024));
        let machine = Self { size: total.unwrap_or(UNKNOWN_SIZE), source: LimitSource::Machine };
        // `0::PATH` is of version 2, `4:memory:/PATH` of version 1. Groups have files of their own up to the root; in a
        // container the root is the container's, and the path may lead nowhere.
        let groups = read("proc/self/cgroup");
        let limits = |mount: &str, mark: &str, file: &str| {
            let mount = root.join(mount);
            let own = groups.lines().find_map(|line| line.split_once(mark)).map_or("", |(_, own)| own);
            let folders: Vec<_> = mount.join(own).ancestors().map(Path::to_path_buf).collect();
            let inside = folders.into_iter().filter(move |folder| folder.starts_with(&mount));
            let size = |folder: &Path| number(&fs::read_to_string(folder.join(file)).ok()?);
            let limits =
                inside.filter_map(|folder| Some(Self { size: size(&folder)?, source: LimitSource::Group(folder) }));
            limits.collect::<Vec<_>>()
        };
        let second = limits("sys/fs/cgroup", "0::/", "memory.max");
        let first = limits("sys/fs/cgroup/memory", ":memory:/", "memory.limit_in_bytes");
        let all = second.into_iter().chain(first).chain([machine]);
        all.min_by_key(|limit| limit.size).unwrap_or(Self { size: UNKNOWN_SIZE, source: LimitSource::Machine })
    }
}

impl MemoryLimit {
    /// Returns the limit for a person: `25.3 GB, all that the machine has`.
    pub fn text(&self) -> String {
        let source = match &self.source {
            LimitSource::Flag => "by --memory-limit".to_owned(),
            LimitSource::Group(folder) => format!("of the control group {}", folder.display()),
            LimitSource::Machine => "all that the machine has".to_owned(),
        };
        format!("{}, {source}", log::size_text(self.size as u64))
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size;
        match &self.source {
            LimitSource::Flag => write!(f, "{size} bytes, by --memory-limit"),
            LimitSource::Group(folder) => write!(f, "{size} bytes, of the control group {}", folder.display()),
            LimitSource::Machine => write!(f, "{size} bytes, all that the machine has"),
        }
    }
}

/// Reads the memory in use that counts towards a limit.
#[derive(Debug)]
pub struct MemoryUsage(UsageFiles);

#[derive(Debug)]
enum UsageFiles {
    /// The memory of a control group, and the part that the kernel can take back.
    Group { current: File, stat: File },
    /// `/proc/self/status`.
    Process(File),
}

impl MemoryUsage {
    /// Opens the files that show it.
    ///
    /// # Errors
    /// If the system has none of them.
    pub fn open(limit: &MemoryLimit) -> io::Result<Self> {
        let LimitSource::Group(folder) = &limit.source else {
            return Ok(Self(UsageFiles::Process(File::open("/proc/self/status")?)));
        };
        let current = File::open(folder.join("memory.current"));
        let current = current.or_else(|_| File::open(folder.join("memory.usage_in_bytes")))?;
        Ok(Self(UsageFiles::Group { current, stat: File::open(folder.join("memory.stat"))? }))
    }

    /// Returns the bytes in use that the kernel cannot take back.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn read(&mut self) -> io::Result<usize> {
        match &self.0 {
            UsageFiles::Group { current, stat } => {
                let current = text_of(current)?.trim().parse::<usize>().map_err(io::Error::other)?;
                Ok(current.saturating_sub(sum_of(&text_of(stat)?, &RECLAIMABLE, 1)))
            }
            UsageFiles::Process(status) => Ok(sum_of(&text_of(status)?, &OWN, 1024)),
        }
    }
}

/// The rows of `/proc/self/status` that count: shared memory is that of models in processes of
/// their own.
const OWN: [&str; 2] = ["RssAnon:", "RssShmem:"];
/// The rows of a group's `memory.stat` that the kernel frees before it ends a process, by both versions.
const RECLAIMABLE: [&str; 5] =
    ["active_file", "inactive_file", "slab_reclaimable", "total_active_file", "total_inactive_file"];

/// Reads a small file of the kernel whole; the kernel makes its text at each read from the start.
fn text_of(file: &File) -> io::Result<String> {
    let mut bytes = vec![0; 8 * 1024];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// Returns the sum of the rows with these names.
fn sum_of(text: &str, names: &[&str], unit: usize) -> usize {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let is_asked = words.next().is_some_and(|name| names.contains(&name));
        words.next().filter(|_| is_asked)?.parse::<usize>().ok()
    };
    let total = if text.contains("\ntotal_active_file ") { "total_" } else { "" };
    let lines = text.lines().filter(|line| total.is_empty() || line.starts_with(total));
    lines.filter_map(row).sum::<usize>().saturating_mul(unit)
}

/// Refuses a model whose files alone are larger than the memory left.
///
/// # Errors
/// `OutOfMemory`, with the flag that sets the limit.
pub fn check_files(name: &str, files_size: u64, settings: &Settings) -> Result<(), Error> {
    let limit = MemoryLimit::new(settings);
    let used = MemoryUsage::open(&limit).and_then(|mut usage| usage.read()).unwrap_or(0);
    let left = limit.size.saturating_sub(used);
    if usize::try_from(files_size).is_ok_and(|size| size <= left) {
        return Ok(());
    }
    Err(Error::new(
        Code::OutOfMemory,
        format!(
            "model '{name}' does not fit into the memory: its files have {files_size} bytes, and {left} are left of {limit}. \
             Unload other models, or give the server more with --memory-limit."
        ),
    ))
}

/// Returns the bytes that one region between the server and a Python process may have.
pub fn python_region_max(settings: &Settings) -> usize {
    settings.python_memory_bytes_max.unwrap_or_else(|| limit(settings) / PYTHON_MEMORY_PART)
}

/// Returns the bytes that one run of the embedded engine may take.
pub fn run_max(settings: &Settings) -> usize {
    settings.run_memory_bytes_max.unwrap_or_else(|| limit(settings) / RUN_MEMORY_PART)
}

/// Returns the bytes that this process may have.
pub fn limit(settings: &Settings) -> usize {
    MemoryLimit::new(settings).size
}

/// The bytes of a machine that does not report its memory: a small one.
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
        let size = || MemoryLimit::beneath(&root).size;
        assert_eq!(MemoryLimit::beneath(&root), MemoryLimit { size: UNKNOWN_SIZE, source: LimitSource::Machine });
        write("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n");
        assert_eq!(size(), 16_777_216);
        write("proc/self/cgroup", "1:cpu:/x\n0::/a/b\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(size(), 16_777_216, "a group without a bound");
        write("sys/fs/cgroup/a/memory.max", "8000000\n");
        assert_eq!(size(), 8_000_000, "one around it");
        write("sys/fs/cgroup/a/b/memory.max", "7000000\n");
        let group = root.join("sys/fs/cgroup/a/b");
        let limit = MemoryLimit::beneath(&root);
        assert_eq!(limit, MemoryLimit { size: 7_000_000, source: LimitSource::Group(group.clone()) });
        assert_eq!(limit.to_string(), format!("7000000 bytes, of the control group {}", group.display()));
        // Memory that the kernel can take back does not count.
        assert!(MemoryUsage::open(&limit).is_err());
        write("sys/fs/cgroup/a/b/memory.current", "5000\n");
        write(
            "sys/fs/cgroup/a/b/memory.stat",
            "anon 9\nfile 8\ninactive_file 300\nactive_file 20\nslab_reclaimable 1\n",
        );
        let mut usage = MemoryUsage::open(&limit).unwrap();
        assert_eq!(usage.read().unwrap(), 4_679);
        write("sys/fs/cgroup/a/b/memory.current", "6000\n");
        assert_eq!(usage.read().unwrap(), 5_679);
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "6000000\n");
        assert_eq!(size(), 6_000_000, "of version 1");
        write("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n");
        write("sys/fs/cgroup/memory/memory.stat", "active_file 5\ntotal_inactive_file 300\ntotal_active_file 20\n");
        assert_eq!(
            MemoryUsage::open(&MemoryLimit::beneath(&root)).unwrap().read().unwrap(),
            4_680,
            "with those beneath"
        );
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_region_of_a_python_process_has_what_the_flag_says_or_a_quarter() {
        let given = Settings { python_memory_bytes_max: Some(4_096), ..Settings::default() };
        assert_eq!(python_region_max(&given), 4_096);
        assert_eq!(python_region_max(&Settings::default()), limit(&Settings::default()) / 4);
    }

    #[test]
    fn a_run_has_what_the_flag_says_or_half() {
        let given = Settings { run_memory_bytes_max: Some(4_096), ..Settings::default() };
        assert_eq!((run_max(&given), run_max(&Settings::default())), (4_096, limit(&Settings::default()) / 2));
        let limited = Settings { memory_limit: Some(4_096), ..Settings::default() };
        assert_eq!((run_max(&limited), python_region_max(&limited)), (2_048, 1_024));
        assert_eq!(MemoryLimit::new(&limited).to_string(), "4096 bytes, by --memory-limit");
        assert_eq!(MemoryLimit::new(&limited).text(), "4.1 kB, by --memory-limit");
    }

    #[test]
    fn what_the_process_uses_is_read_and_a_model_that_is_larger_than_what_is_left_is_refused() {
        let limited = |size| Settings { memory_limit: Some(size), ..Settings::default() };
        let mut usage = MemoryUsage::open(&MemoryLimit::new(&limited(1))).unwrap();
        let used = usage.read().unwrap();
        assert!(used > 1 << 20, "{used}");
        let error = check_files("m", 1 << 40, &limited(1 << 40)).unwrap_err();
        assert_eq!(error.code().on_wire(), (507, 8));
        assert!(error.text().contains("--memory-limit") && error.text().contains("'m'"), "{error}");
        assert_eq!(check_files("m", 1, &limited(1 << 40)), Ok(()));
    }

    /// Returns the anonymous resident memory of this process, in KiB.
    fn resident() -> usize {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim_end_matches("kB").trim().parse().unwrap()
    }

    /// The variable of a test that is alone in its process.
    const ALONE: &str = "DEUTERON_TEST_ALONE";

    #[test]
    fn holes_between_what_stays_are_given_back() {
        const SIZE: usize = 64 * 1024;
        let freed = || {
            let mut pieces: Vec<_> = (0..2_048).map(|_| (vec![1_u8; SIZE], vec![1_u8; 64])).collect();
            // The small blocks stay, so that the end of the heap is not free.
            let stay: Vec<_> = pieces.iter_mut().map(|(_, small)| std::mem::take(small)).collect();
            drop(pieces);
            let before = resident();
            trim();
            let after = resident();
            assert_eq!(stay.len(), 2_048);
            (before, after)
        };
        // Resident memory is the whole process's, so this runs in one of its own.
        if std::env::var_os(ALONE).is_none() {
            let name = "control::machine::process_memory::tests::holes_between_what_stays_are_given_back";
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let status = command.args(["--exact", name]).env(ALONE, "1").stdout(std::process::Stdio::null()).status();
            return assert!(status.unwrap().success(), "128 MiB were free, and stayed resident");
        }
        let (before, after) = freed();
        assert!(after + 64 * 1024 < before || cfg!(not(target_env = "gnu")), "{before} KiB, then {after}");
    }
}
