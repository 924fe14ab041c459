"""Libraries that speak to OpenAI's server speak to this one: a chat, a stream, and what they make of the usage."""

import json
from pathlib import Path

import pytest

from tests.clients.served import client

pytestmark = pytest.mark.clients

_LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI
model = ChatOpenAI(base_url=sys.argv[1] + "/v1", model="small", temperature=0, max_tokens=12, stream_usage=True)
whole = model.invoke("Name three colours.")
parts = list(model.stream("Name three colours."))
print(json.dumps({"whole": whole.content, "streamed": "".join(part.content for part in parts),
                  "usage": whole.usage_metadata, "chunks": len(parts)}))
"""

_LITELLM = """
import json, sys
import litellm
ask = dict(model="openai/small", api_base=sys.argv[1] + "/v1", temperature=0, max_tokens=12,
           messages=[{"role": "user", "content": "Name three colours."}])
whole = litellm.completion(**ask)
parts = list(litellm.completion(stream=True, **ask))
print(json.dumps({"whole": whole.choices[0].message.content,
                  "streamed": "".join(part.choices[0].delta.content or "" for part in parts),
                  "usage": whole.usage.model_dump(), "chunks": len(parts)}))
"""


@pytest.mark.parametrize("program", [_LANGCHAIN, _LITELLM], ids=["langchain-openai", "litellm"])
def test_a_chat_whole_and_streamed(url: str, tmp_path: Path, program: str) -> None:
    said = json.loads(client("python", "-c", program, url, folder=tmp_path).splitlines()[-1])
    assert said["whole"] == said["streamed"] != ""
    assert said["chunks"] > 2
    usage = said["usage"]
    assert 12 in (usage.get("output_tokens"), usage.get("completion_tokens"))


def test_llm(url: str, tmp_path: Path) -> None:
    model = f"- model_id: small\n  model_name: small\n  api_base: {url}/v1\n  api_key_name: openai\n"
    (tmp_path / "extra-openai-models.yaml").write_text(model)
    asked = ("-m", "small", "-o", "temperature", "0", "-o", "max_tokens", "12", "Name three colours.")
    streamed = client("llm", *asked, folder=tmp_path)
    whole = client("llm", "--no-stream", *asked, folder=tmp_path)
    assert streamed == whole != ""
