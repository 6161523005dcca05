"""A finished model of one's own: what its first layer tells, and files that are none."""

from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Call, assert_refused
from torch import Tensor

from remanence import SGD, Split, Training, initial_params, load, mlp, save_weights, split
from remanence.results import parse_records

OWN = ("audit", "--weights", "mine.safetensors", "--data", "private.npz", "--held-out", "others.npz")


@pytest.fixture
def digits(tmp_path: Path) -> Split:
    """Twenty that may have trained a model, and others, as files."""
    made = split(load("digits"), private=20, fixed=0, public=0, test=400, seed=0)
    for name, part in (("private", made.private), ("others", made.test)):
        np.savez(tmp_path / f"{name}.npz", x=part.x.numpy(), y=part.y.numpy())
    return made


def test_a_finished_model_tells_which_records_trained_it(call: Call, tmp_path: Path, digits: Split) -> None:
    trained = digits.private.to("cpu", torch.float64)
    model = mlp(trained.shape, 10, hidden=(48,), activation=torch.nn.ReLU)
    start = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    decaying = Training(optimizer=SGD(lr=0.2, momentum=0.9), epochs=400, weight_decay=0.015)
    save_weights(tmp_path / "mine.safetensors", decaying(model, start, trained))
    said = call(*OWN, "--json")
    assert (said.code, said.err) == (0, "")
    (record,) = parse_records(said.out, where="stdout")
    found = {measure["name"]: measure["value"] for measure in record["measures"]}
    assert found["training records, by the rank"] == 20
    assert found["private records told"] == found["AUC"] == 1
    assert record["caveats"] == []
    assert_refused(call(*OWN[:5]), "go together")
    assert_refused(call(*OWN, "--net", "mlp"), "without `--attack` and `--net`")
    assert_refused(call(*OWN[:6], "private.npz", "--force"), "must share no record")
    np.savez(tmp_path / "small.npz", x=np.zeros((4, 5, 5)), y=np.arange(4) % 2)
    assert_refused(call(*OWN[:4], "small.npz", *OWN[5:], "--force"), "one matrix of a linear layer with 25 columns")
    np.savez(tmp_path / "few.npz", x=digits.test.x[:100].numpy(), y=digits.test.y[:100].numpy())
    (few,) = parse_records(call(*OWN[:6], "few.npz", "--json", "--force").out, where="stdout")
    assert [caveat["code"] for caveat in few["caveats"]] == ["few-held-out"]
    found = {measure["name"]: measure["value"] for measure in few["measures"]}
    assert (found["private records told"], found["AUC"]) == (None, 1)  # none told would read as none at risk


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"a.weight": torch.ones(9, 64, dtype=torch.int64)}, "one matrix of a linear layer with 64 columns"),
        ({"a.weight": torch.ones(0, 64)}, "one matrix of a linear layer with 64 columns"),
        ({"a.weight": torch.rand(9, 64), "a.bias": torch.rand(8)}, "9 biases for `a.weight`, got the shape (8,)"),
        ({"a.weight": torch.rand(9, 64), "a.bias": torch.rand(9, 1)}, "got the shape (9, 1)"),
    ],
)
def test_weights_that_are_no_first_layer_are_refused(
    call: Call, tmp_path: Path, digits: Split, weights: dict[str, Tensor], words: str
) -> None:
    save_weights(tmp_path / "mine.safetensors", weights)
    assert_refused(call(*OWN), words)


def test_a_model_that_says_nothing_is_not_called_one_without_records(call: Call, tmp_path: Path, digits: Split) -> None:
    for name in ("mine", "other"):
        save_weights(tmp_path / f"{name}.safetensors", {"a.weight": torch.rand(90, 64)})
    said = call(*OWN)
    assert said.code == 0
    assert said.out.startswith("what the first layer spans: training records, by the rank: cannot be said.")
    assert_refused(call(*OWN[:2], "other.safetensors", *OWN[3:]), "holds other results")
