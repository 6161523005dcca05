"""Sweeps of the defenses of a client that trains a transformer: sums, further defenses, copies of sequences."""

from dataclasses import replace

import pytest
import torch
from text_updates import HELD_OUT, LR, TRUTH, WORDS, released, sampled

from remanence.auditing import audit
from remanence.auditing.answer.report import Countermeasure
from remanence.auditing.countermeasures.axes import AXES
from remanence.auditing.countermeasures.text import _UNDEFENDED, _Clients, sweep_tokens
from remanence.data import Tokens
from remanence.releases import token_gradient
from remanence.releases.defenses import Defense, GaussianNoise, Quantization, TopK


@pytest.fixture(scope="module")
def swept() -> tuple[Countermeasure, ...]:
    sweep = {"clients": (2, 5, 100), "noise": (0.01, 100)}
    return sweep_tokens(released(), TRUTH, HELD_OUT, sweep, budget=60, seed=0)


def test_a_sweep_shows_sentences_and_tokens_against_each_defense(swept: tuple[Countermeasure, ...]) -> None:
    found = {row.setting: row.together and row.together.found for row in swept}
    assert found == {
        "the update as it is": 5,
        "sums of 2 clients": 5,
        "sums of 5 clients": 0,  # more tokens than the width of 64
        "sums of 100 clients": None,
        "noise of 0.01": 5,
        "noise of 100": 0,
    }
    tokens = {row.setting: row.tokens and row.tokens.value for row in swept}
    assert tokens["the update as it is"] == tokens["sums of 5 clients"] == tokens["noise of 0.01"] == 1
    assert (tokens["noise of 100"] or 0) < 0.2
    [many] = [row for row in swept if row.value == 100 and row.name == "clients"]
    assert (many.status, "hold out" in (many.reason or "")) == ("refused", True)


def test_a_mean_over_clients_is_the_gradient_of_all_their_sentences() -> None:
    full = Tokens(ids=TRUTH.ids.clamp_min(3), y=TRUTH.y, vocabulary=WORDS, num_classes=2)
    release = released(truth=full)
    scaled = replace(release, gradient={name: LR * g for name, g in release.gradient.items()})
    others = Tokens(ids=HELD_OUT.ids.clamp_min(3), y=HELD_OUT.y, vocabulary=WORDS, num_classes=2)
    clients = _Clients.from_held_out(scaled, full, others, seed=0)
    made = clients.update(AXES["clients"].setting("clients", 3))
    union = replace(full, ids=torch.cat([full.ids, clients.others.ids[:10]]), y=torch.zeros(15).long())
    expected = token_gradient(release.model, release.at, union)
    assert made.batch_size == 15
    for name, g in made.gradient.items():
        torch.testing.assert_close(g, LR * expected[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("first", [GaussianNoise(relative_std=3.0), TopK(fraction=0.1)], ids=str)
def test_other_clients_have_the_defenses_of_the_client_and_its_length(first: Defense) -> None:
    release = released((first,))
    scaled = replace(release, gradient={name: LR * g for name, g in release.gradient.items()})
    clients = _Clients.from_held_out(scaled, TRUTH, HELD_OUT, seed=0)
    assert clients.scale == pytest.approx(LR, rel=0.02)
    plain = clients.update(_UNDEFENDED)
    assert all(torch.equal(g, scaled.gradient[name]) for name, g in plain.gradient.items())
    assert plain.defenses == (first,)
    noisy = clients.update(AXES["bits"].setting("bits", 8))
    assert noisy.defenses == (first, Quantization(bits=8))
    two = clients.update(AXES["clients"].setting("clients", 2))
    theirs = {name: 2 * g - scaled.gradient[name] for name, g in two.gradient.items()}
    lengths = [torch.cat([g.flatten() for g in each.values()]).norm() for each in (theirs, scaled.gradient)]
    assert float(lengths[0] / lengths[1]) == pytest.approx(1, rel=0.3)


def test_copies_in_a_batch_are_sent_and_looked_for_once() -> None:
    """Eight sequences, of which one is there six times: the update, its labels and sums are of all eight."""
    drawn = sampled(8, seed=0)
    batch = drawn.take([0, 0, 0, 0, 0, 0, 1, 3])
    release = released(truth=batch, causal=False)
    report = audit(release, truth=batch, held_out=HELD_OUT, budget=60, sweep={"clients": (2,)})
    first, two = report.answer.countermeasures
    [labels] = [row for row in report.evidence if row.name == "labels"]
    assert first.labels
    assert first.together
    assert two.labels
    assert (first.labels.value, first.together.records) == (1, 3)
    assert first.labels.chance == pytest.approx(labels.chance, abs=0.02)
    clients = _Clients.from_held_out(release, batch, HELD_OUT, seed=0)
    assert clients.scale == pytest.approx(1, rel=1e-5)


def test_an_audit_with_a_sweep_answers_in_a_sentence() -> None:
    made = audit(released(), truth=TRUTH, held_out=HELD_OUT, budget=60, sweep={"noise": (0.01, 100)})
    said = made.answer.what_would_help or ""
    assert said.startswith("Noise of 100 would hide the sentences")
    printed = str(made).splitlines()
    assert any(line.startswith("noise of 0.01") and "5 of 5, 5 exact" in line for line in printed)
    assert all(len(line) <= 100 for line in printed)
    page = made.to_html()
    assert "tokens found" in page
    assert "membership, AUC" not in page
