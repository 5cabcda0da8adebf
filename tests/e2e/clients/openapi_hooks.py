"""Keeps what schemathesis generates small: few samples of few tokens. The document allows more than a test has time
for. Writes each call's path and status to the file `calls`."""

import schemathesis

LIMITS = {"max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 8, "min_tokens": 8, "n": 2, "top_logprobs": 5}


def is_generation(path):
    return path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict) or not is_generation(context.operation.path):
        return body
    for name, most in LIMITS.items():
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > most:
            body[name] = most
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 4:
        body["prompt"] = prompt[:4]
    if context.operation.path == "/v1/completions":
        body.setdefault("max_tokens", 8)
    elif context.operation.path == "/v1/chat/completions":
        body.setdefault("max_tokens", 8)
    elif context.operation.path == "/v1/responses":
        body.setdefault("max_output_tokens", 8)
    return body


@schemathesis.hook
def after_call(context, case, response):
    with open("calls", "a", encoding="utf-8") as calls:
        calls.write(f"{case.operation.path} {response.status_code}\n")
