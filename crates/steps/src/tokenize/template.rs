//! The special tokens that a post-processor puts around texts, found out by running it on marked tokens.

use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{Encoding, PostProcessor};

/// A part of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    /// The first text.
    First {
        /// The type id of its tokens.
        type_id: u32,
    },
    /// The second text.
    Second {
        /// The type id of its tokens.
        type_id: u32,
    },
    /// A special token.
    Special {
        /// Its number in the vocabulary.
        id: u32,
        /// Its type id.
        type_id: u32,
    },
}

/// The parts of a row in order.
#[derive(Debug)]
pub struct TokenTemplate(Vec<TemplatePart>);

impl TokenTemplate {
    /// The template of a post-processor for one text or a pair; without one, of texts alone. `None` if it
    /// does not treat tokens alike, or fails. May panic if the crate does.
    pub fn of(processor: Option<&PostProcessorWrapper>, adds_special_tokens: bool, is_pair: bool) -> Option<Self> {
        let Some(processor) = processor else {
            let mut parts = vec![TemplatePart::First { type_id: 0 }];
            parts.extend(is_pair.then_some(TemplatePart::Second { type_id: 1 }));
            return Some(Self(parts));
        };
        let second = is_pair.then(|| marked(SECOND, 1));
        let row = processor.process(marked(FIRST, 0), second, adds_special_tokens).ok()?;
        let (mut type_ids, mut special) = (row.get_type_ids().iter(), row.get_special_tokens_mask().iter());
        let mut parts = Vec::new();
        for (id, offsets) in row.get_ids().iter().zip(row.get_offsets()) {
            let (id, type_id) = (*id, *type_ids.next()?);
            parts.push(match (*offsets, *special.next()?) {
                (FIRST, 0) => TemplatePart::First { type_id },
                (SECOND, 0) => TemplatePart::Second { type_id },
                ((0, 0), 1) => TemplatePart::Special { id, type_id },
                _ => return None,
            });
        }
        let is_all_attended = row.get_attention_mask().iter().all(|mask| *mask == 1);
        is_all_attended.then_some(Self(parts))
    }

    /// The parts.
    pub fn parts(&self) -> &[TemplatePart] {
        &self.0
    }

    /// The number of special tokens.
    pub fn special_count(&self) -> usize {
        self.0.iter().filter(|part| matches!(part, TemplatePart::Special { .. })).count()
    }
}

/// Offsets that tell the two texts apart.
const FIRST: (usize, usize) = (1, 2);
const SECOND: (usize, usize) = (3, 5);

/// A text of one token with these offsets.
fn marked(offsets: (usize, usize), type_id: u32) -> Encoding {
    let sequences = std::iter::empty().collect();
    Encoding::new(
        vec![0],
        vec![type_id],
        vec![String::new()],
        vec![None],
        vec![offsets],
        vec![0],
        vec![1],
        Vec::new(),
        sequences,
    )
}
