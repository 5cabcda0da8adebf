"""LangChain's agent loop over OpenAI's Responses and Anthropic's Messages, whole and streamed.

    python langchain_apis.py URL MODEL
"""

import sys

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

url, model = sys.argv[1:]


@tool
def weather(city: str) -> str:
    """Rain of today"""
    return {"Bern": "4 mm", "Basel": "0 mm"}[city]


chats = (
    ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="none", max_retries=0, use_responses_api=True),
    ChatAnthropic(model=model, base_url=url, api_key="none", max_retries=0, max_tokens=500),
)
for chat in chats:
    agent = create_agent(chat, tools=[weather])
    for question, answer in (("Rain in Bern?", "Yes: 4 mm."), ("Rain in Bern and Basel?", "Only in Bern.")):
        asked = {"messages": [{"role": "user", "content": question}]}
        messages = agent.invoke(asked)["messages"]
        kinds = [message.type for message in messages]
        results = ["tool"] * (len(messages) - 3)
        assert kinds == ["human", "ai", *results, "ai"], kinds
        assert messages[-1].text.strip() == answer, messages
        thoughts = [block for block in messages[-1].content_blocks if block["type"] == "reasoning"]
        assert bool(thoughts) == ("Basel" not in question), messages[-1]
        text = ""
        for piece, _ in agent.stream(asked, stream_mode="messages"):
            text += piece.text if piece.type == "AIMessageChunk" else ""
        assert text.strip().endswith(answer), text
        print(type(chat).__name__, kinds, text)
print("langchain agrees")
