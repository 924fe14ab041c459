"""lm-eval gets the same scores from the server as from transformers, on a small task of our own."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.served import client

pytestmark = pytest.mark.clients

_TASK = """
task: small_facts
dataset_path: json
dataset_kwargs:
  data_files:
    test: facts.jsonl
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
"""

_FACTS = (
    ("The capital of France is", " Paris", " Berlin", " a small bird"),
    ("Water freezes at zero degrees", " Celsius", " kilograms", " of blue"),
    ("The opposite of hot is", " cold", " warm", " seven"),
    ("A week has", " seven days", " nine days", " no end of sugar"),
    ("The sun rises in the", " east", " west", " kitchen sink"),
    ("Two plus two equals", " four", " five", " a horse"),
    ("Bees make", " honey", " wine", " steel"),
    ("The largest planet of the solar system is", " Jupiter", " Mercury", " Madrid"),
    ("Shakespeare wrote", " Hamlet", " Windows", " the Moon"),
    ("Ice is frozen", " water", " sand", " music"),
    ("The author of this sentence is", " unknown", " green", " seventeen"),
    ("Cats like to chase", " mice", " lightning", " algebra"),
)


def test_the_scores_are_those_of_transformers(url: str, folder_of_model: str, tmp_path: Path) -> None:
    (tmp_path / "small_facts.yaml").write_text(_TASK)
    rows = [{"question": q, "choices": choices, "answer": 0} for q, *choices in _FACTS]
    (tmp_path / "facts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    served = f"model=small,base_url={url}/v1/completions,tokenizer={folder_of_model},tokenizer_backend=huggingface"
    ours = _scores(tmp_path, "served", "local-completions", f"{served},num_concurrent=4")
    theirs = _scores(tmp_path, "plain", "hf", f"pretrained={folder_of_model},dtype=float32")
    assert ours["scores"] == theirs["scores"]
    for own, other in zip(ours["loglikelihoods"], theirs["loglikelihoods"], strict=True):
        assert own == pytest.approx(other, abs=2e-3)


def _scores(folder: Path, name: str, kind: str, arguments: str) -> dict[str, Any]:
    client(
        "lm_eval", "--model", kind, "--model_args", arguments, "--include_path", str(folder), "--tasks", "small_facts",
        "--output_path", str(folder / name), "--log_samples", "--batch_size", "1", "--device", "cpu",
        folder=folder, seconds=600,
    )  # fmt: skip
    (results,) = (folder / name).rglob("results_*.json")
    (samples,) = (folder / name).rglob("samples_*.jsonl")
    scores = json.loads(results.read_text())["results"]["small_facts"]
    rows = sorted((json.loads(line) for line in samples.read_text().splitlines()), key=lambda row: row["doc_id"])
    return {
        "scores": {key: value for key, value in scores.items() if key.startswith(("acc,", "acc_norm,"))},
        "loglikelihoods": [float(answer[0][0]) for row in rows for answer in row["resps"]],
    }
