//! The choice of models that stay, if more are asked for than memory holds
//! (`--model-cache-bytes-max`): the least recently used leaves. Values in, names out: the control
//! thread carries it out.

use std::collections::BTreeMap;

use crate::limits::MODEL_OVERHEAD;

/// The models that are loaded, with their sizes.
#[derive(Debug)]
pub struct ModelCache {
    size_max: u64,
    models: BTreeMap<String, CachedModel>,
}

#[derive(Debug)]
struct CachedModel {
    size: u64,
    /// The time at which its load ended, in milliseconds since the Unix epoch, like the stamps of
    /// its inferences.
    loaded_at: u64,
}

/// The use of a model that may leave, for the control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelUse {
    /// It stays: a client asked for it by a load request, an ensemble that stays needs it, its sequences are not over, or
    /// it is being loaded anew.
    Kept,
    /// The time of its last answer, in milliseconds since the Unix epoch; 0 if never.
    AnsweredAt(u64),
}

impl ModelCache {
    /// Creates a cache for models of `size_max` bytes together.
    pub const fn new(size_max: u64) -> Self {
        Self { size_max, models: BTreeMap::new() }
    }

    /// Returns the most bytes that the models may take together.
    pub const fn size_max(&self) -> u64 {
        self.size_max
    }

    /// Returns the bytes that they take.
    pub fn size(&self) -> u64 {
        self.models.values().map(|model| model.size).fold(0, u64::saturating_add)
    }

    /// Returns the size of a model with versions of these bytes of files and of processes: the
    /// larger of the two, since a process has read its files.
    pub fn size_of(versions: impl Iterator<Item = (u64, u64)>) -> u64 {
        let size = |(files, processes): (u64, u64)| files.max(processes).saturating_add(MODEL_OVERHEAD);
        versions.map(size).fold(0, u64::saturating_add)
    }

    /// A model was loaded, or loaded anew.
    pub fn handle_loaded(&mut self, name: &str, size: u64, epoch_millis: u64) {
        self.models.insert(name.to_owned(), CachedModel { size, loaded_at: epoch_millis });
    }

    /// Forgets the models that no longer serve, for whatever reason.
    pub fn retain(&mut self, serves: impl Fn(&str) -> bool) {
        self.models.retain(|name, _| serves(name));
    }

    /// Returns the model that leaves next; `None` if all have room, or none may leave.
    pub fn next_to_leave(&self, used: impl Fn(&str) -> ModelUse) -> Option<String> {
        if self.size() <= self.size_max {
            return None;
        }
        let candidates = self.models.iter().filter_map(|(name, model)| match used(name) {
            ModelUse::Kept => None,
            ModelUse::AnsweredAt(at) => Some((at.max(model.loaded_at), name)),
        });
        candidates.min().map(|(_, name)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ModelUse::{AnsweredAt, Kept};

    /// Room for three models of a megabyte.
    fn cache(models: &[(&str, u64)]) -> ModelCache {
        let mut cache = ModelCache::new(3_000_000);
        models.iter().for_each(|(name, loaded_at)| cache.handle_loaded(name, 1_000_000, *loaded_at));
        cache
    }

    #[test]
    fn the_model_that_answered_or_was_loaded_longest_ago_leaves() {
        let cache = cache(&[("a", 10), ("b", 20), ("c", 30), ("d", 40)]);
        let check = |uses: &[(&str, ModelUse)], want: Option<&str>| {
            let used =
                |name: &str| uses.iter().find(|(have, _)| *have == name).map_or(AnsweredAt(0), |(_, used)| *used);
            assert_eq!(cache.next_to_leave(used).as_deref(), want, "{uses:?}");
        };
        check(&[], Some("a"));
        check(&[("a", AnsweredAt(25))], Some("b"));
        check(&[("a", AnsweredAt(90)), ("b", AnsweredAt(80)), ("c", AnsweredAt(70))], Some("d"));
        check(&[("a", Kept)], Some("b"));
        check(&[("a", Kept), ("b", Kept), ("c", Kept), ("d", Kept)], None);
    }

    #[test]
    fn nobody_leaves_while_there_is_room() {
        let mut cache = cache(&[("a", 10), ("b", 20), ("c", 30)]);
        assert_eq!((cache.size(), cache.next_to_leave(|_| AnsweredAt(0))), (3_000_000, None));
        cache.handle_loaded("c", 1_000_001, 40);
        assert_eq!(cache.next_to_leave(|_| AnsweredAt(0)).as_deref(), Some("a"), "it takes more now");
        cache.retain(|name| name != "a");
        assert_eq!((cache.size(), cache.next_to_leave(|_| AnsweredAt(0))), (2_000_001, None));
    }

    #[test]
    fn a_version_takes_what_its_files_or_its_processes_do_and_a_little() {
        assert_eq!(ModelCache::size_of([].into_iter()), 0);
        let two = ModelCache::size_of([(5_000_000, 0), (10, 30_000_000)].into_iter());
        assert_eq!(two, 35_000_000 + 2 * MODEL_OVERHEAD);
        assert_eq!(ModelCache::size_of([(u64::MAX, 0), (1, 1)].into_iter()), u64::MAX);
    }
}
