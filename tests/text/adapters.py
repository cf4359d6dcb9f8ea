"""adapters.py ADDRESS: LangChain's and LlamaIndex's adapters against a server with the folders of clients.py."""

import sys

from huggingface_hub import InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

address = sys.argv[1]


def close(got, want):
    assert len(got) == len(want) and all(abs(one - other) < 1e-6 for one, other in zip(got, want)), (got, want)


# This release takes no URL as its model, but any client.
by_hub = HuggingFaceEndpointEmbeddings(model="words")
by_hub.client = InferenceClient(f"http://{address}/models/words")
adapters = {
    "langchain-openai": OpenAIEmbeddings(model="words", base_url=f"http://{address}/v1", api_key="none", check_embedding_ctx_length=False),
    "langchain-huggingface": by_hub,
}
for name, adapter in adapters.items():
    vectors = adapter.embed_documents(["good", "bad"])
    close(vectors[0], [1.0, 0.0])
    close(vectors[1], [-1.0, 0.0])
    close(adapter.embed_query("great"), [0.8, 0.6])
    print(name)
indexes = {
    "llama-index-embeddings-text-embeddings-inference": TextEmbeddingsInference(
        model_name="words", base_url=f"http://{address}", endpoint="/models/words/embed", timeout=60, query_instruction="",
        text_instruction=""),
    "llama-index-embeddings-openai-like": OpenAILikeEmbedding(model_name="words", api_base=f"http://{address}/v1", api_key="none"),
}
for name, index in indexes.items():
    vectors = index.get_text_embedding_batch(["good", "bad"])
    close(vectors[0], [1.0, 0.0])
    close(vectors[1], [-1.0, 0.0])
    close(index.get_query_embedding("great"), [0.8, 0.6])
    print(name)
