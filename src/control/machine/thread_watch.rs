//! Finds processes of models with more runnable threads than cores: threads that wait for each other then wait for a core,
//! too, which makes a run many times longer. Each is told of once. Nothing is changed. The thread also measures their memory
//! ([`crate::control::machine::model_memory`]).

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::control::machine::cpu_quota::{cores_for, cpu_quota};
use crate::control::machine::model_memory::{ModelMemory, process_size};
use crate::control::machine::spawn::spawn;
use crate::log;
use crate::metrics::HostCells;
use crate::process::python::ModelProcess;

/// The pause between two rounds of looks at all processes.
const INTERVAL: Duration = Duration::from_secs(2);
/// Looks that must all find a process before it is told of: one look may meet a thread that is about to sleep.
const LOOKS: usize = 3;
/// The pause between two looks at a process: longer than a thread needs to fall asleep, shorter than a run that is worth a
/// word.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// One look at a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLook {
    /// Threads that run, or wait for a core.
    pub runnable: usize,
    /// The cores that they may use, or fewer where the control groups leave less time.
    pub cores: usize,
}

impl ThreadLook {
    /// Looks at a process now. `None` if it has ended.
    pub fn new(pid: u32, quota: Option<usize>) -> Option<Self> {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let stats = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
        let runnable = stats.filter(|stat| is_runnable(stat)).count();
        let set = sched_getaffinity(Some(Pid::from_raw(pid.cast_signed())?)).ok()?;
        let cores = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).count();
        Some(Self { runnable, cores: cores.min(quota.unwrap_or(usize::MAX)) })
    }

    /// Returns true if there are more threads than cores.
    pub const fn is_over(self) -> bool {
        self.runnable > self.cores
    }
}

/// Looks at a process several times: a thread that is about to sleep counts for a moment. The look with the fewest
/// runnable threads, if all of them had more than cores.
pub fn oversubscribed(look: impl Fn() -> Option<ThreadLook>, pause: impl Fn()) -> Option<ThreadLook> {
    let mut least = look().filter(|look| look.is_over())?;
    for _ in 1..LOOKS {
        pause();
        let next = look().filter(|look| look.is_over())?;
        least = if next.runnable < least.runnable { next } else { least };
    }
    Some(least)
}

/// The same for a process of this machine.
pub fn find(pid: u32, quota: Option<usize>) -> Option<ThreadLook> {
    oversubscribed(|| ThreadLook::new(pid, quota), || std::thread::park_timeout(LOOK_PAUSE))
}

/// The cores that the control groups of this process leave the time of.
pub fn quota() -> Option<usize> {
    cpu_quota(&|path| fs::read_to_string(path).ok()).map(cores_for)
}

/// Which processes were told of.
#[derive(Debug, Default)]
pub struct ThreadWatch {
    told: BTreeSet<String>,
}

impl ThreadWatch {
    /// Looks at all processes, and returns what to log. An instance is told of once as long as it has a process.
    pub fn poll(
        &mut self,
        processes: &[ModelProcess],
        find: impl Fn(&ModelProcess) -> Option<ThreadLook>,
    ) -> Vec<String> {
        self.told.retain(|name| processes.iter().any(|process| process.name == *name));
        let mut texts = Vec::new();
        for process in processes {
            let Some(ThreadLook { runnable, cores }) = find(process).filter(|_| !self.told.contains(&process.name))
            else {
                continue;
            };
            let name = &process.name;
            texts.push(format!(
                "the process of '{name}' has {runnable} runnable threads for {cores} {}, which makes its runs much longer: \
                 give its libraries fewer threads, by OMP_NUM_THREADS or by their own settings",
                if cores == 1 { "core" } else { "cores" }
            ));
            self.told.insert(name.clone());
        }
        texts
    }
}

/// Starts to look at the processes every two seconds. It ends when the cells have been dropped.
pub fn start(cells: &Arc<HostCells>, processes: impl Fn() -> Vec<ModelProcess> + Send + 'static) {
    let cells = Arc::downgrade(cells);
    let started = spawn("thread-watch".to_owned(), move || {
        let (mut watch, mut count, quota) = (ThreadWatch::default(), 0, quota());
        let mut memory = ModelMemory::default();
        while let Some(cells) = cells.upgrade() {
            let processes = processes();
            memory.poll(&processes, process_size);
            for text in watch.poll(&processes, |process| find(process.pid, quota)) {
                log::warning(&text);
                count += 1;
                cells.short_of_cores.set(Some(count));
            }
            drop(cells);
            std::thread::park_timeout(INTERVAL);
        }
    });
    if let Err(error) = started {
        log::warning(&format!("the memory of models' processes is not measured, nor too many threads found: {error}"));
    }
}

/// Processes of models of the servers that run on this machine: their ids and those of their servers.
pub fn of_running_servers() -> Vec<(u32, u32)> {
    let stat = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let parent = |pid: u32| stat(pid).and_then(|stat| parent(&stat));
    let is_server = |pid: u32| stat(pid).is_some_and(|stat| name(&stat) == Some("deuteron"));
    // A server that is supervised is no process of a model. Those of engines are called by the link that starts them.
    let ids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ids = ids.filter(|pid| !is_server(*pid));
    ids.filter_map(|pid| Some((pid, parent(pid).filter(|parent| is_server(*parent))?))).collect()
}

/// The fields of `stat` after the name, which may have any character (proc_pid_stat(5)): state, parent.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace()
}

fn is_runnable(stat: &str) -> bool {
    fields(stat).next() == Some("R")
}

fn parent(stat: &str) -> Option<u32> {
    fields(stat).nth(1)?.parse().ok()
}

fn name(stat: &str) -> Option<&str> {
    Some(stat.split_once('(')?.1.rsplit_once(')')?.0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_process_is_short_of_cores_if_every_look_had_more_runnable_threads() {
        let check = |runnable: &[Option<usize>], cores, want: Option<usize>| {
            let (at, pauses) = (Cell::new(0), Cell::new(0));
            let look = || {
                let found = runnable.get(at.replace(at.get() + 1)).copied().flatten();
                found.map(|runnable| ThreadLook { runnable, cores })
            };
            let found = oversubscribed(look, || pauses.set(pauses.get() + 1));
            assert_eq!(found.map(|look| look.runnable), want, "{runnable:?} on {cores}");
            assert_eq!(pauses.get() + 1, at.get(), "a pause between two looks");
        };
        check(&[Some(2)], 2, None);
        check(&[Some(1)], 1, None);
        check(&[None], 1, None);
        check(&[Some(2), Some(1)], 1, None);
        check(&[Some(4), Some(3), Some(2)], 2, None);
        check(&[Some(4), None], 2, None);
        check(&[Some(4), Some(3), Some(9)], 2, Some(3));
        check(&[Some(2), Some(2), Some(2)], 1, Some(2));
    }

    #[test]
    fn an_instance_is_told_of_once_as_long_as_it_has_a_process() {
        let process =
            |name: &str, pid| ModelProcess { name: name.to_owned(), pid, shares_pages: false, memory: Arc::default() };
        let (a, b) = (process("a_0_0", 1), process("b_0_0", 2));
        let mut watch = ThreadWatch::default();
        let mut poll = |processes: &[ModelProcess], over: &[u32]| {
            let find = |process: &ModelProcess| {
                over.contains(&process.pid).then_some(ThreadLook { runnable: 8, cores: process.pid as usize })
            };
            watch.poll(processes, find)
        };
        let both = [a.clone(), b.clone()];
        assert!(poll(&both, &[]).is_empty());
        let want = "the process of 'a_0_0' has 8 runnable threads for 1 core, which makes its runs much longer: give its \
                    libraries fewer threads, by OMP_NUM_THREADS or by their own settings";
        assert_eq!(poll(&both, &[1]), [want]);
        let second = poll(&both, &[1, 2]);
        assert!(
            second.len() == 1 && second[0].starts_with("the process of 'b_0_0' has 8 runnable threads for 2 cores")
        );
        assert!(poll(&both, &[1, 2]).is_empty());
        // Started again: its process is another, and it is told of already.
        assert!(poll(&[process("a_0_0", 7), b.clone()], &[2, 7]).is_empty());
        // Unloaded and loaded again.
        assert!(poll(&[b], &[2]).is_empty());
        assert_eq!(poll(&[a], &[1]).len(), 1);
    }

    #[test]
    fn the_state_and_the_parent_follow_the_last_parenthesis() {
        let check = |stat: &str, want: (bool, Option<u32>, Option<&str>)| {
            assert_eq!((is_runnable(stat), parent(stat), name(stat)), want, "{stat}");
        };
        check("12 (python3) R 7 12 12 0", (true, Some(7), Some("python3")));
        check("12 (a) R b) S 9 1", (false, Some(9), Some("a) R b")));
        check("12 (x) D 3", (false, Some(3), Some("x")));
        check("", (false, None, None));
    }

    #[test]
    fn a_process_that_runs_is_looked_at_and_one_that_has_ended_is_not() {
        let own = ThreadLook::new(std::process::id(), None).unwrap();
        assert!(own.runnable >= 1 && own.cores >= 1, "this thread runs: {own:?}");
        assert_eq!(ThreadLook::new(std::process::id(), Some(1)).map(|look| look.cores), Some(1));
        assert_eq!(ThreadLook::new(u32::MAX >> 1, None), None);
    }
}
