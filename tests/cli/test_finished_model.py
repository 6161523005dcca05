"""A finished model of one's own: what its first layer tells, and files that are none."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Call, assert_refused
from torch import Tensor, nn

from remanence import SGD, Data, Split, Training, load, load_weights, save_weights, split
from remanence.engine import train
from remanence.experiments.results import parse_results
from remanence.models import initial_params, mlp
from remanence.training import Adam

SPACE = "\N{NO-BREAK SPACE}"
OWN = ("audit", "--weights", "mine.safetensors", "--data", "private.npz", "--held-out", "others.npz")


@pytest.fixture
def digits(tmp_path: Path) -> Split:
    """Twenty that may have trained a model, and others, as files."""
    made = split(load("digits"), private=20, fixed=0, public=200, test=400, seed=0)
    write(tmp_path / "private.npz", made.private)
    write(tmp_path / "others.npz", made.test)
    return made


def write(path: Path, part: Data) -> None:
    np.savez(path, x=part.x.numpy(), y=part.y.numpy())


@pytest.fixture
def tuned(tmp_path: Path, digits: Split) -> Path:
    """A model that public digits trained, by Adam, and then the private ones, by SGD in mini-batches, as files."""
    model = mlp(digits.private.shape, 10, hidden=(48,), activation=nn.ReLU)
    base = train(Training(optimizer=Adam(lr=0.01), epochs=30), model, initial_params(model, seed=0), digits.public)
    tuning = Training(optimizer=SGD(lr=0.05, momentum=0.9), epochs=20, batch_size=7)
    save_weights(tmp_path / "base.safetensors", base)
    save_weights(tmp_path / "mine.safetensors", train(tuning, model, base, digits.private))
    return tmp_path / "base.safetensors"


def test_a_finished_model_tells_which_records_trained_it(call: Call, tmp_path: Path, digits: Split) -> None:
    trained = digits.private.to("cpu", torch.float64)
    model = mlp(trained.shape, 10, hidden=(48,), activation=nn.ReLU)
    start = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    decaying = Training(optimizer=SGD(lr=0.2, momentum=0.9), epochs=400, weight_decay=0.015)
    save_weights(tmp_path / "mine.safetensors", train(decaying, model, start, trained))
    said = call(*OWN, "--json")
    assert (said.code, said.err) == (0, "")
    (record,) = parse_results(said.out, where="stdout")
    found = {measure.name: measure.value for measure in record.measures}
    assert found["training records, by the rank"] == 20
    assert found["private records identified"] == found["AUC"] == 1
    assert record.caveats == ()
    assert_refused(call(*OWN[:5]), "go together")
    assert_refused(call(*OWN, "--net", "mlp"), "without `--attack` and `--net`")
    assert_refused(call(*OWN, "--label", "digit"), "not how the network saw them")
    assert_refused(call(*OWN[:6], "private.npz", "--force"), "must have no record in common")
    write(tmp_path / "few.npz", digits.test.take(slice(0, 100)))
    (few,) = parse_results(call(*OWN[:6], "few.npz", "--json", "--force").out, where="stdout")
    assert [caveat.code for caveat in few.caveats] == ["few-held-out"]
    found = {measure.name: measure.value for measure in few.measures}
    assert (found["private records identified"], found["AUC"]) == (None, 1)  # none told would read as none at risk


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
    assert said.out.startswith(
        "what the first layer spans: Which records trained the model, and how many, cannot be said, which is no safety"
        ": if the model was tuned from public weights, give them with --start.\n"
    )
    assert_refused(call(*OWN[:2], "other.safetensors", *OWN[3:]), "holds other results")


def test_a_tuned_model_and_what_it_was_tuned_from_tell_which_records_did_it(call: Call, tuned: Path) -> None:
    assert "cannot be said, which is no safety" in call(*OWN).out
    said = call(*OWN, "--start", tuned, "--force")
    assert (said.code, said.err) == (0, "")
    told, page = said.out.replace(SPACE, " ").splitlines()
    assert re.fullmatch(
        r"what the first layer spans: 20 of 20 records were identified as training records "
        r"\(false positives [012](\.\d+)? %\)\. By the rank, 20 or more records trained the model\.",
        told,
    )
    assert told.partition(": ")[2] in (tuned.parent / page).read_text(encoding="utf-8").replace(SPACE, " ")
    assert_refused(call(*OWN[:3], "--start", "other.safetensors"), "`--start` with both")
    assert_refused(call("audit", "--start", "base.safetensors"), "`--start` with both")


def test_weights_that_are_rounded_off_are_named_as_the_reason(call: Call, tuned: Path) -> None:
    save_weights(tuned, {name: p.half() for name, p in load_weights(tuned).items()})
    said = call(*OWN, "--start", tuned, "--force")
    assert said.code == 0
    assert "no safety: torch.float16 rounds off how far training moved the weights" in said.out


def test_a_start_of_another_size_is_refused_and_the_end_itself(call: Call, tuned: Path) -> None:
    force = ("--force", "--start")
    assert_refused(call(*OWN, *force, "mine.safetensors"), "hold the same first layer: nothing was trained there")
    save_weights(tuned, {"a.weight": torch.rand(50, 64), "a.bias": torch.rand(50)})
    assert_refused(call(*OWN, *force, tuned), "size of that in `--weights`, 48x64 and 48, got 50x64 and 50")
    save_weights(tuned, {"a.weight": torch.rand(48, 64)})
    assert_refused(call(*OWN, *force, tuned), "48x64 and 48, got 48x64: give the file")
    save_weights(tuned, {"a.weight": torch.rand(48, 65)})
    assert_refused(call(*OWN, *force, tuned), "`--start` must hold one matrix of a linear layer with 64 columns")
    assert_refused(call(*OWN, *force, "none.safetensors"), "none.safetensors")


def test_records_of_another_shape_are_refused_before_anything_is_read(
    call: Call, tmp_path: Path, digits: Split
) -> None:
    save_weights(tmp_path / "mine.safetensors", {"a.weight": torch.rand(90, 64)})  # shows no gap
    np.savez(tmp_path / "small.npz", x=np.zeros((4, 5, 5)), y=np.arange(4) % 2)
    assert_refused(call(*OWN[:6], "small.npz"), "the shape of `--data`, (1, 8, 8), got (1, 5, 5)")
    np.savez(tmp_path / "tiny.npz", x=np.ones((4, 5, 5)), y=np.arange(4) % 2)
    assert_refused(call(*OWN[:4], "small.npz", "--held-out", "tiny.npz"), "a linear layer with 25 columns")


def test_records_that_stand_in_the_place_of_the_others_are_asked_about(call: Call, tuned: Path, digits: Split) -> None:
    swapped = (*OWN[:4], "others.npz", "--held-out", "private.npz", "--start", tuned)
    assert "(AUC 0). Are `--data` and `--held-out` swapped?\n" in call(*swapped).out
    (record,) = parse_results(call(*swapped, "--json").out, where="stdout")
    assert [caveat.code for caveat in record.caveats] == ["records-outside", "few-held-out", "swapped"]
