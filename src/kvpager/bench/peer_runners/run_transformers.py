"""Hugging Face ``generate``: static batches, padded on the left.

It streams nothing for a batch, so a stopping criterion, which is called once a step, notes the times. Asks go in
batches of as many as fit into the KV memory, in their order; a batch runs until its longest answer has ended, and what
the others have too much is dropped.
"""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from serving_loop import WARM_UP, Answer, Arrivals, Asks, Load, serve, versions

_MOST_ROWS = 128


class _Noted(StoppingCriteria):
    """Tells the arrivals of each row's newest token; with its margin, where those are wanted."""

    def __init__(self, arrivals: Arrivals, batch: list[tuple[int, dict[str, Any]]], margins: bool) -> None:
        self._arrivals, self._batch, self._margins = arrivals, batch, margins

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        newest = input_ids[:, -1].tolist()
        leads = [0.0] * len(newest)
        if self._margins:
            top = scores[-1].float().topk(2).values
            leads = (top[:, 0] - top[:, 1]).tolist()
        for (index, ask), token, lead in zip(self._batch, newest, leads, strict=True):
            if len(self._arrivals.answers[index].tokens) < ask["max_tokens"]:
                self._arrivals.came(index, [token])
                self._arrivals.answers[index].margins.append(lead)
        return torch.zeros(len(newest), dtype=torch.bool)


class Generate:
    def __init__(self, options: dict[str, Any]) -> None:
        torch.set_num_threads(options["threads"])
        self._precision = options["variant"] or options["precision"]
        self._margins = options.get("margins", False)
        self._model = AutoModelForCausalLM.from_pretrained(options["model"], dtype=getattr(torch, self._precision))
        self._model.eval()
        text = self._model.config.get_text_config()
        head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        elements = 2 * text.num_hidden_layers * text.num_key_value_heads * head
        self._kv_tokens = options["kv_bytes"] // (elements * self._model.dtype.itemsize)
        self.run(WARM_UP)

    def about(self) -> dict[str, Any]:
        attention = self._model.config._attn_implementation
        return {
            "precision": f"weights, activations and KV {self._precision}, attention {attention}",
            "bits": 8 * self._model.dtype.itemsize,
            "kv_tokens": self._kv_tokens,
            "versions": versions("transformers", "torch"),
        }

    def run(self, load: Load) -> list[Answer]:
        arrivals = Arrivals(load)
        waiting: list[tuple[int, dict[str, Any]]] = []
        while arrivals.any_left or waiting:
            waiting += arrivals.due()
            if not waiting:
                arrivals.wait()
                continue
            count = self._that_fit([ask for _, ask in waiting])
            self._generate(arrivals, waiting[:count])
            del waiting[:count]
        return arrivals.answers

    def _that_fit(self, asks: Asks) -> int:
        """The first so many, padded to the longest of them; at least one."""
        prompt = answer = 0
        for count, ask in enumerate(asks[:_MOST_ROWS]):
            prompt, answer = max(prompt, len(ask["prompt"])), max(answer, ask["max_tokens"])
            if count and (count + 1) * (prompt + answer) > self._kv_tokens:
                return count
        return min(len(asks), _MOST_ROWS)

    def _generate(self, arrivals: Arrivals, batch: list[tuple[int, dict[str, Any]]]) -> None:
        longest = max(len(ask["prompt"]) for _, ask in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, (_, ask) in enumerate(batch):
            ids[row, longest - len(ask["prompt"]) :] = torch.tensor(ask["prompt"])
            mask[row, longest - len(ask["prompt"]) :] = 1
        with torch.inference_mode():
            self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=max(ask["max_tokens"] for _, ask in batch),
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([_Noted(arrivals, batch, self._margins)]),
                output_scores=self._margins,
                return_dict_in_generate=self._margins,
            )


if __name__ == "__main__":
    serve(Generate)
