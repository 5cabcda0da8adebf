"""OpenAI's own client at the Responses API, with tools to the end; whole, streamed and by its helper. With "store" at the
end: conversations and the background that the server stores.

    python responses.py URL MODEL [store]
"""

import json
import sys
import time

import openai

url, model, *store = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
schema["additionalProperties"] = False
tools = [{"type": "function", "name": "weather", "description": "Rain of today", "parameters": schema, "strict": True}]
RAIN = {"Bern": "4 mm", "Basel": "0 mm"}
common = {"model": model, "max_output_tokens": 500, "tools": tools}


def whole(items, **extra):
    return client.responses.create(input=items, **common, **extra)


def streamed(items, **extra):
    number, deltas = 0, {}
    for event in client.responses.create(input=items, stream=True, **common, **extra):
        assert event.sequence_number == number, event
        number += 1
        if event.type.endswith(".delta"):
            deltas[event.item_id] = deltas.get(event.item_id, "") + event.delta
        if event.type == "response.output_item.done":
            item = event.item
            said = item.arguments if item.type == "function_call" else item.content[0].text
            assert deltas.get(item.id, "") == said, (item, deltas)
    assert event.type == "response.completed", event
    return event.response


def by_helper(items, **extra):
    with client.responses.stream(input=items, **common, **extra) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed", kinds
    return answer


def run(answer, question):
    items, told = [{"role": "user", "content": question}], []
    while True:
        response = answer(items)
        assert response.status == "completed" and response.store is bool(store), response
        thoughts = [item.content[0].text for item in response.output if item.type == "reasoning"]
        told.append((response.output_text, "".join(thoughts)))
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return told
        items += [item.model_dump(exclude_none=True) for item in response.output]
        for call in calls:
            assert call.name == "weather" and call.status == "completed", call
            rain = RAIN[json.loads(call.arguments)["city"]]
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": rain})


for answer in (whole, streamed, by_helper):
    told = run(answer, "Rain in Bern?")
    assert told == [("", "\nI must look.\n"), ("\n\nYes: 4 mm.", "\nIt rains.\n")], told
    told = run(answer, "Rain in Bern and Basel?")
    assert told == [("Two places.\n", ""), ("Only in Bern.", "")], told
    print(answer.__name__, told)

usage = whole("Rain in Bern?").usage
assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens, usage
cut = client.responses.create(model=model, input="Rain in Bern?", max_output_tokens=3)
assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut
forced = whole("Force.", tool_choice={"type": "function", "name": "weather"})
assert [item.type for item in forced.output] == ["function_call"], forced
assert "city" in json.loads(forced.output[0].arguments), forced
if store:
    first = whole("Rain in Bern?")
    (call,) = (item for item in first.output if item.type == "function_call")
    result = [{"type": "function_call_output", "call_id": call.call_id, "output": "4 mm"}]
    for answer in (whole, streamed, by_helper):
        second = answer(result, previous_response_id=first.id)
        assert second.output_text == "\n\nYes: 4 mm." and second.previous_response_id == first.id, second
    again = client.responses.retrieve(second.id)
    assert (again.output_text, again.usage, again.id) == (second.output_text, second.usage, second.id), again
    queued = whole("Rain in Bern?", background=True)
    assert queued.status == "queued" and queued.background, queued
    while (polled := client.responses.retrieve(queued.id)).status in ("queued", "in_progress"):
        time.sleep(0.02)
    assert polled.status == "completed" and polled.output[-1].name == "weather", polled
    items = list(client.responses.input_items.list(queued.id))
    assert items[0].content[0].text == "Rain in Bern?", items
    with client.responses.create(input="Rain in Bern?", background=True, stream=True, **common) as stream:
        number, of = next((event.sequence_number, event.response.id) for event in stream)
    rest = list(client.responses.retrieve(of, stream=True, starting_after=number))
    assert rest[0].sequence_number == number + 1 and rest[-1].type == "response.completed", rest
    client.responses.delete(of)
    for call in (lambda: client.responses.retrieve(of), lambda: whole("a", previous_response_id=of)):
        try:
            call()
        except openai.NotFoundError as error:
            assert of in error.message, error
        else:
            raise AssertionError("it is still there")
    print("stored", len(rest))

for extra, words in (
    *([] if store else [({"previous_response_id": "resp_1"}, "not stored")]),
    ({"tool_choice": {"type": "function", "name": "snow"}}, "`snow`"),
):
    try:
        whole("a", **extra)
    except openai.BadRequestError as error:
        assert words in error.message, error
    else:
        raise AssertionError(f"{extra} was taken")
print("openai", openai.__version__, "agrees")
