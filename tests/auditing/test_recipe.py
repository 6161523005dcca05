"""Training recipes in a file or on one line."""

from pathlib import Path

import pytest
import torch
from refusals import refused

from remanence import SGD, Adam, AdamW, CrossEntropy, Logistic, RMSProp, SquaredError, Training
from remanence.auditing.inputs.recipe import load_recipe, recipe_from


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("adam lr=1e-3 epochs=5 batch=16", Training(optimizer=Adam(lr=1e-3), epochs=5, batch_size=16)),
        (
            "sgd lr=0.1, momentum=0.9, epochs=3, batch_size=full, wd=1e-4",
            Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=3, weight_decay=1e-4),
        ),
        (
            "optimizer=AdamW lr=1e-3 epochs=1 bs=8 weight_decay=0.1 loss=mse",
            Training(optimizer=AdamW(lr=1e-3, weight_decay=0.1), epochs=1, batch_size=8, loss=SquaredError()),
        ),
        (
            "sgd lr=1 epochs=90 batch=32 schedule=30:0.1,60:0.01",
            Training(optimizer=SGD(lr=1.0), epochs=90, batch_size=32, lr_schedule=((30, 0.1), (60, 0.01))),
        ),
        (
            "rmsprop learning_rate=0.01 epochs=2 batch=all",
            Training(optimizer=RMSProp(lr=0.01, decay=0.99), epochs=2),
        ),
    ],
)
def test_a_line_is_a_training(line: str, expected: Training) -> None:
    recipe = load_recipe(line)
    assert recipe.missing == ()
    assert recipe.training(outputs=10) == expected


def test_a_file_is_a_training(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text('optimizer = "adam"\nlr = 1e-3\nepochs = 5\nbatch_size = 16\nschedule = [[3, 0.1]]\n')
    line = load_recipe("adam lr=1e-3 epochs=5 batch=16 schedule=3:0.1")
    assert load_recipe(path) == load_recipe(str(path)) == line
    path.write_text(f"[training]\n{path.read_text()}")
    assert load_recipe(path) == line
    assert load_recipe(str(line)) == line


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_schedules_are_torchs(name: str) -> None:
    epochs, weight = 6, torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.3)
    schedulers = {
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs),
        "linear": lambda: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-9, total_iters=epochs),
    }
    scheduler, rates = schedulers[name](), []
    for _ in range(epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    training = load_recipe(f"sgd lr=0.3 epochs={epochs} batch=full schedule={name}").training(outputs=2)
    ours = [each.lr for each, _ in zip(training.optimizers(5), range(epochs), strict=False)]
    assert ours == pytest.approx(rates, abs=1e-6)


def test_what_is_not_known_is_named() -> None:
    recipe = load_recipe("sgd momentum=0.9")
    assert recipe.missing == ("lr", "epochs", "batch_size")
    with refused("not-enough-knowledge", "lr"):
        recipe.training(outputs=10)
    assert recipe_from({}).missing == ("optimizer", "lr", "epochs", "batch_size")


def test_the_loss_follows_the_outputs_where_it_is_not_known() -> None:
    recipe = load_recipe("adam lr=1e-3 epochs=5 batch=16")
    assert isinstance(recipe.training(outputs=1).loss, Logistic)
    assert isinstance(recipe.training(outputs=2).loss, CrossEntropy)


@pytest.mark.parametrize(
    ("line", "code", "field"),
    [
        ("", "empty", "recipe"),
        ("adagrad lr=1", "unknown-name", "optimizer"),
        ("adam learning=1", "unknown-name", "learning"),
        ("adam lr=fast", "wrong-type", "lr"),
        ("adam lr=0", "out-of-range", "lr"),
        ("adam epochs=2.5", "wrong-type", "epochs"),
        ("adam batch=0", "out-of-range", "batch_size"),
        ("adam batch=8 bs=9", "conflict", "batch_size"),
        ("adam momentum=0.9", "conflict", "momentum"),
        ("sgd momentum=1", "out-of-range", "momentum"),
        ("sgd schedule=steps", "unknown-name", "schedule"),
        ("sgd schedule=30:x", "wrong-type", "schedule"),
        ("sgd loss=hinge", "unknown-name", "loss"),
        ("sgd wd=-1", "out-of-range", "weight_decay"),
    ],
)
def test_a_wrong_field_is_named(line: str, code: str, field: str) -> None:
    with refused(code, field):
        load_recipe(line)


@pytest.mark.parametrize("line", ["sgd lr=0.1 'x", 'sgd lr=0.1 "', "sgd lr=0.1 \\"])
def test_a_line_with_an_open_quotation_mark_is_refused(line: str) -> None:
    with refused("wrong-type", "recipe"):
        load_recipe(line)


def test_files_that_are_no_recipes_are_refused(tmp_path: Path) -> None:
    with refused("missing-file", "recipe"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "odd.toml").write_text("lr == 3")
    with refused("damaged-file", "recipe"):
        load_recipe(str(tmp_path / "odd.toml"))


def test_label_smoothing_is_of_the_cross_entropy() -> None:
    line = "sgd lr=0.1 epochs=1 batch=full label_smoothing=0.2"
    assert load_recipe(line).training(outputs=10).loss == CrossEntropy(label_smoothing=0.2)
    with refused("conflict", "label_smoothing"):
        load_recipe(line).training(outputs=1)
