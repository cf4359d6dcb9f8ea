//! gRPC of TEI (`tei.v1`): messages to calls and outcomes to messages. Each call has one text, but for those of a reranker.

use std::borrow::Cow;

use base::error::Error;
use bytes::Bytes;
use model::ModelSpec;
use prost::Message;
use wire::proto::tei as proto;

use super::answer::TextOutcome;
use super::call::{TextRequest, TextTruncation};
use super::path::TextPath;
use super::times::TextTimes;
use super::values::{self, Vectors};
use crate::framing::{framed, read};
use crate::limits::TEXTS_MAX;

/// An RPC of `tei.v1`. Each but `Info` has a stream too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeiRpc {
    /// `Tokenize/Decode`.
    Decode,
    /// `Embed/Embed`.
    Embed,
    /// `Embed/EmbedAll`.
    EmbedAll,
    /// `Embed/EmbedSparse`.
    EmbedSparse,
    /// `Info/Info`.
    Info,
    /// `Predict/Predict`.
    Predict,
    /// `Predict/PredictPair`.
    PredictPair,
    /// `Rerank/Rerank`.
    Rerank,
    /// `Tokenize/Tokenize`.
    Tokenize,
}

impl TeiRpc {
    /// The RPC of a path `/SERVICE/METHOD`, and true if it is a stream.
    pub fn from_path(service: &[u8], method: &[u8]) -> Option<(Self, bool)> {
        Some(match (service, method) {
            (b"tei.v1.Info", b"/Info") => (Self::Info, false),
            (b"tei.v1.Embed", b"/Embed") => (Self::Embed, false),
            (b"tei.v1.Embed", b"/EmbedStream") => (Self::Embed, true),
            (b"tei.v1.Embed", b"/EmbedSparse") => (Self::EmbedSparse, false),
            (b"tei.v1.Embed", b"/EmbedSparseStream") => (Self::EmbedSparse, true),
            (b"tei.v1.Embed", b"/EmbedAll") => (Self::EmbedAll, false),
            (b"tei.v1.Embed", b"/EmbedAllStream") => (Self::EmbedAll, true),
            (b"tei.v1.Predict", b"/Predict") => (Self::Predict, false),
            (b"tei.v1.Predict", b"/PredictStream") => (Self::Predict, true),
            (b"tei.v1.Predict", b"/PredictPair") => (Self::PredictPair, false),
            (b"tei.v1.Predict", b"/PredictPairStream") => (Self::PredictPair, true),
            (b"tei.v1.Rerank", b"/Rerank") => (Self::Rerank, false),
            (b"tei.v1.Rerank", b"/RerankStream") => (Self::Rerank, true),
            (b"tei.v1.Tokenize", b"/Tokenize") => (Self::Tokenize, false),
            (b"tei.v1.Tokenize", b"/TokenizeStream") => (Self::Tokenize, true),
            (b"tei.v1.Tokenize", b"/Decode") => (Self::Decode, false),
            (b"tei.v1.Tokenize", b"/DecodeStream") => (Self::Decode, true),
            _ => return None,
        })
    }

    /// The path whose call it makes.
    pub const fn path(self) -> TextPath {
        match self {
            Self::Decode => TextPath::Decode,
            Self::Embed | Self::Info => TextPath::Embed,
            Self::EmbedAll => TextPath::EmbedAll,
            Self::EmbedSparse => TextPath::EmbedSparse,
            Self::Predict | Self::PredictPair => TextPath::Predict,
            Self::Rerank => TextPath::Rerank,
            Self::Tokenize => TextPath::Tokenize,
        }
    }

    /// The call of a message.
    ///
    /// # Errors
    /// `Internal` for bytes that are not the message, `InvalidArgument` for a wrong value.
    pub fn call(self, message: &[u8]) -> Result<TextRequest, Error> {
        let mut call = TextRequest { path: self.path(), is_single: true, ..TextRequest::default() };
        match self {
            Self::Decode => {
                let proto::DecodeRequest { ids, skip_special_tokens } = read(message)?;
                call.is_without_special = skip_special_tokens;
                (call.texts, call.ids) = (vec![String::new()], Some(vec![ids]));
            }
            Self::Embed => {
                let request: proto::EmbedRequest = read(message)?;
                call.has_raw_vectors = request.normalize == Some(false);
                call.texts = vec![request.inputs];
                call.truncation = Some(truncation(request.truncate, request.truncation_direction)?);
                call.prompt_name = request.prompt_name;
                call.dimensions = request.dimensions.map(dimensions).transpose()?;
            }
            Self::EmbedAll => {
                let request: proto::EmbedAllRequest = read(message)?;
                call.texts = vec![request.inputs];
                call.truncation = Some(truncation(request.truncate, request.truncation_direction)?);
                call.prompt_name = request.prompt_name;
            }
            Self::EmbedSparse => {
                let request: proto::EmbedSparseRequest = read(message)?;
                call.texts = vec![request.inputs];
                call.truncation = Some(truncation(request.truncate, request.truncation_direction)?);
                call.prompt_name = request.prompt_name;
            }
            Self::Info => return Err(Error::internal("Info has no texts")),
            Self::Predict => {
                let request: proto::PredictRequest = read(message)?;
                call.has_raw_scores = request.raw_scores;
                call.texts = vec![request.inputs];
                call.truncation = Some(truncation(request.truncate, request.truncation_direction)?);
            }
            Self::PredictPair => {
                let request: proto::PredictPairRequest = read(message)?;
                call.has_raw_scores = request.raw_scores;
                let count = request.inputs.len();
                let [query, text] = <[String; 2]>::try_from(request.inputs)
                    .map_err(|_| Error::invalid(format!("'inputs' must have two texts, but has {count}")))?;
                (call.texts, call.queries) = (vec![text], Some(vec![query]));
                call.truncation = Some(truncation(request.truncate, request.truncation_direction)?);
            }
            Self::Rerank => return ranked(read(message)?),
            Self::Tokenize => {
                let request: proto::EncodeRequest = read(message)?;
                call.texts = vec![request.inputs];
                call.is_without_special = !request.add_special_tokens;
                call.prompt_name = request.prompt_name;
            }
        }
        call.check_inputs()?;
        Ok(call)
    }

    /// The framed message of an outcome.
    ///
    /// # Errors
    /// Those of the outputs, as for JSON.
    pub fn answer(
        self,
        call: &TextRequest,
        spec: &ModelSpec,
        outcome: &TextOutcome,
        times: &TextTimes,
    ) -> Result<Bytes, Error> {
        let metadata = Some(metadata(times));
        match self {
            Self::Info => Err(Error::internal("Info has no texts")),
            Self::Decode => {
                let TextOutcome::Texts(texts) = outcome else { return Err(not_of_tokenizer()) };
                framed(&proto::DecodeResponse { text: texts.first().cloned().unwrap_or_default() })
            }
            Self::Tokenize => {
                let TextOutcome::Tokens(rows) = outcome else { return Err(not_of_tokenizer()) };
                let place = |place: usize| u32::try_from(place).unwrap_or(u32::MAX);
                let token = |token: &model::spec::steps::ShownToken| proto::SimpleToken {
                    id: token.id,
                    text: token.text.clone(),
                    special: token.is_special,
                    start: token.span.map(|(start, _)| place(start)),
                    stop: token.span.map(|(_, stop)| place(stop)),
                };
                framed(&proto::EncodeResponse { tokens: rows.iter().flatten().map(token).collect() })
            }
            Self::Embed => {
                let vectors = Vectors::read(call, spec, outcome.outputs()?)?;
                framed(&proto::EmbedResponse { embeddings: vectors.row(0)?.to_vec(), metadata })
            }
            Self::EmbedAll => {
                let rows = values::token_vectors(call, spec, outcome.outputs()?)?;
                let vectors = rows.into_iter().flatten().map(|embeddings| proto::TokenEmbedding { embeddings });
                framed(&proto::EmbedAllResponse { token_embeddings: vectors.collect(), metadata })
            }
            Self::EmbedSparse => {
                let rows = values::sparse_rows(call, spec, outcome.outputs()?)?;
                let value = |(index, value): (i64, f32)| {
                    let index =
                        u32::try_from(index).map_err(|_| Error::internal("an index is not one of a dimension"))?;
                    Ok(proto::SparseValue { index, value })
                };
                let sparse_embeddings = rows.into_iter().flatten().map(value).collect::<Result<_, Error>>()?;
                framed(&proto::EmbedSparseResponse { sparse_embeddings, metadata })
            }
            Self::Predict | Self::PredictPair => {
                let rows = values::class_rows(call, spec, outcome.outputs()?)?;
                let prediction =
                    |(score, label): (f32, Cow<'_, str>)| proto::Prediction { score, label: label.into_owned() };
                let predictions = rows.into_iter().flatten().map(prediction).collect();
                framed(&proto::PredictResponse { predictions, metadata })
            }
            Self::Rerank => {
                let rank = |(index, score): (usize, f32)| proto::Rank {
                    index: u32::try_from(index).unwrap_or(u32::MAX),
                    text: call.texts.get(index).filter(|_| call.returns_texts).cloned(),
                    score,
                };
                let ranks = values::ranking(call, spec, outcome.outputs()?)?.into_iter().map(rank).collect();
                framed(&proto::RerankResponse { ranks, metadata })
            }
        }
    }
}

/// The call of the messages of a `RerankStream`, which came one by one.
#[derive(Debug, Default)]
pub struct RerankTexts(Option<proto::RerankRequest>);

impl RerankTexts {
    /// Takes the next message. The options of the first one count.
    ///
    /// # Errors
    /// `Internal` for bytes that are not the message; `InvalidArgument` for another query, or too many texts.
    pub fn push(&mut self, message: &[u8]) -> Result<(), Error> {
        let next: proto::RerankStreamRequest = read(message)?;
        let request = self.0.get_or_insert_with(|| proto::RerankRequest {
            query: next.query.clone(),
            texts: Vec::new(),
            truncate: next.truncate,
            raw_scores: next.raw_scores,
            return_text: next.return_text,
            truncation_direction: next.truncation_direction,
        });
        if request.query != next.query {
            return Err(Error::invalid("'query' must be the same in all messages of a stream"));
        }
        if request.texts.len() >= TEXTS_MAX {
            return Err(Error::invalid(format!("a stream has more than the {TEXTS_MAX} texts allowed")));
        }
        request.texts.push(next.text);
        Ok(())
    }

    /// Bytes of the texts so far.
    pub fn size(&self) -> usize {
        self.0.as_ref().map_or(0, Message::encoded_len)
    }

    /// The whole call.
    ///
    /// # Errors
    /// `InvalidArgument` if there was no message, or its values are wrong.
    pub fn call(self) -> Result<TextRequest, Error> {
        ranked(self.0.unwrap_or_default())
    }
}

fn ranked(request: proto::RerankRequest) -> Result<TextRequest, Error> {
    if request.query.is_empty() {
        return Err(Error::invalid("'query' must be a text with characters"));
    }
    let call = TextRequest {
        path: TextPath::Rerank,
        queries: Some(vec![request.query; request.texts.len()]),
        truncation: Some(truncation(request.truncate, request.truncation_direction)?),
        returns_texts: request.return_text,
        has_raw_scores: request.raw_scores,
        texts: request.texts,
        ..TextRequest::default()
    };
    call.check_inputs()?;
    Ok(call)
}

/// As in TEI, a text that is too long is refused unless the message says that it may be cut off.
fn truncation(truncate: bool, direction: i32) -> Result<TextTruncation, Error> {
    let direction = proto::TruncationDirection::try_from(direction)
        .map_err(|_| Error::invalid(format!("'truncation_direction' is {direction}: must be 0 (right) or 1 (left)")))?;
    Ok(match (truncate, direction) {
        (false, _) => TextTruncation::Off,
        (true, proto::TruncationDirection::Left) => TextTruncation::Left,
        (true, proto::TruncationDirection::Right) => TextTruncation::Right,
    })
}

fn dimensions(count: u32) -> Result<usize, Error> {
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(Error::invalid("'dimensions' must be above 0")),
    }
}

fn not_of_tokenizer() -> Error {
    Error::internal("the call was not answered by a tokenizer")
}

fn metadata(times: &TextTimes) -> proto::Metadata {
    let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let stamps = times.stamps.unwrap_or_default();
    proto::Metadata {
        compute_chars: u32::try_from(times.characters).unwrap_or(u32::MAX),
        compute_tokens: u32::try_from(times.tokens.unwrap_or_default()).unwrap_or(u32::MAX),
        total_time_ns: nanos(times.answered.since(times.received)),
        tokenization_time_ns: if times.has_tokenizer { nanos(stamps.compute_input_duration()) } else { 0 },
        queue_time_ns: nanos(stamps.queue_duration()),
        inference_time_ns: nanos(stamps.compute_infer_duration()),
    }
}
