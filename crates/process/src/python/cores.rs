//! The cores of a process of a model, and how many threads its libraries should start. Both are fixed before its program
//! is started: a library counts cores when it is imported, and a thread that spins for another one on the same core
//! takes its time. They depend on flags and on the model alone, not on the other models. Pure.

use std::collections::BTreeMap;

use model::InstanceGroup;

/// The cores that the flags leave to processes of models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessCores {
    /// The cores of processes without a host policy.
    pub free: Vec<usize>,
    /// True if processes are kept to `free`. If a CPU limit leaves the time of fewer cores than there are, they run
    /// where the kernel puts them.
    pub is_pinned: bool,
    /// The cores of each host policy that a flag describes.
    pub by_policy: BTreeMap<String, Vec<usize>>,
    /// The cores that the control groups leave the time of; `None` without a limit.
    pub quota: Option<usize>,
}

/// Settings of the start of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessShare {
    /// The cores that it is kept to; empty for those of the server.
    pub cores: Vec<usize>,
    /// The threads that its libraries should start: at most one for each core, and at least 1.
    pub threads: usize,
}

impl ProcessCores {
    /// The share of an instance of the group `own`, in a model with `groups`. All instances may use all cores that the model
    /// has, so that the kernel finds an idle one, and divide them by the number of threads.
    pub fn share(&self, groups: &[InstanceGroup], own: Option<&InstanceGroup>) -> ProcessShare {
        let policy = |group: &InstanceGroup| self.by_policy.get_key_value(&group.host_policy);
        let own = own.and_then(policy);
        let beside = groups.iter().filter(|group| !group.is_passive && policy(group) == own);
        let count = beside.map(InstanceGroup::instance_count).fold(0, u64::saturating_add);
        let (cores, is_pinned) = own.map_or((&self.free, self.is_pinned), |(_, cores)| (cores, true));
        let usable = cores.len().min(self.quota.unwrap_or(usize::MAX));
        let threads = usable / usize::try_from(count.max(1)).unwrap_or(usize::MAX);
        ProcessShare { cores: if is_pinned { cores.clone() } else { Vec::new() }, threads: threads.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use model::config::{CompletionRules, ConfigDraft};

    fn groups(text: &str) -> Vec<InstanceGroup> {
        let text = format!(
            "backend: 'identity' instance_group [ {text} ] input {{ name: 'x' data_type: TYPE_FP32 dims: 1 }}\n\
             output {{ name: 'y' data_type: TYPE_FP32 dims: 1 }}"
        );
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
        draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap().instance_groups.clone()
    }

    #[test]
    fn threads_times_instances_are_the_cores_and_no_process_has_more_threads_than_cores() {
        let check = |cores: usize, quota: Option<usize>, text: &str, want: (usize, usize)| {
            let is_pinned = quota.is_none_or(|quota| quota >= cores);
            let free: Vec<usize> = (0..cores).take(quota.unwrap_or(cores)).collect();
            let process_cores = ProcessCores { free, is_pinned, quota, by_policy: BTreeMap::new() };
            let groups = groups(text);
            for (group, name) in groups.iter().flat_map(|group| group.instances().map(move |(name, _)| (group, name))) {
                let share = process_cores.share(&groups, Some(group));
                assert_eq!((share.cores.len(), share.threads), want, "{name} of {cores} cores, {quota:?}, {text}");
                assert!(share.cores.is_empty() || share.threads <= share.cores.len());
            }
        };
        // Cores, the quota, instances; the cores that a process is kept to (0: not pinned) and its threads.
        check(1, None, "{ }", (1, 1));
        check(1, None, "{ count: 3 }", (1, 1));
        check(2, None, "{ }", (2, 2));
        check(2, None, "{ count: 2 }", (2, 1));
        check(2, None, "{ count: 5 }", (2, 1));
        check(4, None, "{ }", (4, 4));
        check(4, None, "{ count: 2 }", (4, 2));
        check(4, None, "{ count: 1 }, { count: 2 }", (4, 1));
        check(4, None, "{ count: 2 }, { count: 2 passive: true }", (4, 2));
        check(2, Some(1), "{ }", (0, 1));
        check(64, Some(2), "{ }", (0, 2));
        check(64, Some(2), "{ count: 2 }", (0, 1));
        check(64, Some(64), "{ count: 2 }", (64, 32));
    }

    #[test]
    fn a_process_of_a_host_policy_has_its_cores_and_divides_them_among_its_own() {
        let by_policy = BTreeMap::from([("far".to_owned(), vec![2, 3, 4, 5])]);
        let process_cores = ProcessCores { free: vec![0, 1], is_pinned: true, by_policy, quota: None };
        let groups = groups("{ count: 2 host_policy: 'far' }, { count: 1 }, { count: 1 host_policy: 'unknown' }");
        let share = |process_cores: &ProcessCores, group: usize| {
            let share = process_cores.share(&groups, Some(&groups[group]));
            (share.cores, share.threads)
        };
        assert_eq!(share(&process_cores, 0), (vec![2, 3, 4, 5], 2));
        assert_eq!(share(&process_cores, 1), (vec![0, 1], 1));
        assert_eq!(share(&process_cores, 2), (vec![0, 1], 1));
        // A limit of time bounds the threads, also on cores that a flag gives.
        let limited = ProcessCores { quota: Some(1), is_pinned: false, ..process_cores };
        assert_eq!(share(&limited, 0), (vec![2, 3, 4, 5], 1));
        assert_eq!(share(&limited, 1), (vec![], 1));
        // One that completes a configuration has no group.
        assert_eq!(limited.share(&[], None), ProcessShare { cores: vec![], threads: 1 });
    }
}
