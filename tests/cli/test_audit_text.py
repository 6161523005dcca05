"""`remanence audit update` of a transformer: token files of one's own in, an answer and an exit code out."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from command_line import Call, assert_refused
from own_gpt2 import GPT2, next_token_loss
from safetensors.torch import save_file

from remanence.auditing.answer.record import record_schema
from remanence.auditing.answer.report import schema

NET = """
from own_gpt2 import GPT2
from torch import nn

def make():
    return GPT2(200, length=8, width=64, blocks=2, heads=4)

class Uncalled(GPT2):
    def __init__(self):
        super().__init__(200, length=8, width=64, blocks=2, heads=4)
    def forward(self, ids):
        return super().forward(ids.flip(0, 1))

class Unsaid(GPT2):
    def __init__(self, heads=4):
        super().__init__(200, length=8, width=64, blocks=2, heads=heads)
        del self.config

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(200, 16), nn.Linear(16, 200)
    def forward(self, ids):
        return self.head(self.embed(ids))

def without_positions():
    net = make()
    del net.transformer["wpe"]
    return net
"""
LR, LENGTH = 0.1, 7
SOURCES = ("--data", "private.npz", "--held-out", "others.npz")
UPDATE = ("audit", "update", "gpt_of_mine:make", "--before", "before.pt")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GPT-2 of one's own, sentences of different lengths, its gradient, and the weights before and after a step."""
    (tmp_path / "gpt_of_mine.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(0)
    net = GPT2(200, length=8, width=64, blocks=2, heads=4)
    ids = (200 * torch.rand(300, LENGTH) ** 2).long()
    lengths = torch.full((300,), LENGTH)
    lengths[::4] = 5
    for name, part in (("private", slice(0, 4)), ("others", slice(4, 300))):
        mask = torch.arange(LENGTH) < lengths[part, None]
        np.savez(tmp_path / f"{name}.npz", input_ids=ids[part].numpy(), attention_mask=mask.long().numpy())
    (tmp_path / "vocab.json").write_text(json.dumps({f"word{i}": i for i in range(200)}))
    torch.save(net.state_dict(), tmp_path / "before.pt")
    next_token_loss(net, ids[:4], lengths[:4]).backward()
    gradient = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    torch.save(gradient, tmp_path / "gradient.pt")
    after = {name: p.detach() - LR * gradient[name] for name, p in net.named_parameters()}
    save_file({name: p.contiguous() for name, p in after.items()}, tmp_path / "after.safetensors")  # without lm_head
    return tmp_path


STEP = ("--after", "after.safetensors", "--local", "sgd lr=0.1 epochs=1 batch=full")


@pytest.mark.parametrize("sent", [("--gradient", "gradient.pt"), STEP])
def test_sentences_of_a_gpt2_are_found_and_fail_the_gate(call: Call, files: Path, sent: tuple[str, ...]) -> None:
    options = ("--vocabulary", "vocab.json", "--fail-if", "found>0", "--out", "run", "--json")
    said = call(*UPDATE, *sent, *SOURCES, *options)
    assert said.code == 3
    answer = json.loads(said.out)
    jsonschema.validate(answer, schema())
    jsonschema.validate(json.loads((files / "run" / "record.json").read_text()), record_schema())
    assert [(row["name"], row["found"], row["exact"]) for row in answer["attacks"]] == [("DAGER", 4, 4)]
    assert answer["caveats"] == []
    assert answer["release"]["num_classes"] == 200
    stored = json.loads((files / "run" / "sentences.json").read_text())["sentences"]
    ids, mask = (np.load(files / "private.npz")[name] for name in ("input_ids", "attention_mask"))
    true = {tuple(f"word{i}" for i in row[there > 0]) for row, there in zip(ids, mask, strict=True)}
    assert {tuple(each["reconstruction"]) for each in stored} == true
    assert call("report", "run").code == 0


def test_a_sweep_of_text_needs_no_recipe_and_prints_a_line_for_each_setting(call: Call, files: Path) -> None:
    sweep = ("--sweep", "clients=1,2", "noise=100")
    said = call(*UPDATE, "--gradient", "gradient.pt", *SOURCES, *sweep, "--redact", "--out", "run")
    assert said.code == 0
    lines = said.out.splitlines()
    assert any(line.startswith("the update as it is") and "4 of 4, 4 exact" in line for line in lines)
    assert any(line.startswith("noise of 100") and "0 of 4" in line for line in lines)
    assert "would hide the sentences" in said.out
    assert not (files / "run" / "sentences.json").exists()
    assert "word" not in (files / "run" / "report.html").read_text().partition("<body")[2].replace("words", "")


def test_an_update_of_unknown_training_is_taken_for_a_gradient(call: Call, files: Path) -> None:
    said = call(*UPDATE, "--after", "after.safetensors", *SOURCES, "--json")
    assert [each["code"] for each in json.loads(said.out)["caveats"]] == ["update-as-gradient"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"--data": "floats.npy"}, "whole numbers"),
        ({"--data": "beyond.npy"}, "0..199"),
        ({"--held-out": "one.npy"}, "(sequences, length)"),
        ({"--before": "short.pt"}, "transformer.wpe.weight"),
        ({"--gradient": "before.npz"}, "does not exist"),
        ({"--vocabulary": "beyond.npy"}, "vocabulary"),
        ({"--attack": "FirstLayer"}, "DAGER"),
        ({"--label": "outcome"}, "no meaning"),
        ({"model": "gpt_of_mine:Uncalled"}, "computes something else"),
        ({"model": "gpt_of_mine:without_positions"}, "wpe.weight"),
    ],
)
def test_what_does_not_fit_is_one_sentence(call: Call, files: Path, changed: dict[str, str], words: str) -> None:
    np.save(files / "floats.npy", np.ones((4, 5)))
    np.save(files / "beyond.npy", np.full((4, 5), 200))
    np.save(files / "one.npy", np.ones(5, int))
    before = torch.load(files / "before.pt", weights_only=True)
    torch.save({name: p for name, p in before.items() if "wpe" not in name}, files / "short.pt")
    given = {"--before": "before.pt", "--gradient": "gradient.pt", "--data": "private.npz", "--held-out": "others.npz"}
    options = given | {key: value for key, value in changed.items() if key != "model"}
    network = changed.get("model", "gpt_of_mine:make")
    said = call("audit", "update", network, *(word for pair in options.items() for word in pair))
    assert_refused(said, words)


def test_the_number_of_heads_is_found_where_no_config_says_it(call: Call, files: Path) -> None:
    """Four heads of 16, where the published width of a head is 64."""
    unsaid = [each.replace(":make", ":Unsaid") for each in UPDATE]
    said = call(*unsaid, "--gradient", "gradient.pt", *SOURCES, "--json")
    assert [(row["found"], row["exact"]) for row in json.loads(said.out)["attacks"]] == [(4, 4)]


@pytest.mark.parametrize("sent", [("--gradient", "gradient.pt"), ("--after", "after.safetensors")])
@pytest.mark.parametrize("array", ["input_ids", "x"])
def test_a_transformer_with_names_of_its_own_is_told_at_once_how_to_rename(
    call: Call, files: Path, sent: tuple[str, ...], array: str
) -> None:
    ids = np.load(files / "private.npz")["input_ids"]
    np.savez(files / "private.npz", **{array: ids, "y": np.zeros(len(ids), int)})
    own = [each.replace(":make", ":Own") for each in UPDATE]
    assert_refused(call(*own, *sent, *SOURCES), "`gpt_of_mine:Own` embeds tokens", "h.0.attn.c_attn", "decoder")


def test_a_gradient_of_records_and_a_model_of_text_are_refused(call: Call, files: Path) -> None:
    (files / "plain.py").write_text("from torch import nn\n\ndef make():\n    return nn.Linear(3, 2)\n")
    said = call("audit", "update", "plain:make", "--before", "before.pt", "--gradient", "gradient.pt", *SOURCES)
    assert_refused(said, "for transformers")
    assert_refused(call("audit", "model", "gpt_of_mine:make", "--weights", "before.pt", *SOURCES), "audit update")
    both = ("--gradient", "gradient.pt", "--after", "after.safetensors")
    assert_refused(call(*UPDATE, *both, *SOURCES), "not both")
    assert_refused(call(*UPDATE, *SOURCES), "`after`", "`gradient`")
