"""The OpenAI Agents SDK over chat completions and over Responses, whole and streamed.

    python openai_agents.py URL MODEL
"""

import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

url, model = sys.argv[1:]
set_tracing_disabled(True)


@function_tool
def weather(city: str) -> str:
    """Rain of today"""
    return {"Bern": "4 mm", "Basel": "0 mm"}[city]


async def main():
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for api in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        agent = Agent(name="a", model=api(model=model, openai_client=client), tools=[weather])
        for question, answer in (("Rain in Bern?", "Yes: 4 mm."), ("Rain in Bern and Basel?", "Only in Bern.")):
            whole = await Runner.run(agent, question)
            assert whole.final_output.strip() == answer, whole
            streamed = Runner.run_streamed(agent, question)
            kinds = [event.name async for event in streamed.stream_events() if event.type == "run_item_stream_event"]
            assert streamed.final_output.strip() == answer, streamed
            assert "tool_called" in kinds and "tool_output" in kinds, kinds
            print(api.__name__, question, kinds)


asyncio.run(main())
print("openai-agents agrees")
