//! The cores that the threads run on: each shard on one core, the workers on the remaining cores or
//! on those that the flags give them.

use std::collections::BTreeMap;

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::error::Error;
use crate::process::python::cores::ProcessCores;
use crate::settings::Settings;

/// The cores that the flags and the models ask for.
#[derive(Clone, Debug, Default)]
pub struct CoreRequest {
    /// `--shards`.
    pub shards: Option<usize>,
    /// `--worker-cores`.
    pub worker_cores: Option<Vec<usize>>,
    /// The host policies that instances follow: name and cores of each.
    pub policy_cores: Vec<(String, Vec<usize>)>,
    /// Number of workers that follow no host policy and need cores without a shard.
    pub workers: usize,
    /// The cores whose time the control groups allow, if they limit it.
    pub quota: Option<usize>,
    /// `--pin=off`.
    pub is_unpinned: bool,
}

/// The cores of the shards and of the workers.
///
/// ```
/// use deuteron::control::machine::cores::{CorePlan, CoreRequest};
///
/// let core_request = CoreRequest { workers: 2, ..CoreRequest::default() };
/// let plan = CorePlan::new(&[0, 1, 2, 3, 4, 5, 6, 7], &core_request)?;
/// assert_eq!((plan.shards, plan.workers), (vec![0, 1], vec![2, 3, 4, 5, 6, 7]));
/// assert_eq!(plan.heavy, [0, 1, 2, 3, 4, 5, 6, 7]);
/// # Ok::<(), deuteron::error::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorePlan {
    /// The core of each shard.
    pub shards: Vec<usize>,
    /// The cores that all workers without a host policy share.
    pub workers: Vec<usize>,
    /// The cores that workers of heavy models share instead: those of the shards too, unless a flag
    /// names them.
    pub heavy: Vec<usize>,
    /// True if threads are pinned to their cores. With `--pin=off`, and if a control group allows the time of fewer
    /// cores than there are, they run where the kernel puts them: the groups beside it would all be given the same few
    /// cores.
    pub is_pinned: bool,
}

impl CorePlan {
    /// Distributes the available cores. Shards get the cores that no flag gives to workers, and share with workers
    /// only when these are too few. Workers without cores of their own get the cores without a shard, or all of
    /// them when every core has a shard, or when their model is heavy: a run then takes so long that a shard's share of
    /// its core is small.
    ///
    /// # Errors
    /// `InvalidArgument` when a flag names a core that this process may not use.
    pub fn new(available: &[usize], core_request: &CoreRequest) -> Result<Self, Error> {
        if let Some(cores) = &core_request.worker_cores {
            check("--worker-cores", cores, available)?;
        }
        for (policy, cores) in &core_request.policy_cores {
            check(&format!("--host-policy={policy},cpu-cores"), cores, available)?;
        }
        let given = core_request.worker_cores.iter().chain(core_request.policy_cores.iter().map(|(_, cores)| cores));
        let given: Vec<usize> = given.flatten().copied().collect();
        let (given, free): (Vec<usize>, Vec<usize>) = available.iter().partition(|core| given.contains(core));
        // Threads beyond the quota would only wait for each other's time to come again.
        let is_limited = core_request.quota.is_some_and(|quota| quota < free.len());
        let is_pinned = !is_limited && !core_request.is_unpinned;
        let free = if is_limited { free.into_iter().take(core_request.quota.unwrap_or(1)).collect() } else { free };
        let workers = if core_request.worker_cores.is_some() { 0 } else { core_request.workers };
        let count = core_request.shards.unwrap_or_else(|| default_shards(free.len(), workers)).max(1);
        let shards: Vec<usize> = free.iter().chain(&given).copied().cycle().take(count).collect();
        let left = |cores: &[usize]| -> Vec<usize> {
            let left: Vec<_> = cores.iter().copied().filter(|core| !shards.contains(core)).collect();
            if left.is_empty() { cores.to_vec() } else { left }
        };
        let free = if free.is_empty() { available } else { &free };
        let given = || core_request.worker_cores.clone();
        let (workers, heavy) = (given().unwrap_or_else(|| left(free)), given().unwrap_or_else(|| free.to_vec()));
        Ok(Self { shards, workers, heavy, is_pinned })
    }

    /// Returns true if a shard may look for work on its core instead of sleeping: no other thread
    /// here would wait for that core, of all that are `available`, and no control group counts its
    /// time. `taken` are the cores of workers.
    pub fn may_spin(&self, shard: usize, available: usize, taken: impl IntoIterator<Item = usize>) -> bool {
        let Some(core) = self.shards.get(shard) else { return false };
        let is_alone = self.shards.iter().filter(|have| *have == core).count() == 1;
        self.is_pinned && available > 1 && is_alone && taken.into_iter().all(|taken| taken != *core)
    }
}

/// The cores of processes of models: what [`CorePlan::heavy`] would be if every host policy of the flags had instances.
/// Processes start before all models are known. What a flag names and is not there fails the plan.
pub fn of_processes(available: &[usize], settings: &Settings, quota: Option<usize>) -> ProcessCores {
    let is_there = |cores: &Vec<usize>| cores.iter().all(|core| available.contains(core));
    let by_policy: BTreeMap<_, _> = settings
        .host_policies
        .iter()
        .filter(|(_, cores)| is_there(cores))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let core_request = CoreRequest {
        worker_cores: settings.worker_cores.clone().filter(is_there),
        policy_cores: by_policy.clone().into_iter().collect(),
        quota,
        ..CoreRequest::default()
    };
    let is_given = core_request.worker_cores.is_some();
    let (free, is_pinned) = match CorePlan::new(available, &core_request) {
        Ok(plan) => (plan.heavy, plan.is_pinned || is_given),
        Err(_) => (available.to_vec(), false),
    };
    ProcessCores { free, is_pinned, by_policy, quota }
}

/// The number of shards without `--shards`: one per core if no worker needs cores without one. Such a worker computes
/// longer than a shard works for its requests, so workers get at least three quarters of the cores.
fn default_shards(cores: usize, workers: usize) -> usize {
    if workers == 0 { cores } else { cores.saturating_sub(workers).min(cores / 4) }
}

/// Returns the cores of worker `index` of `count` workers that share `cores` evenly. With more
/// workers than cores, each gets one core in turn.
pub fn share(cores: &[usize], index: usize, count: usize) -> Vec<usize> {
    let size = cores.len();
    let of = |part: usize| part.saturating_mul(size) / count.max(1);
    if count >= size {
        return cores.iter().copied().cycle().skip(index % size.max(1)).take(1).collect();
    }
    cores.get(of(index)..of(index + 1)).unwrap_or_default().to_vec()
}

/// Returns the cores for `count` workers added at run time. Each gets as many cores as if all
/// workers were distributed again, and those with the fewest workers. `taken` has the cores of each
/// existing worker.
pub fn least_loaded(cores: &[usize], taken: &[Vec<usize>], count: usize) -> Vec<Vec<usize>> {
    let mut loads: Vec<usize> =
        cores.iter().map(|core| taken.iter().filter(|taken| taken.contains(core)).count()).collect();
    let sharing = taken.iter().filter(|taken| taken.iter().any(|core| cores.contains(core))).count();
    let size = (cores.len() / (sharing + count).max(1)).max(1);
    let mut dealt = Vec::with_capacity(count);
    for _ in 0..count {
        let mut order: Vec<usize> = (0..cores.len()).collect();
        order.sort_by_key(|index| loads.get(*index).copied().unwrap_or_default());
        let mut own: Vec<usize> = order.into_iter().take(size).collect();
        own.sort_unstable();
        own.iter().for_each(|index| loads.get_mut(*index).into_iter().for_each(|load| *load += 1));
        dealt.push(own.into_iter().filter_map(|index| cores.get(index).copied()).collect());
    }
    dealt
}

/// Returns the cores that this process may use (its affinity mask).
pub fn available() -> Vec<usize> {
    let cores = sched_getaffinity(None).map(|set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect());
    cores.ok().filter(|cores: &Vec<usize>| !cores.is_empty()).unwrap_or_else(|| vec![0])
}

/// Formats cores as ranges: `0-2,7`.
pub fn text(cores: &[usize]) -> String {
    let mut cores = cores.to_vec();
    cores.sort_unstable();
    cores.dedup();
    let ranges = cores.chunk_by(|one, next| one + 1 == *next).filter_map(|range| match range {
        [] => None,
        [core] => Some(core.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    ranges.collect::<Vec<_>>().join(",")
}

/// Checks that the cores of a flag exist.
///
/// # Errors
/// `InvalidArgument`, naming the flag, when this process may not use one of them.
pub fn check(flag: &str, cores: &[usize], available: &[usize]) -> Result<(), Error> {
    match cores.iter().find(|core| !available.contains(core)) {
        None => Ok(()),
        Some(core) => Err(Error::invalid(format!(
            "{flag} names core {core}, which this process may not use: it has {}",
            text(available)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::executor::pin;

    #[test]
    fn workers_of_heavy_models_share_all_cores_that_no_flag_gives_away() {
        let check = |available: usize, core_request: CoreRequest, want: &str| {
            let available: Vec<_> = (0..available).collect();
            assert_eq!(text(&CorePlan::new(&available, &core_request).unwrap().heavy), want);
        };
        let policy_cores = vec![("far".to_owned(), vec![2, 3])];
        check(1, CoreRequest { workers: 1, ..CoreRequest::default() }, "0");
        check(2, CoreRequest { workers: 1, ..CoreRequest::default() }, "0-1");
        check(16, CoreRequest { workers: 1, shards: Some(4), ..CoreRequest::default() }, "0-15");
        check(4, CoreRequest { workers: 1, worker_cores: Some(vec![1, 2]), ..CoreRequest::default() }, "1-2");
        check(6, CoreRequest { workers: 1, policy_cores, ..CoreRequest::default() }, "0-1,4-5");
    }

    fn dealt(available: usize, core_request: &CoreRequest) -> Result<(String, String), String> {
        let available: Vec<_> = (0..available).collect();
        let cores = CorePlan::new(&available, core_request).map_err(|error| error.text().to_owned())?;
        let shards: Vec<_> = cores.shards.iter().map(usize::to_string).collect();
        Ok((shards.join(" "), text(&cores.workers)))
    }

    #[test]
    fn shards_take_all_cores_or_leave_most_of_them_to_the_workers() {
        let check = |available, shards: Option<usize>, workers, want: (&str, &str)| {
            let core_request = CoreRequest { shards, workers, ..CoreRequest::default() };
            let got = dealt(available, &core_request).unwrap();
            assert_eq!((got.0.as_str(), got.1.as_str()), want, "{available} cores, {workers} workers");
        };
        check(1, None, 0, ("0", "0"));
        check(2, None, 0, ("0 1", "0-1"));
        check(2, None, 1, ("0", "1"));
        check(2, None, 5, ("0", "1"));
        check(4, None, 1, ("0", "1-3"));
        check(8, None, 2, ("0 1", "2-7"));
        check(8, None, 7, ("0", "1-7"));
        check(4, Some(1), 9, ("0", "1-3"));
        check(2, Some(3), 1, ("0 1 0", "0-1"));
    }

    #[test]
    fn processes_have_the_cores_of_heavy_models_whatever_the_models_are() {
        let all: Vec<_> = (0..6).collect();
        let policies = BTreeMap::from([("far".to_owned(), vec![2, 3]), ("gone".to_owned(), vec![9])]);
        let settings = |worker_cores| Settings { worker_cores, host_policies: policies.clone(), ..Settings::default() };
        let check = |worker_cores: Option<&[usize]>, quota, want: (&str, bool)| {
            let found = of_processes(&all, &settings(worker_cores.map(<[_]>::to_vec)), quota);
            assert_eq!((&*text(&found.free), found.is_pinned), want, "{worker_cores:?} {quota:?}");
            assert_eq!(found.by_policy.into_iter().collect::<Vec<_>>(), [("far".to_owned(), vec![2, 3])]);
            assert_eq!(found.quota, quota);
        };
        check(None, None, ("0-1,4-5", true));
        check(None, Some(2), ("0-1", false));
        check(Some(&[4, 5]), None, ("4-5", true));
        check(Some(&[4, 5]), Some(1), ("4-5", true));
        check(Some(&[8]), None, ("0-1,4-5", true));
        let plain = of_processes(&all, &Settings::default(), None);
        assert_eq!((&*text(&plain.free), plain.is_pinned), ("0-5", true));
        assert_eq!(of_processes(&[7], &Settings::default(), Some(1)).free, [7]);
    }

    #[test]
    fn no_shard_is_on_a_core_that_workers_were_given_unless_there_are_too_few() {
        let check = |available, shards: Option<usize>, given: &[usize], want: (&str, &str)| {
            let core_request =
                CoreRequest { shards, worker_cores: Some(given.to_vec()), workers: 1, ..CoreRequest::default() };
            let got = dealt(available, &core_request).unwrap();
            assert_eq!((got.0.as_str(), got.1.as_str()), want, "{available} cores, {given:?}");
        };
        check(4, None, &[0, 1], ("2 3", "0-1"));
        check(4, Some(2), &[0, 2], ("1 3", "0,2"));
        check(4, Some(3), &[0, 2], ("1 3 0", "0,2"));
        check(2, None, &[0, 1], ("0", "0-1"));
        check(1, None, &[0], ("0", "0"));
    }

    #[test]
    fn a_quota_bounds_the_threads_which_then_run_where_the_kernel_puts_them() {
        let check = |available: usize, quota, core_request: CoreRequest, want: (&[usize], &str, bool)| {
            let available: Vec<_> = (0..available).collect();
            let plan = CorePlan::new(&available, &CoreRequest { quota, ..core_request }).unwrap();
            assert_eq!((&*plan.shards, &*text(&plan.workers), plan.is_pinned), want, "{quota:?} of {available:?}");
            assert!(plan.heavy.len() <= quota.unwrap_or(available.len()).max(1));
        };
        let free = CoreRequest::default;
        check(64, None, CoreRequest { shards: Some(2), ..free() }, (&[0, 1], "2-63", true));
        check(2, Some(2), free(), (&[0, 1], "0-1", true));
        check(2, Some(9), free(), (&[0, 1], "0-1", true));
        check(2, Some(1), free(), (&[0], "0", false));
        check(64, Some(1), free(), (&[0], "0", false));
        check(64, Some(3), free(), (&[0, 1, 2], "0-2", false));
        check(64, Some(8), CoreRequest { workers: 1, ..free() }, (&[0, 1], "2-7", false));
        check(64, Some(1), CoreRequest { shards: Some(3), ..free() }, (&[0, 0, 0], "0", false)); // as asked for
        // `--pin=off` changes no number of threads.
        let unpinned = || CoreRequest { is_unpinned: true, ..free() };
        check(2, None, unpinned(), (&[0, 1], "0-1", false));
        check(64, Some(3), unpinned(), (&[0, 1, 2], "0-2", false));
    }

    #[test]
    fn a_shard_looks_for_work_only_on_a_core_of_its_own() {
        let plan = |shards: usize, cores: usize, quota| {
            let available: Vec<_> = (0..cores).collect();
            CorePlan::new(&available, &CoreRequest { shards: Some(shards), quota, ..CoreRequest::default() }).unwrap()
        };
        assert!(plan(2, 2, None).may_spin(1, 2, []));
        assert!(plan(2, 4, None).may_spin(1, 4, [2, 3]));
        assert!(!plan(2, 4, None).may_spin(1, 4, [1, 2, 3]), "a worker has it, too");
        assert!(!plan(1, 1, None).may_spin(0, 1, []), "who brings the work has it, too");
        assert!(!plan(3, 2, None).may_spin(0, 2, []), "another shard has it, too");
        assert!(plan(3, 2, None).may_spin(1, 2, []), "but not that one");
        assert!(!plan(1, 8, Some(2)).may_spin(0, 8, []), "a container pays for it");
        assert!(!plan(1, 8, None).may_spin(1, 8, []), "there is none");
    }

    #[test]
    fn the_cores_of_host_policies_are_no_shards_and_no_other_workers() {
        let policy_cores = vec![("far".to_owned(), vec![2, 3])];
        let core_request = CoreRequest { policy_cores, workers: 1, ..CoreRequest::default() };
        assert_eq!(dealt(4, &core_request).unwrap(), ("0".to_owned(), "1".to_owned()));
        assert_eq!(dealt(6, &core_request).unwrap(), ("0".to_owned(), "1,4-5".to_owned()));
        let want = "--host-policy=far,cpu-cores names core 2, which this process may not use: it has 0-1";
        assert_eq!(dealt(2, &core_request).unwrap_err(), want);
        let core_request = CoreRequest { worker_cores: Some(vec![0, 7]), ..CoreRequest::default() };
        let want = "--worker-cores names core 7, which this process may not use: it has 0";
        assert_eq!(dealt(1, &core_request).unwrap_err(), want);
    }

    #[test]
    fn workers_share_cores_evenly_and_each_has_one_at_least() {
        let shares = |size: usize, count: usize| -> Vec<String> {
            let cores: Vec<_> = (0..size).collect();
            (0..count).map(|index| text(&share(&cores, index, count))).collect()
        };
        assert_eq!(shares(4, 1), ["0-3"]);
        assert_eq!(shares(5, 2), ["0-1", "2-4"]);
        assert_eq!(shares(3, 3), ["0", "1", "2"]);
        assert_eq!(shares(2, 5), ["0", "1", "0", "1", "0"]);
        assert_eq!(text(&[7, 2, 0, 1, 2]), "0-2,7");
    }

    #[test]
    fn who_comes_later_goes_where_the_fewest_are() {
        let check = |taken: &[&[usize]], count, want: &[&[usize]]| {
            let taken: Vec<_> = taken.iter().map(|cores| cores.to_vec()).collect();
            assert_eq!(least_loaded(&[2, 3, 4, 5], &taken, count), want, "{taken:?} {count}");
        };
        check(&[], 1, &[&[2, 3, 4, 5]]);
        check(&[], 2, &[&[2, 3], &[4, 5]]);
        check(&[&[2, 3, 4, 5]], 1, &[&[2, 3]]);
        check(&[&[2, 3]], 1, &[&[4, 5]]);
        check(&[&[2], &[3], &[3]], 2, &[&[4], &[5]]);
        check(&[&[0], &[1]], 1, &[&[2, 3, 4, 5]]); // The cores of another policy.
        check(&[&[2], &[3], &[4], &[5], &[2]], 2, &[&[3], &[4]]);
        assert_eq!(least_loaded(&[7], &[vec![7]], 2), [[7], [7]]);
    }

    #[test]
    fn a_thread_stays_where_it_is_pinned_and_so_do_those_that_it_starts() {
        let cores = available();
        let last = *cores.last().unwrap();
        let inside = std::thread::spawn(move || {
            pin(&[last]).unwrap();
            std::thread::spawn(available).join().unwrap()
        });
        assert_eq!(inside.join().unwrap(), [last]);
        assert_eq!(available(), cores, "this thread is where it was");
    }
}
