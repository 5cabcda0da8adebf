"""OpenAI's own client in a chat with tools, to its end: call, result, answer; whole, streamed and by its helper.

    python chat_tools.py URL MODEL
"""

import json
import sys

import openai

url, model = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
tools = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Rain of today",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
RAIN = {"Bern": "4 mm", "Basel": "0 mm"}


def whole(messages, **extra):
    choice = client.chat.completions.create(model=model, messages=messages, tools=tools, **extra).choices[0]
    return choice.message, choice.finish_reason


def streamed(messages, **extra):
    content, reasoning, calls, finish = "", "", [], None
    for chunk in client.chat.completions.create(model=model, messages=messages, tools=tools, stream=True, **extra):
        for choice in chunk.choices:
            delta = choice.delta
            assert finish is None, "something comes after the end"
            finish = choice.finish_reason
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning", None) or ""
            for part in delta.tool_calls or []:
                if part.index == len(calls):
                    assert part.id and part.type == "function" and part.function.name, part
                    calls.append({"id": part.id, "type": "function", "function": {"name": part.function.name, "arguments": ""}})
                calls[part.index]["function"]["arguments"] += part.function.arguments or ""
    message = {"role": "assistant", "content": content or None, "reasoning": reasoning or None}
    message.update({"tool_calls": calls} if calls else {})
    return openai.types.chat.ChatCompletionMessage.model_validate(message), finish


def by_helper(messages, **extra):
    # The helper wants definitions that it could check answers with.
    strict = json.loads(json.dumps(tools))
    for tool in strict:
        tool["function"]["strict"] = True
        tool["function"]["parameters"]["additionalProperties"] = False
    completions = getattr(client.chat.completions, "stream", None) or client.beta.chat.completions.stream
    pieces = {}
    with completions(model=model, messages=messages, tools=strict, **extra) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                pieces[event.index] = pieces.get(event.index, "") + event.arguments_delta
        choice = stream.get_final_completion().choices[0]
    for index, call in enumerate(choice.message.tool_calls or []):
        assert pieces[index] == call.function.arguments, pieces
    return choice.message, choice.finish_reason


def run(answer, question, **extra):
    messages = [{"role": "user", "content": question}]
    told = []
    while True:
        message, finish = answer(messages, **extra)
        # The helper makes "" of the first piece a content.
        told.append((message.content or None, getattr(message, "reasoning", None)))
        if not message.tool_calls:
            assert finish == "stop", finish
            return told, messages
        assert finish == "tool_calls", finish
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            assert call.id.startswith("call_"), call
            assert call.function.name == "weather", call
            rain = RAIN[json.loads(call.function.arguments)["city"]]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": rain})


for answer in (whole, streamed, by_helper):
    told, messages = run(answer, "Rain in Bern?")
    assert told == [(None, "\nI must look.\n"), ("\n\nYes: 4 mm.", "\nIt rains.\n")], told
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"], messages
    told, messages = run(answer, "Rain in Bern and Basel?")
    assert told == [("Two places.\n", None), ("Only in Bern.", None)], told
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"], messages
    print(answer.__name__, told)

first, _ = whole([{"role": "user", "content": "Rain in Bern and Basel?"}], parallel_tool_calls=False)
assert len(first.tool_calls) == 1, first
quiet, _ = streamed([{"role": "user", "content": "Rain in Bern?"}], extra_body={"include_reasoning": False})
assert quiet.tool_calls and not quiet.reasoning, quiet
usage = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Rain in Bern?"}], tools=tools).usage
assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens, usage
for extra, words in (
    ({"tool_choice": {"type": "function", "function": {"name": "snow"}}}, "`snow`"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "letters, digits"),
    ({"tools": []}, "empty list"),
):
    try:
        client.chat.completions.create(**{"model": model, "messages": [{"role": "user", "content": "a"}], "tools": tools, **extra})
    except openai.BadRequestError as error:
        assert words in error.message, error
    else:
        raise AssertionError(f"{extra} was taken")
print("openai", openai.__version__, "agrees")
