//! The CPU time that the control groups of this process allow it, in cores: the limit of a
//! container. The number of cores that it may run on does not show that. Pure, but for the reader
//! of files that is passed in.

use std::path::{Component, Path};

/// The path at which Linux mounts the groups of both versions.
const MOUNT: &str = "/sys/fs/cgroup";

/// Reads a file as text; `None` if it does not exist.
pub type ReadText<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Returns the cores whose time the process may use: the least of all groups on its path, in either
/// version. `None` without a limit.
pub fn cpu_quota(read: ReadText) -> Option<f64> {
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let second = |line: &str| Some(least_on_path("", line.strip_prefix("0::")?, &|folder| of_second(read, folder)));
    let first = |line: &str| {
        // `4:cpu,cpuacct:/path`; if the mount has the name of all controllers, `cpu` is a link to
        // it.
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_cpu = controllers.split(',').any(|controller| controller == "cpu");
        is_cpu.then(|| least_on_path("cpu", path, &|folder| of_first(read, folder)))
    };
    groups.lines().filter_map(|line| second(line).or_else(|| first(line))).flatten().min_by(f64::total_cmp)
}

/// Returns the whole cores for the threads of a process with this CPU time: a part of a core counts
/// as one.
pub fn cores_for(quota: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and a quota is positive")]
    let cores = quota.ceil() as usize;
    cores.max(1)
}

/// Returns the least limit of a group and those around it. Inside a container the path may be that
/// of the host, which does not exist there: then the mounted group is the container's own.
fn least_on_path(mount: &str, path: &str, limit: &dyn Fn(&Path) -> Option<f64>) -> Option<f64> {
    let root = Path::new(MOUNT).join(mount);
    let mut folder = root.clone();
    // A process sees its group outside its namespace as one above: `/../other`.
    folder.extend(Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))));
    let groups = folder.ancestors().take_while(|group| group.starts_with(&root));
    groups.filter_map(limit).min_by(f64::total_cmp)
}

/// `cpu.max`: the quota or `max`, and the period.
fn of_second(read: ReadText, folder: &Path) -> Option<f64> {
    let text = read(&folder.join("cpu.max"))?;
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota, period)
}

/// `cpu.cfs_quota_us`, -1 for no limit, and `cpu.cfs_period_us`.
fn of_first(read: ReadText, folder: &Path) -> Option<f64> {
    ratio(&read(&folder.join("cpu.cfs_quota_us"))?, &read(&folder.join("cpu.cfs_period_us"))?)
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number > 0).map(f64::from);
    Some(number(quota)? / number(period)?)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Returns the quota with these files, each a path beneath the root and its text.
    fn quota(files: &[(&str, &str)]) -> Option<f64> {
        cpu_quota(&|path| {
            let found = files.iter().find(|(name, _)| PathBuf::from("/").join(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn the_least_quota_on_the_path_of_groups_counts() {
        const OWN: (&str, &str) = ("proc/self/cgroup", "0::/a/b\n");
        let check = |files: &[(&str, &str)], want| assert_eq!(quota(files), want, "{files:?}");
        check(&[], None);
        check(&[OWN], None);
        check(&[OWN, ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n")], None);
        check(&[OWN, ("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n")], Some(0.5));
        let outer = ("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
        check(&[OWN, outer, ("sys/fs/cgroup/a/b/cpu.max", "800000 100000\n")], Some(1.5));
        check(&[OWN, outer, ("sys/fs/cgroup/a/b/cpu.max", "50000 50000\n")], Some(1.0));
        check(&[OWN, ("sys/fs/cgroup/other/cpu.max", "1 100000\n")], None);
        // A container that has a namespace of its own, and one that sees the host's path.
        check(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", "250000 100000\n")], Some(2.5));
        check(&[("proc/self/cgroup", "0::/docker/1f\n"), ("sys/fs/cgroup/cpu.max", "20000 10000\n")], Some(2.0));
        check(&[("proc/self/cgroup", "0::/../x\n"), ("sys/fs/cgroup/cpu.max", "20000 10000\n")], Some(2.0));
    }

    #[test]
    fn groups_of_the_first_version_count_too_and_those_of_both() {
        const OWN: (&str, &str) = ("proc/self/cgroup", "9:memory:/x\n4:cpu,cpuacct:/a/b\n0::/c\n");
        const PERIODS: [(&str, &str); 2] = [
            ("sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "50000\n"),
        ];
        let check = |files: &[(&str, &str)], want| {
            let all: Vec<_> = files.iter().chain(&PERIODS).chain([&OWN]).copied().collect();
            assert_eq!(quota(&all), want, "{files:?}");
        };
        check(&[], None);
        check(&[("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n")], None);
        check(&[("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "400000\n")], Some(4.0));
        let outer = ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000\n");
        check(&[("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "400000\n"), outer], Some(3.0));
        check(&[outer, ("sys/fs/cgroup/c/cpu.max", "100000 100000\n")], Some(1.0));
        check(
            &[("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "1\n"), ("sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "9\n")],
            None,
        );
    }

    #[test]
    fn what_is_no_quota_is_no_limit() {
        for text in ["", "max", "0 100000", "100000 0", "-5 100000", "x y", "100000"] {
            assert_eq!(quota(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", text)]), None, "{text:?}");
        }
        assert_eq!(quota(&[("proc/self/cgroup", "cpu\n:\n1:cpu\n")]), None);
    }

    #[test]
    fn a_part_of_a_core_is_one() {
        let cores = [0.01, 0.5, 1.0, 1.01, 2.5, 64.0].map(cores_for);
        assert_eq!(cores, [1, 1, 1, 2, 3, 64]);
    }
}
