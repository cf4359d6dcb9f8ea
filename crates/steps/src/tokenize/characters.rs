//! The part of each character in the words that `BertNormalizer` and `BertPreTokenizer` make, asked of the crate's own ones.
//!
//! That is a table because they treat characters one by one, with two exceptions: marks that are not
//! stripped may change places, and what is left of a combination may be a space or punctuation. Neither is
//! in the tables.

use std::sync::OnceLock;

use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

/// The part of a character in the words of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Character<'a> {
    /// It is left out, and the word goes on.
    Dropped,
    /// It is this character of a word.
    Letter(char),
    /// It is these characters of a word.
    Letters(&'a str),
    /// It ends a word.
    Space,
    /// Not in the tables.
    Unknown,
    /// It is this character, a word by itself.
    Word(char),
}

/// The table, in pages that are filled when a text first needs one: a page takes half a millisecond, all of
/// them a fifth of a second.
pub struct Characters {
    normalizer: BertNormalizer,
    pages: Vec<OnceLock<Page>>,
}

/// The entries of [`PAGE_LENGTH`] characters.
struct Page {
    entries: Vec<CharacterEntry>,
    /// The longer expansions.
    letters: Vec<Box<str>>,
}

const PAGE_LENGTH: u32 = 256;

#[derive(Clone, Copy)]
enum CharacterEntry {
    Dropped,
    Letter(char),
    Letters(u16),
    Space,
    Unknown,
    Word(char),
}

/// Characters in the tables: Latin, Greek, Cyrillic and Armenian scripts with their marks, punctuation and
/// symbols, Japanese, Chinese, Korean, wide forms, emoji.
const RANGES: [std::ops::RangeInclusive<u32>; 10] = [
    0x0000..=0x058f,
    0x1e00..=0x20cf,
    0x2100..=0x2bff,
    0x3000..=0x3029,
    0x3030..=0x3098,
    0x309b..=0x30ff,
    0x3400..=0x9fff,
    0xac00..=0xd7a3,
    0xfe00..=0xfe0f,
    0xff00..=0xffef,
];

/// Emoji, above the others.
const EMOJI: std::ops::RangeInclusive<u32> = 0x1f300..=0x1faff;

/// The page behind the last one.
const PAGES_END: u32 = 0x1fb;

impl Characters {
    /// The table of a normalizer.
    pub fn new(normalizer: &BertNormalizer) -> Self {
        Self { normalizer: *normalizer, pages: (0..PAGES_END).map(|_| OnceLock::new()).collect() }
    }

    /// The part of a character. May panic if the crate does.
    #[inline]
    pub fn get(&self, character: char) -> Character<'_> {
        let number = u32::from(character) / PAGE_LENGTH;
        let Some(page) = self.pages.get(number as usize) else { return Character::Unknown };
        let page = page.get_or_init(|| Page::new(number, &self.normalizer));
        match page
            .entries
            .get((u32::from(character) % PAGE_LENGTH) as usize)
            .copied()
            .unwrap_or(CharacterEntry::Unknown)
        {
            CharacterEntry::Letter(letter) => Character::Letter(letter),
            CharacterEntry::Space => Character::Space,
            CharacterEntry::Word(letter) => Character::Word(letter),
            CharacterEntry::Dropped => Character::Dropped,
            CharacterEntry::Letters(index) => match page.letters.get(usize::from(index)) {
                Some(letters) => Character::Letters(letters),
                None => Character::Unknown,
            },
            CharacterEntry::Unknown => Character::Unknown,
        }
    }
}

impl Page {
    fn new(number: u32, normalizer: &BertNormalizer) -> Self {
        let mut page = Self { entries: Vec::with_capacity(PAGE_LENGTH as usize), letters: Vec::new() };
        let start = number.saturating_mul(PAGE_LENGTH);
        for code in start..start.saturating_add(PAGE_LENGTH) {
            let known = RANGES.iter().any(|range| range.contains(&code)) || EMOJI.contains(&code);
            let character = char::from_u32(code).filter(|_| known);
            let entry = character.and_then(|character| page.entry(character, normalizer));
            page.entries.push(entry.unwrap_or(CharacterEntry::Unknown));
        }
        page
    }

    /// `None` if the crate fails, or makes something else of it than the entries say.
    fn entry(&mut self, character: char, normalizer: &BertNormalizer) -> Option<CharacterEntry> {
        let mut normalized = NormalizedString::from(character.to_string());
        normalizer.normalize(&mut normalized).ok()?;
        let normalized = normalized.get();
        if normalized.is_empty() {
            return Some(CharacterEntry::Dropped);
        }
        let mut letters = normalized.trim().chars();
        let (first, second) = (letters.next(), letters.next());
        // Between letters, as it is in a text, so that a word by itself shows.
        let mut splits = PreTokenizedString::from(format!("a{normalized}a"));
        BertPreTokenizer.pre_tokenize(&mut splits).ok()?;
        let splits = splits.get_splits(OffsetReferential::Normalized, OffsetType::None);
        match (splits.len(), first, second) {
            (1, Some(letter), None) => Some(CharacterEntry::Letter(letter)),
            (1, Some(_), Some(_)) => {
                let index = u16::try_from(self.letters.len()).ok()?;
                self.letters.push(normalized.into());
                Some(CharacterEntry::Letters(index))
            }
            (2, None, _) => Some(CharacterEntry::Space),
            (3, Some(letter), None) => Some(CharacterEntry::Word(letter)),
            _ => None,
        }
    }
}
