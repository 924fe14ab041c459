"""Load generators complete a run: every request is answered, none with an error."""

import json
from pathlib import Path

import pytest

from tests.clients.served import KEY, client

pytestmark = pytest.mark.clients


def test_guidellm(url: str, folder_of_model: str, tmp_path: Path) -> None:
    client(
        "guidellm", "run",
        "--backend", f"kind=openai_http,target={url},model=small,api_key={KEY}",
        "--profile", "kind=concurrent,streams=4",
        "--constraint", "kind=max_requests,count=24",
        "--tokenizer", f"kind=huggingface_auto,model={folder_of_model}",
        "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
        "--output", f"kind=json,path={tmp_path / 'report.json'}",
        "--disable-console", folder=tmp_path, seconds=600,
    )  # fmt: skip
    (run,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    totals = run["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (24, 0)


def test_aiperf(url: str, folder_of_model: str, tmp_path: Path) -> None:
    client(
        "aiperf", "profile", "--model", "small", "--url", url, "--endpoint-type", "chat", "--streaming",
        "--api-key", KEY, "--tokenizer", folder_of_model, "--concurrency", "4", "--request-count", "24",
        "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "16", "--artifact-dir", str(tmp_path / "run"),
        "--ui-type", "none", folder=tmp_path, seconds=600,
        offline=False,  # offline it takes no tokenizer from a folder
    )  # fmt: skip
    (report,) = (tmp_path / "run").rglob("profile_export_aiperf.json")
    run = json.loads(report.read_text())
    assert run["request_count"]["avg"] == 24
    assert not run.get("error_summary")
