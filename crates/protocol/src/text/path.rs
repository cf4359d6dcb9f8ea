//! The paths of the text interfaces, and the tasks that they are for.

/// A path of the text interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextPath {
    /// `/classify` and `/v1/classify` of vLLM.
    Classify,
    /// `/decode` of TEI.
    Decode,
    /// `/embed` of TEI.
    #[default]
    Embed,
    /// `/embed_all` of TEI: a vector for each token.
    EmbedAll,
    /// `/embed_sparse` of TEI.
    EmbedSparse,
    /// `/v1/embeddings` of OpenAI, and `/embeddings`.
    Embeddings,
    /// POST `/` of TEI, or of one model: its own task.
    Own,
    /// `/predict` of TEI.
    Predict,
    /// `/rerank`: of TEI with `texts`, of Cohere and Jina with `documents`.
    Rerank,
    /// `/v1/rerank` and `/v2/rerank` of Cohere and Jina.
    RerankDocuments,
    /// `/similarity` of TEI.
    Similarity,
    /// `/tokenize` of TEI.
    Tokenize,
    /// `/vertex` of TEI: bodies of other paths.
    Vertex,
}

/// The work of a text model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextTask {
    /// A text to scores of classes, or to one number.
    Classify,
    /// A text to a vector.
    Embed,
    /// A query and a text to a score.
    Rerank,
    /// A text to numbers of a few dimensions.
    SparseEmbed,
}

impl TextPath {
    /// The path, for errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Classify => "/v1/classify",
            Self::Decode => "/decode",
            Self::Embed => "/embed",
            Self::EmbedAll => "/embed_all",
            Self::EmbedSparse => "/embed_sparse",
            Self::Embeddings => "/v1/embeddings",
            Self::Own => "/",
            Self::Predict => "/predict",
            Self::Rerank => "/rerank",
            Self::RerankDocuments => "/v2/rerank",
            Self::Similarity => "/similarity",
            Self::Tokenize => "/tokenize",
            Self::Vertex => "/vertex",
        }
    }

    /// The path of the part of a URL behind the server or the model.
    pub fn from_url(path: &str) -> Option<Self> {
        Some(match path {
            "/classify" | "/v1/classify" => Self::Classify,
            "/decode" => Self::Decode,
            "/embed" => Self::Embed,
            "/embed_all" => Self::EmbedAll,
            "/embed_sparse" => Self::EmbedSparse,
            "/embeddings" | "/v1/embeddings" => Self::Embeddings,
            "/predict" => Self::Predict,
            "/rerank" => Self::Rerank,
            "/v1/rerank" | "/v2/rerank" => Self::RerankDocuments,
            "/similarity" => Self::Similarity,
            "/tokenize" => Self::Tokenize,
            "/vertex" => Self::Vertex,
            _ => return None,
        })
    }

    /// Returns true if a model of this task answers the path: one with a tokenizer alone for tokens.
    pub const fn takes(self, task: TextTask) -> bool {
        match self {
            Self::Embed | Self::EmbedAll | Self::Embeddings | Self::Similarity => matches!(task, TextTask::Embed),
            Self::EmbedSparse => matches!(task, TextTask::SparseEmbed),
            Self::Classify => matches!(task, TextTask::Classify),
            Self::Own => !matches!(task, TextTask::Rerank),
            Self::Predict => matches!(task, TextTask::Classify | TextTask::Rerank),
            Self::Rerank | Self::RerankDocuments => matches!(task, TextTask::Rerank),
            Self::Decode | Self::Tokenize | Self::Vertex => true,
        }
    }

    /// Returns true if the answer needs the model's tokenizer alone.
    pub const fn is_of_tokenizer(self) -> bool {
        matches!(self, Self::Decode | Self::Tokenize)
    }

    /// Returns true for the paths of OpenAI, whose errors have another form.
    pub const fn is_of_openai(self) -> bool {
        matches!(self, Self::Classify | Self::Embeddings)
    }

    /// The models that answer the path, for errors.
    pub(super) const fn wanted(self) -> &'static str {
        match self {
            Self::Embed | Self::Embeddings | Self::Similarity => {
                "an embedding model (input 'text' BYTES, output 'embedding' FP32)"
            }
            Self::EmbedAll => "an embedding model with outputs 'token_embedding' FP32 and 'token_mask' INT64",
            Self::EmbedSparse => "a sparse embedding model (input 'text' BYTES, outputs 'index', 'value', 'count')",
            Self::Classify => "a classifier (input 'text' BYTES, outputs 'label' and 'score')",
            Self::Predict => "a classifier (input 'text' BYTES, outputs 'label' and 'score') or a reranker",
            Self::Rerank | Self::RerankDocuments => "a reranker (inputs 'query' and 'text' BYTES, output 'score' FP32)",
            Self::Own => "a model of texts; a reranker with 'query' and 'texts'",
            Self::Decode | Self::Tokenize => "a model of texts with the step 'tokenize'",
            Self::Vertex => "a model of texts",
        }
    }
}
