"""clients.py ADDRESS: the packages of OpenAI, Cohere and Hugging Face, and TEI's documented bodies, against a server with the folders
`words` (an embedder), `rank` and `mood`."""

import json
import sys
import urllib.request

import cohere
import openai
from huggingface_hub import InferenceClient

address = sys.argv[1]


def post(path, body):
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def close(got, want):
    assert len(got) == len(want) and all(abs(one - other) < 1e-6 for one, other in zip(got, want)), (got, want)


client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0)
assert [model.id for model in client.models.list()] == ["mood", "rank", "words"]
answer = client.embeddings.create(model="words", input=["good", "bad"])
close(answer.data[1].embedding, [-1.0, 0.0])
assert answer.usage.prompt_tokens == 6
close(client.embeddings.create(model="words", input="great", encoding_format="float").data[0].embedding, [0.8, 0.6])
close(client.embeddings.create(model="words", input="great", dimensions=1).data[0].embedding, [1.0])
close(client.embeddings.create(model="words", input=[2, 4, 3]).data[0].embedding, [1.0, 0.0])
close(client.embeddings.create(model="words", input=[[2, 4, 3], [2, 6, 3]]).data[1].embedding, [-1.0, 0.0])
try:
    client.embeddings.create(model="other", input="good")
    raise AssertionError("it is not there")
except openai.NotFoundError as error:
    assert error.body["message"].startswith("model 'other' is not found")
try:
    client.embeddings.create(model="words", input="bad good good good", extra_body={"truncate": False})
    raise AssertionError("it is too long")
except openai.UnprocessableEntityError as error:
    assert error.body["message"] == "`inputs` must have less than 5 tokens. Given: 6"

for ranks in (cohere.ClientV2("none", base_url=f"http://{address}"), cohere.Client("none", base_url=f"http://{address}")):
    ranked = ranks.rerank(model="rank", query="good", documents=["bad", "great", "good"], top_n=2)
    assert [result.index for result in ranked.results] == [2, 1], ranked

hub = InferenceClient(f"http://{address}/models/words")
close(hub.feature_extraction("good")[0].tolist(), [1.0, 0.0])
close(hub.feature_extraction("bad", prompt_name="query", truncate=True, truncation_direction="left")[0].tolist(), [0.0, 0.0])
close(hub.sentence_similarity("good", ["bad", "good"]), [-1.0, 1.0])
# It takes the first element of the answer, which is the best label here as with TEI.
best = InferenceClient(f"http://{address}/models/mood").text_classification("good")
assert (best.label, best.score) == ("positive", 1.0), best

# The bodies of TEI's README and guides, with the model in the path: three are loaded.
close(post("/models/words/embed", {"inputs": "What is Deep Learning?"})[0], [0.0, 1.0])
assert len(post("/models/words/embed", {"inputs": ["Today is a sunny day", "I like you"]})) == 2
texts = ["Deep Learning is not...", "Deep learning is..."]
assert len(post("/rerank", {"query": "What is Deep Learning?", "texts": texts})) == 2
assert len(post("/rerank", {"query": "What is Deep Learning?", "texts": texts, "raw_scores": False})) == 2
assert post("/predict", {"inputs": "I like you."})[0]["label"] == "neutral"
assert len(post("/predict", {"inputs": ["What is Deep Learning?", "Deep Learning is not..."]})) == 1
assert len(post("/predict", {"inputs": [["I like you."], ["I hate pineapples"]]})) == 2
assert post("/v1/embeddings", {"input": "What is Deep Learning?", "model": "words", "encoding_format": "float"})["object"] == "list"
print("all clients agree")
