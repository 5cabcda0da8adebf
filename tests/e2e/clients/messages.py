"""Anthropic's own client in a conversation with tools, to its end; whole, streamed and by its helper.

    python messages.py URL MODEL
"""

import json
import sys

import anthropic

url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"name": "weather", "description": "Rain of today", "input_schema": schema}]
RAIN = {"Bern": "4 mm", "Basel": "0 mm"}
common = {"model": model, "max_tokens": 500, "tools": tools}


def whole(messages, **extra):
    return client.messages.create(messages=messages, **common, **extra)


def streamed(messages, **extra):
    kinds, message = [], None
    for event in client.messages.create(messages=messages, stream=True, **common, **extra):
        kinds.append(event.type)
        if event.type == "message_start":
            message = event.message
            assert message.content == [] and message.usage.output_tokens == 0, message
        elif event.type == "content_block_start":
            assert event.index == len(message.content), event
            message.content.append(event.content_block)
            pieces = ""
        elif event.type == "content_block_delta":
            block, delta = message.content[event.index], event.delta
            if delta.type == "text_delta":
                block.text += delta.text
            elif delta.type == "thinking_delta":
                block.thinking += delta.thinking
            elif delta.type == "signature_delta":
                block.signature = delta.signature
            else:
                assert delta.type == "input_json_delta", delta
                pieces += delta.partial_json
        elif event.type == "content_block_stop" and message.content[event.index].type == "tool_use":
            message.content[event.index].input = json.loads(pieces)
        elif event.type == "message_delta":
            message.stop_reason = event.delta.stop_reason
            message.usage.output_tokens = event.usage.output_tokens
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    return message


def by_helper(messages, **extra):
    text, inputs = "", 0
    with client.messages.stream(messages=messages, **common, **extra) as stream:
        for event in stream:
            text += event.text if event.type == "text" else ""
            inputs += event.type == "input_json"
        message = stream.get_final_message()
    assert text == "".join(block.text for block in message.content if block.type == "text"), text
    assert inputs or message.stop_reason != "tool_use", message
    return message


def run(answer, question):
    messages, told = [{"role": "user", "content": question}], []
    while True:
        message = answer(messages)
        thought = "".join(block.thinking for block in message.content if block.type == "thinking")
        text = "".join(block.text for block in message.content if block.type == "text")
        told.append((text, thought))
        assert message.usage.output_tokens > 0, message
        calls = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == ("tool_use" if calls else "end_turn"), message
        if not calls:
            return told
        messages.append({"role": "assistant", "content": message.content})
        results = []
        for call in calls:
            assert call.name == "weather", call
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": RAIN[call.input["city"]]})
        messages.append({"role": "user", "content": results})


for answer in (whole, streamed, by_helper):
    told = run(answer, "Rain in Bern?")
    assert told == [("", "\nI must look.\n"), ("\n\nYes: 4 mm.", "\nIt rains.\n")], told
    told = run(answer, "Rain in Bern and Basel?")
    assert told == [("Two places.\n", ""), ("Only in Bern.", "")], told
    print(answer.__name__, told)

question = [{"role": "user", "content": "Rain in Bern?"}]
count = client.messages.count_tokens(model=model, messages=question, tools=tools).input_tokens
usage = whole(question).usage
assert count == usage.input_tokens + usage.cache_read_input_tokens, (count, usage)
cut = client.messages.create(model=model, max_tokens=3, messages=question)
assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 3, cut
forced = whole([{"role": "user", "content": "Force."}], tool_choice={"type": "tool", "name": "weather"})
assert [block.type for block in forced.content] == ["tool_use"] and "city" in forced.content[0].input, forced
for call, kind in (
    (lambda: whole(question, tool_choice={"type": "tool", "name": "snow"}), anthropic.BadRequestError),
    (lambda: streamed(question, stop_sequences=[""]), anthropic.BadRequestError),
    (lambda: client.messages.create(model="other", max_tokens=5, messages=question), anthropic.NotFoundError),
):
    try:
        call()
    except kind as error:
        assert error.body["type"] == "error" and error.body["error"]["message"], error.body
    else:
        raise AssertionError(f"{kind} was not raised")
print("anthropic", anthropic.__version__, "agrees")
