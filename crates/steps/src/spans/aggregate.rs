//! Tokens to entities, by transformers' rules (`TokenClassificationPipeline`: `aggregate`, `aggregate_word`,
//! `group_entities`).

use crate::vector::{argmax, maximum, mean_as_numpy};

/// The way in which labels of tokens become entities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// A word has the label with the highest mean score over its tokens.
    Average,
    /// A word has the label of its first token.
    First,
    /// A word has the label of its token with the highest score.
    Max,
    /// Each token is an entity.
    None,
    /// Tokens are grouped without regard to words.
    Simple,
}

/// The rules of a step.
#[derive(Clone, Copy, Debug)]
pub struct SpanRules {
    /// The way in which labels of tokens become entities.
    pub strategy: Strategy,
    /// The label of a group is the part after the last hyphen, not after the first.
    pub takes_last_part: bool,
}

/// A token that is not left out.
pub struct SpanToken<'a> {
    /// Its place among all tokens.
    pub index: usize,
    /// The score of each label.
    pub scores: &'a [f32],
    /// The place of its first character.
    pub start: usize,
    /// The place behind its last character.
    pub end: usize,
    /// It continues the word of the token before.
    pub continues: bool,
}

/// A part of a text with a label.
#[derive(Clone, Debug, PartialEq)]
pub struct Entity {
    /// The label, without B- and I- if tokens were grouped.
    pub label: String,
    /// The score.
    pub score: f32,
    /// The place of its only token.
    pub index: usize,
    /// The place of its first character.
    pub start: usize,
    /// The place behind its last character.
    pub end: usize,
}

/// Returns the entities of a text.
pub fn aggregated(tokens: &[SpanToken<'_>], rules: SpanRules, labels: &[String]) -> Vec<Entity> {
    let strategy = rules.strategy;
    let entity = |scores: &[f32], first: &SpanToken<'_>, last: &SpanToken<'_>| {
        let best = argmax(scores);
        let score = scores.get(best).copied().unwrap_or(f32::NAN);
        let label = labels.get(best).cloned().unwrap_or_default();
        Entity { label, score, index: first.index, start: first.start, end: last.end }
    };
    if matches!(strategy, Strategy::None | Strategy::Simple) {
        let single = tokens.iter().map(|token| entity(token.scores, token, token)).collect();
        return if strategy == Strategy::None { single } else { grouped(&single, rules) };
    }
    let mut words = Vec::new();
    for word in tokens.chunk_by(|_, next| next.continues) {
        let (Some(first), Some(last)) = (word.first(), word.last()) else { continue };
        words.push(match strategy {
            Strategy::Average => entity(&mean_scores(word), first, last),
            Strategy::Max => entity(highest(word), first, last),
            _ => entity(first.scores, first, last),
        });
    }
    grouped(&words, rules)
}

/// The scores of the token with the highest one, the first of equals.
fn highest<'a>(word: &[SpanToken<'a>]) -> &'a [f32] {
    let mut best: Option<(&'a [f32], f32)> = None;
    for token in word {
        let score = maximum(token.scores);
        if best.is_none_or(|(_, highest)| score > highest) {
            best = Some((token.scores, score));
        }
    }
    best.map_or(&[], |(scores, _)| scores)
}

/// The mean of the scores of each label, added in FP32 token by token.
#[expect(clippy::cast_precision_loss, reason = "words have few tokens")]
fn mean_scores(word: &[SpanToken<'_>]) -> Vec<f32> {
    let mut sums = vec![0.0; word.first().map_or(0, |token| token.scores.len())];
    for token in word {
        for (sum, score) in sums.iter_mut().zip(token.scores) {
            *sum += score;
        }
    }
    for sum in &mut sums {
        *sum /= word.len() as f32;
    }
    sums
}

/// Joins entities of one label that follow each other, unless the later one begins with B-.
fn grouped(entities: &[Entity], rules: SpanRules) -> Vec<Entity> {
    let follows = |left: &Entity, right: &Entity| {
        let (begins, tag) = tag_of(&right.label);
        tag == tag_of(&left.label).1 && !begins
    };
    let mut groups = Vec::new();
    for group in entities.chunk_by(follows) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let scores: Vec<_> = group.iter().map(|entity| entity.score).collect();
        // Not the tag that is compared: transformers cuts labels that have another prefix than B- and I- too.
        let parts = if rules.takes_last_part { first.label.rsplit_once('-') } else { first.label.split_once('-') };
        let label = parts.map_or(&first.label[..], |(_, name)| name).to_owned();
        groups.push(Entity { label, score: mean_as_numpy(&scores), end: last.end, ..first.clone() });
    }
    groups
}

/// True for B-, and the label without B- or I-.
fn tag_of(label: &str) -> (bool, &str) {
    match (label.strip_prefix("B-"), label.strip_prefix("I-")) {
        (Some(tag), _) => (true, tag),
        (_, Some(tag)) => (false, tag),
        _ => (false, label),
    }
}
