//! The response cache of one shard (`--cache-config=local,size=N`): outputs by a request's inputs, for models with
//! `response_cache { enable: true }`. Each shard has an equal share of the bytes and its own entries, so that a lookup
//! takes no lock and touches no other thread's memory. The least recently used entry is evicted first.
//!
//! A key is the loaded model version and 128 bits of keyed hash over the inputs. A reloaded version
//! has other keys, so that it never returns answers of the one before. All outputs are cached:
//! those that a response sends, and their form, are chosen after the lookup. An ensemble computes
//! requested outputs only, and with models that may change while it does not: its key has both.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use slab::Slab;

use crate::metrics::CacheCells;
use crate::model::ModelSpec;
use crate::model::parameters::{ParameterValue, Parameters};
use crate::tensor::Tensor;

/// The approximate bytes that an entry takes besides its tensors.
const ENTRY_SIZE: usize = 512;

/// The key of a cached answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey {
    /// The address of the model version's configuration, which an entry keeps alive.
    model: usize,
    inputs: [u64; 2],
}

/// The cached answers of one shard.
pub struct ResponseCache {
    hashers: [RandomState; 2],
    cache: LruCache<CachedAnswer>,
}

struct CachedAnswer {
    outputs: Vec<Tensor>,
    /// Keeps the address in the key from being reused by another version.
    _spec: Arc<ModelSpec>,
    /// The same for the steps of an ensemble.
    _steps: Vec<Arc<ModelSpec>>,
}

/// The values beside its inputs that the answer of an ensemble depends on; empty for other models.
#[derive(Clone, Debug, Default)]
pub struct EnsembleParts {
    /// The model versions that its steps reach.
    pub models: Vec<Arc<ModelSpec>>,
    /// The indices of the requested outputs.
    pub outputs: Vec<usize>,
}

impl ResponseCache {
    /// A cache of this many bytes.
    pub fn new(size_max: usize) -> Self {
        Self { hashers: [RandomState::new(), RandomState::new()], cache: LruCache::new(size_max) }
    }

    /// The key of the answer to these inputs, and to the client's own parameters if the model looks
    /// at them. The hash keys are random per process, so that no client can construct two requests
    /// with the same key.
    pub fn key(
        &self,
        spec: &Arc<ModelSpec>,
        inputs: &[Tensor],
        parameters: &Parameters,
        parts: &EnsembleParts,
    ) -> CacheKey {
        let hash = |state: &RandomState| {
            let mut hasher = state.build_hasher();
            for input in inputs {
                hasher.write_u8(u8::from(input.is_given()));
                hasher.write_usize(input.shape.len());
                input.shape.iter().for_each(|size| hasher.write_i64(*size));
                hasher.write_usize(input.contents.len());
                hasher.write(&input.contents);
            }
            parameters.0.iter().for_each(|(name, value)| hash_parameter(name, value, &mut hasher));
            parts.models.iter().for_each(|model| hasher.write_usize(Arc::as_ptr(model).addr()));
            parts.outputs.iter().for_each(|output| hasher.write_usize(*output));
            hasher.finish()
        };
        CacheKey { model: Arc::as_ptr(spec).addr(), inputs: self.hashers.each_ref().map(hash) }
    }

    /// The cached outputs under a key.
    pub fn find(&mut self, key: &CacheKey) -> Option<Vec<Tensor>> {
        self.cache.find(key).map(|answered| answered.outputs.clone())
    }

    /// Caches a copy of an answer: an output may be a slice of a large batch, and would keep all of it in memory. An
    /// answer larger than the cache is not cached.
    pub fn insert(&mut self, key: CacheKey, spec: &Arc<ModelSpec>, steps: Vec<Arc<ModelSpec>>, outputs: &[Tensor]) {
        let size = outputs.iter().fold(ENTRY_SIZE, |size, output| size.saturating_add(output.contents.len()));
        if size > self.cache.size_max {
            return;
        }
        let copy = |output: &Tensor| Tensor { contents: Bytes::copy_from_slice(&output.contents), ..output.clone() };
        let outputs = outputs.iter().map(copy).collect();
        self.cache.insert(key, CachedAnswer { outputs, _spec: Arc::clone(spec), _steps: steps }, size);
    }

    /// Evicts all answers: they can be computed again.
    pub fn clear(&mut self) {
        self.cache.clear();
    }

    /// Publishes its fill level.
    pub fn show(&self, cells: &CacheCells) {
        cells.size.set(self.cache.size as u64);
        cells.entries.set(self.cache.entries.len() as u64);
        cells.evictions.set(self.cache.evictions);
    }
}

fn hash_parameter(name: &str, value: &ParameterValue, hasher: &mut impl Hasher) {
    let mut text = |text: &str| {
        hasher.write_usize(text.len());
        hasher.write(text.as_bytes());
    };
    text(name);
    let (kind, number) = match value {
        ParameterValue::Bool(value) => (0, u64::from(*value)),
        ParameterValue::Double(value) => (1, value.to_bits()),
        ParameterValue::Int64(value) => (2, value.cast_unsigned()),
        ParameterValue::Text(value) => {
            text(value);
            (3, 0)
        }
        ParameterValue::Uint64(value) => (4, *value),
    };
    hasher.write_u8(kind);
    hasher.write_u64(number);
}

/// Values by key up to a number of bytes; evicts the least recently used.
struct LruCache<V> {
    size_max: usize,
    size: usize,
    evictions: u64,
    by_key: HashMap<CacheKey, usize>,
    entries: Slab<CacheEntry<V>>,
    /// The ends of the linked list of entries in the order of their last use.
    newest: Option<usize>,
    oldest: Option<usize>,
}

struct CacheEntry<V> {
    key: CacheKey,
    value: V,
    size: usize,
    newer: Option<usize>,
    older: Option<usize>,
}

impl<V> LruCache<V> {
    fn new(size_max: usize) -> Self {
        Self {
            size_max,
            size: 0,
            evictions: 0,
            by_key: HashMap::new(),
            entries: Slab::new(),
            newest: None,
            oldest: None,
        }
    }

    fn find(&mut self, key: &CacheKey) -> Option<&V> {
        let index = *self.by_key.get(key)?;
        self.unlink(index);
        self.link_newest(index);
        self.entries.get(index).map(|entry| &entry.value)
    }

    /// Inserts a value, and evicts until it fits.
    fn insert(&mut self, key: CacheKey, value: V, size: usize) {
        if let Some(index) = self.by_key.get(&key).copied() {
            self.remove(index);
        }
        if size > self.size_max {
            return;
        }
        while self.size > self.size_max - size {
            let Some(oldest) = self.oldest else { break };
            self.evictions += 1;
            self.remove(oldest);
        }
        let index = self.entries.insert(CacheEntry { key, value, size, newer: None, older: None });
        self.by_key.insert(key, index);
        self.size += size;
        self.link_newest(index);
    }

    /// Evicts all, and frees the index.
    fn clear(&mut self) {
        let evictions = self.evictions + self.entries.len() as u64;
        *self = Self { evictions, ..Self::new(self.size_max) };
    }

    fn remove(&mut self, index: usize) {
        self.unlink(index);
        if let Some(entry) = self.entries.try_remove(index) {
            self.by_key.remove(&entry.key);
            self.size -= entry.size;
        }
    }

    fn unlink(&mut self, index: usize) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        let (newer, older) = (entry.newer.take(), entry.older.take());
        match newer.and_then(|newer| self.entries.get_mut(newer)) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match older.and_then(|older| self.entries.get_mut(older)) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, index: usize) {
        let before = self.newest.replace(index);
        match before.and_then(|before| self.entries.get_mut(before)) {
            Some(entry) => entry.newer = Some(index),
            None => self.oldest = Some(index),
        }
        if let Some(entry) = self.entries.get_mut(index) {
            entry.older = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::trial::{spec, tensor};
    use crate::tensor::Datatype;

    fn key(name: char) -> CacheKey {
        CacheKey { model: 0, inputs: [u64::from(u32::from(name)), 0] }
    }

    fn key_of(cache: &ResponseCache, spec: &Arc<ModelSpec>, inputs: &[Tensor]) -> CacheKey {
        cache.key(spec, inputs, &Parameters::default(), &EnsembleParts::default())
    }

    /// Runs steps: `+a3` inserts, `?a` looks up, `-` evicts all. Returns the entries afterwards
    /// from the newest to the oldest, and the bytes.
    fn script(size_max: usize, text: &str) -> String {
        let mut cache = LruCache::new(size_max);
        for word in text.split_whitespace() {
            let Some(name) = word.chars().nth(1) else {
                let (evictions, count) = (cache.evictions, cache.entries.len() as u64);
                cache.clear();
                assert_eq!((word, cache.evictions), ("-", evictions + count));
                continue;
            };
            match word.split_at(2) {
                ("?a" | "?b" | "?c" | "?d", "") => assert!(cache.find(&key(name)).is_none_or(|value| *value == name)),
                (_, size) => cache.insert(key(name), name, size.parse().unwrap()),
            }
        }
        let (mut names, mut at, mut older) = (String::new(), cache.newest, None);
        while let Some(entry) = at.map(|index| &cache.entries[index]) {
            assert_eq!(entry.newer, older, "the list is linked both ways");
            names.push(entry.value);
            (older, at) = (at, entry.older);
        }
        assert_eq!(cache.oldest, older);
        assert_eq!((names.len(), names.len()), (cache.entries.len(), cache.by_key.len()));
        assert!(cache.size <= cache.size_max);
        format!("{names} {}", cache.size)
    }

    #[test]
    fn the_least_recently_used_entry_is_evicted_first() {
        let check = |text: &str, want: &str| assert_eq!(script(10, text), want, "{text}");
        check("", " 0");
        check("+a3 +b3 +c3", "cba 9");
        check("+a3 +b3 +c3 +d3", "dcb 9");
        check("+a3 +b3 +c3 ?a +d3", "dac 9");
        check("+a3 +b3 +c3 ?c ?b ?a", "abc 9");
        check("+a3 +b3 +c3 +d10", "d 10");
        check("+a3 +b3 +c11", "ba 6");
        check("+a3 +b3 +a9", "a 9");
        check("+a3 +b3 +a11", "b 3");
        check("+a10 ?b +b1 ?a", "b 1");
        check("+a0 +b0 +c10 +d0", "dcba 10");
        check("+a5 +b5 ?a +c5 ?b ?a", "ac 10");
        check("+a3 +b4 - +c2 ?a", "c 2");
    }

    #[test]
    fn the_same_inputs_of_the_same_version_are_found_and_no_others() {
        let model = |name: &str| {
            let mut spec = spec(8, &[("a", Datatype::Uint8, &[-1]), ("b", Datatype::Uint8, &[-1])], &[]);
            spec.name = name.to_owned();
            Arc::new(spec)
        };
        let (one, two) = (model("m"), model("m"));
        let mut cache = ResponseCache::new(10_000);
        let inputs = |a: &[u8], b: &[u8]| vec![tensor(&[1, a.len() as i64], a), tensor(&[1, b.len() as i64], b)];
        let outputs = |value: f32| vec![tensor(&[1], &[value])];
        let same = key_of(&cache, &one, &inputs(&[1, 2], &[3]));
        cache.insert(same, &one, Vec::new(), &outputs(7.0));
        let again = key_of(&cache, &one, &inputs(&[1, 2], &[3]));
        assert_eq!(cache.find(&again), Some(outputs(7.0)));
        let left_out =
            Tensor { shape: Default::default(), contents: Default::default(), ..inputs(&[1], &[3]).remove(0) };
        let others = [
            key_of(&cache, &two, &inputs(&[1, 2], &[3])),
            key_of(&cache, &one, &inputs(&[1], &[2, 3])),
            key_of(&cache, &one, &inputs(&[1, 3], &[3])),
            key_of(&cache, &one, &[tensor(&[2, 1], &[1_u8, 2]), tensor(&[1, 1], &[3_u8])]),
            key_of(&cache, &one, &[inputs(&[1, 2], &[3]).remove(0), left_out]),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_eq!(cache.find(other), None, "{index}");
        }
        assert_ne!(same.inputs[0], same.inputs[1], "two hashes, not one twice");
        cache.insert(others[1], &one, Vec::new(), &[tensor(&[10_000], &[0_u8; 10_000])]);
        assert_eq!((cache.find(&others[1]), cache.find(&same)), (None, Some(outputs(7.0))), "too large to be kept");
        cache.insert(others[2], &one, Vec::new(), &[tensor(&[9_300], &[0_u8; 9_300])]);
        assert_eq!(cache.find(&same), None, "it made room");
    }

    #[test]
    fn a_cached_answer_shares_no_memory_with_the_batch_that_it_came_from() {
        let model = Arc::new(spec(8, &[], &[]));
        let mut cache = ResponseCache::new(10_000);
        let whole = tensor(&[100], &[0_f32; 100]);
        let part = Tensor { shape: [1].into_iter().collect(), contents: whole.contents.slice(4..8), ..whole };
        let key = key_of(&cache, &model, &[]);
        cache.insert(key, &model, Vec::new(), std::slice::from_ref(&part));
        let found = cache.find(&key).unwrap();
        assert_ne!(found[0].contents.as_ptr(), part.contents.as_ptr());
        assert_eq!(found, [part]);
    }

    #[test]
    fn an_ensemble_is_asked_again_for_other_outputs_and_when_a_step_is_another_version() {
        let model = || Arc::new(spec(8, &[], &[]));
        let (ensemble, step, reloaded) = (model(), model(), model());
        let cache = ResponseCache::new(10_000);
        let key = |step: &Arc<ModelSpec>, outputs: &[usize]| {
            let parts = EnsembleParts { models: vec![Arc::clone(step)], outputs: outputs.to_vec() };
            cache.key(&ensemble, &[], &Parameters::default(), &parts)
        };
        assert_eq!(key(&step, &[0]), key(&step, &[0]));
        assert_ne!(key(&step, &[0]), key(&step, &[1]));
        assert_ne!(key(&step, &[0]), key(&step, &[0, 1]));
        assert_ne!(key(&step, &[0]), key(&reloaded, &[0]));
    }

    #[test]
    fn requests_that_differ_in_a_parameter_have_other_answers() {
        use ParameterValue::{Bool, Double, Int64, Text, Uint64};
        let model = Arc::new(spec(8, &[], &[]));
        let cache = ResponseCache::new(10_000);
        let parameters = |list: &[(&str, ParameterValue)]| {
            Parameters(list.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
        };
        let text = |text: &str| Text(text.to_owned());
        let all = [
            parameters(&[]),
            parameters(&[("a", Bool(true))]),
            parameters(&[("a", Bool(false))]),
            parameters(&[("a", Int64(1))]),
            parameters(&[("a", Uint64(1))]),
            parameters(&[("a", Double(1.0))]),
            parameters(&[("a", text("1"))]),
            parameters(&[("b", text("1"))]),
            parameters(&[("a", text("")), ("b", text(""))]),
            parameters(&[("a", text("b")), ("", text(""))]),
        ];
        let keys: Vec<_> =
            all.iter().map(|parameters| cache.key(&model, &[], parameters, &EnsembleParts::default())).collect();
        for (index, one) in keys.iter().enumerate() {
            assert_eq!(*one, cache.key(&model, &[], &all[index], &EnsembleParts::default()));
            assert!(keys.iter().skip(index + 1).all(|other| other != one), "{:?}", all[index]);
        }
    }
}
