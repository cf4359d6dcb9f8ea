//! The resource usage of processes, from `/proc`: CPU time, context switches, memory. Parsing is separate from reading the
//! files, and pure.

use std::fs;
use std::ops::AddAssign;
use std::path::Path;
use std::time::Duration;

/// The resource usage of one or more processes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user space.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Context switches of threads that waited.
    pub switches_voluntary: u64,
    /// Context switches of threads that were preempted.
    pub switches_involuntary: u64,
    /// Resident memory now, in bytes.
    pub resident_size: u64,
    /// Peak resident memory, in bytes.
    pub resident_size_max: u64,
}

impl Usage {
    /// Reads the usage of processes, with all their threads but without their children.
    ///
    /// # Errors
    /// A line for the user, when a process does not exist.
    pub fn of(processes: &[u32]) -> Result<Self, String> {
        let mut sum = Self::default();
        for process in processes {
            sum += Self::of_one(Path::new("/proc"), *process)?;
        }
        Ok(sum)
    }

    fn of_one(root: &Path, process: u32) -> Result<Self, String> {
        let folder = root.join(process.to_string());
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|error| format!("process {process}: {}: {error}", path.display()))
        };
        let malformed = || format!("process {process}: /proc says something unknown");
        let (user, system) = cpu_time(&read(&folder.join("stat"))?).ok_or_else(malformed)?;
        let status = read(&folder.join("status"))?;
        let kilobytes = |name| field(&status, name).unwrap_or(0) * 1024;
        let mut usage = Self {
            user,
            system,
            resident_size: kilobytes("VmRSS:"),
            resident_size_max: kilobytes("VmHWM:"),
            ..Self::default()
        };
        // A process's `status` has only the context switches of its main thread.
        let tasks = fs::read_dir(folder.join("task")).map_err(|error| format!("process {process}: {error}"))?;
        for task in tasks.flatten() {
            // The thread may have ended since the listing.
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            usage.switches_voluntary += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
            usage.switches_involuntary += field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
        }
        Ok(usage)
    }

    /// The usage since an earlier reading. Memory is the current one.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            switches_voluntary: self.switches_voluntary.saturating_sub(earlier.switches_voluntary),
            switches_involuntary: self.switches_involuntary.saturating_sub(earlier.switches_involuntary),
            ..*self
        }
    }

    /// The usage of this interval and a later one together. Memory is that of the later.
    pub fn followed_by(&self, later: &Self) -> Self {
        Self {
            user: self.user + later.user,
            system: self.system + later.system,
            switches_voluntary: self.switches_voluntary + later.switches_voluntary,
            switches_involuntary: self.switches_involuntary + later.switches_involuntary,
            ..*later
        }
    }

    /// CPU time in user space and in the kernel.
    pub fn cpu(&self) -> Duration {
        self.user.saturating_add(self.system)
    }

    /// All context switches.
    pub const fn switches(&self) -> u64 {
        self.switches_voluntary.saturating_add(self.switches_involuntary)
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.user += other.user;
        self.system += other.system;
        self.switches_voluntary += other.switches_voluntary;
        self.switches_involuntary += other.switches_involuntary;
        self.resident_size += other.resident_size;
        self.resident_size_max += other.resident_size_max;
    }
}

/// User and system time from `/proc/PID/stat` (proc(5): fields 14 and 15).
fn cpu_time(stat: &str) -> Option<(Duration, Duration)> {
    // The process name in parentheses may contain spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let user = fields.nth(11)?.parse::<u64>().ok()?;
    let system = fields.next()?.parse::<u64>().ok()?;
    Some((ticks(user), ticks(system)))
}

/// Linux reports times to user space in hundredths of a second on every architecture (`USER_HZ`).
const fn ticks(count: u64) -> Duration {
    Duration::from_millis(count.saturating_mul(10))
}

/// The number behind a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 25 9 9 20 0 3 0 100 1 1";
        assert_eq!(cpu_time(stat), Some((Duration::from_millis(1500), Duration::from_millis(250))));
        assert_eq!(cpu_time("7 (a) S 1"), None);
        assert_eq!(cpu_time(""), None);
    }

    #[test]
    fn voluntary_is_not_taken_for_its_opposite() {
        let status = "Name:\tx\nVmRSS:\t    12 kB\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some(5));
        assert_eq!(field(status, "nonvoluntary_ctxt_switches:"), Some(7));
        assert_eq!(field(status, "VmRSS:"), Some(12));
        assert_eq!(field(status, "VmHWM:"), None);
    }

    #[test]
    fn this_process_uses_time_and_memory_and_one_that_is_not_there_is_named() {
        let before = Usage::of(&[std::process::id()]).unwrap();
        let mut sum = 0_u64;
        let mut used = Usage::default();
        while used.cpu() < Duration::from_millis(20) {
            sum = std::hint::black_box((0..1_000_000).fold(sum, |sum, number| sum.wrapping_mul(31) + number));
            used = Usage::of(&[std::process::id()]).unwrap().since(&before);
        }
        assert!(used.resident_size > 100_000 && used.resident_size_max >= used.resident_size);
        let error = Usage::of(&[u32::MAX]).unwrap_err();
        assert!(error.starts_with("process 4294967295: /proc/4294967295/stat: No such file"), "{error}");
    }
}
