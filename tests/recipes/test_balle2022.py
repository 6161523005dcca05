"""Every recipe of the paper at smoke scale, from its cells to the page, and what each must show even there."""

from pathlib import Path
from tempfile import mkdtemp

import pytest
from smoke import results

from remanence.experiments.results import Result
from remanence.experiments.run import Job, run_job
from remanence_recipes import RECIPES

NAMES = [name for name in RECIPES if name.startswith("balle2022.")]


def found(record: Result) -> int:
    count: int = record.attack.scores.found.count
    return count


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_cells_to_the_page(name: str) -> None:
    assert list(results(name)) == [cell.label for cell in RECIPES[name]("smoke")]


def test_gates_read_what_the_paper_does_not() -> None:
    ours, papers = results("balle2022.mnist").values()
    assert found(ours) >= 10 > found(papers)
    assert ours.claims[0].holds is None  # judged at the scale of the paper only


def test_without_the_first_weights_nothing_is_found() -> None:
    made = results("balle2022.figure10_membership")
    measures = {m.name: m.value for m in made["membership"].measures}
    assert measures["AUC, common start"] > measures["AUC, each its own start"]
    assert found(made["reconstruction, first weights unknown"]) == 0
    assert "initial" not in made["reconstruction, first weights unknown"].attack.release.shows


def test_noise_lowers_what_is_read_and_stays_under_its_limit() -> None:
    made = results("balle2022.dp_mnist")
    plain, clipped = made["no privacy"], made["clipped, without noise"]
    assert plain.attack.limit is None
    assert clipped.attack.limit is None
    less, more = made["epsilon 100000"], made["epsilon 1000"]
    for record in (less, more):
        assert record.attack.limit is not None
        assert record.attack.limit.success.low <= record.attack.limit.bound
        assert "above-the-limit" not in {caveat.code for caveat in record.caveats}
    read_less, read_more = (r.attack.scores.metrics["mse"].mean for r in (more, less))
    assert read_less > 2 * read_more
    assert less.attack.limit.epsilon == pytest.approx(1e5, rel=1e-3)


def test_the_closed_form_finds_every_record() -> None:
    (record,) = results("balle2022.glm").values()
    assert found(record) == record.attack.scores.records
    assert record.attack.scores.metrics["mse"].mean < 1e-4


def test_only_relu_leaves_weights_without_a_gradient() -> None:
    made = results("balle2022.figure16_zero_gradients")
    shares = {name: record.measures[0].value for name, record in made.items()}
    assert shares["ReLU"] > 0.01
    assert shares["ELU"] == 0


def test_more_shadows_read_more() -> None:
    few, many = (r.attack.scores.metrics["mse"].mean for r in results("balle2022.shadows").values())
    assert many < few


def test_cells_that_differ_in_their_attack_share_models_and_shadows(monkeypatch: pytest.MonkeyPatch) -> None:
    from remanence.experiments import cell

    built, real = [], cell.build_bank
    monkeypatch.setattr(cell, "build_bank", lambda *args, **kw: built.append(1) or real(*args, **kw))
    folder = Path(mkdtemp())
    job = Job(recipe="balle2022.mnist", scale="smoke", seed=0, device="cpu", folder=folder, command="smoke")
    assert len(list(run_job(RECIPES["balle2022.mnist"]("smoke"), job))) == 2
    assert len(built) == 1
