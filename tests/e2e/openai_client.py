"""The official OpenAI client against a running server: chat, streaming, completions, log-probabilities, n, stop, and the
error classes that the client maps statuses to.

    python openai_client.py URL KEY MODEL
"""

import sys

import openai
import pydantic

url, key, model = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
hi = [{"role": "user", "content": "The river"}]


def raises(kind, call, code=None, param=None):
    try:
        call()
    except kind as error:
        assert type(error) is kind, f"{type(error)} is not exactly {kind}"
        assert code is None or error.code == code, f"code {error.code}, expected {code}"
        assert param is None or error.param == param, f"param {error.param}, expected {param}"
        return
    raise AssertionError(f"{kind.__name__} was expected")


assert [entry.id for entry in client.models.list()] == [model]
assert client.models.retrieve(model).id == model

chat = client.chat.completions.create(model=model, messages=hi, max_tokens=6, temperature=0, seed=1)
text = chat.choices[0].message.content
assert chat.choices[0].message.role == "assistant" and text, chat
assert chat.usage.completion_tokens <= 6 and chat.usage.total_tokens > chat.usage.prompt_tokens

pieces, usage, roles = [], None, []
for chunk in client.chat.completions.create(
    model=model, messages=hi, max_tokens=6, temperature=0, seed=1, stream=True, stream_options={"include_usage": True}
):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        pieces.append(choice.delta.content or "")
        roles.append(choice.delta.role)
assert "".join(pieces) == text, (pieces, text)
assert usage == chat.usage and roles[0] == "assistant"

two = client.chat.completions.create(model=model, messages=hi, max_tokens=8, n=2, temperature=1.0, seed=5)
assert [choice.index for choice in two.choices] == [0, 1]
assert two.choices[0].message.content != two.choices[1].message.content

probs = client.chat.completions.create(model=model, messages=hi, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2)
content = probs.choices[0].logprobs.content
assert len(content) == probs.usage.completion_tokens and len(content[0].top_logprobs) == 2
assert content[0].top_logprobs[0].logprob >= content[0].top_logprobs[1].logprob
assert content[0].token == content[0].top_logprobs[0].token

plain = client.completions.create(model=model, prompt="The river", max_tokens=20, temperature=0, logprobs=1)
assert plain.choices[0].text and len(plain.choices[0].logprobs.tokens) == plain.usage.completion_tokens
streamed = client.completions.create(model=model, prompt="The river", max_tokens=20, temperature=0, stream=True)
assert "".join(chunk.choices[0].text for chunk in streamed) == plain.choices[0].text
several = client.completions.create(model=model, prompt=["The river", [5, 6, 7]], max_tokens=4, temperature=0, echo=True)
assert len(several.choices) == 2 and several.choices[0].text.startswith("The river")

stop = plain.choices[0].text[3:6]
stopped = client.completions.create(model=model, prompt="The river", max_tokens=20, temperature=0, stop=[stop])
assert stopped.choices[0].finish_reason == "stop"
assert stopped.choices[0].text == plain.choices[0].text.split(stop)[0]

extra = client.completions.create(
    model=model, prompt="The river", max_tokens=4, temperature=1.0, seed=3,
    extra_body={"top_k": 1, "min_tokens": 4, "ignore_eos": True, "return_token_ids": True},
)
assert len(extra.choices[0].token_ids) == 4, extra

raises(openai.AuthenticationError, lambda: openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list(), "invalid_api_key")
raises(openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-9", messages=hi), "model_not_found", "model")
raises(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=hi, temperature=-1), None, "temperature")
raises(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=[]), None, "messages")
raises(openai.BadRequestError, lambda: client.completions.create(model=model, prompt=[5] * 1000), "context_length_exceeded", "prompt")


class Point(pydantic.BaseModel):
    x: int = pydantic.Field(ge=0, le=99)
    ok: bool


compact = {"structured_outputs": {"disable_any_whitespace": True}}
parsed = client.chat.completions.parse(
    model=model, messages=hi, max_tokens=60, seed=2, temperature=1.0, response_format=Point, extra_body=compact
)
assert isinstance(parsed.choices[0].message.parsed, Point), parsed
with client.chat.completions.stream(
    model=model, messages=hi, max_tokens=60, seed=2, temperature=1.0, response_format=Point, extra_body=compact
) as events:
    streamed = events.get_final_completion() if list(events) else None
assert streamed.choices[0].message.parsed == parsed.choices[0].message.parsed, streamed
chosen = client.completions.create(
    model=model, prompt="The river", max_tokens=20, extra_body={"structured_outputs": {"choice": ["Rhine", "Nile"]}}
)
assert chosen.choices[0].text in ("Rhine", "Nile") and chosen.choices[0].finish_reason == "stop", chosen
raises(
    openai.BadRequestError,
    lambda: client.chat.completions.create(
        model=model,
        messages=hi,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}},
    ),
    "invalid_grammar",
    "response_format.json_schema.schema",
)
print("openai", openai.__version__, "agrees")
