//! The encoders, one file for each architecture: from token ids to the last hidden states.

mod bert;
mod deberta;
mod distilbert;
pub(crate) mod modernbert;
mod mpnet;

use base::error::Error;

use crate::config::{Family, TransformerConfig};
use crate::graph::OnnxDraft;

/// Writes the encoder of a model and returns its last hidden states, `[batch, sequence, width]`.
pub(crate) fn encode(draft: &mut OnnxDraft<'_>, config: &TransformerConfig) -> Result<String, Error> {
    match config.family {
        Family::Bert | Family::Camembert | Family::Electra | Family::Roberta | Family::XlmRoberta => {
            bert::encode(draft, config)
        }
        Family::DebertaV2 => deberta::encode(draft, config),
        Family::Distilbert => distilbert::encode(draft, config),
        Family::Modernbert => modernbert::encode(draft, config),
        Family::Mpnet => mpnet::encode(draft, config),
    }
}

/// The prefix that tensors of the encoder have in files of a model with a head.
pub(crate) const fn prefix(family: Family) -> &'static str {
    match family {
        Family::Bert => "bert.",
        Family::Camembert | Family::Roberta | Family::XlmRoberta => "roberta.",
        Family::DebertaV2 => "deberta.",
        Family::Distilbert => "distilbert.",
        Family::Electra => "electra.",
        Family::Modernbert => "model.",
        Family::Mpnet => "mpnet.",
    }
}
