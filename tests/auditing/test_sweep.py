"""The sweep of a federated client's defenses: updates made again, attacked, a federation trained, one sentence."""

from dataclasses import replace
from math import comb, inf
from time import process_time
from typing import Any

import pytest
import torch
from digit_clients import SEVERAL, STEP, federation, net, part, sent
from made_report import made_answer
from refusals import refused

from remanence.auditing import Report, applicable, audit
from remanence.auditing.answer.hiding import what_would_help
from remanence.auditing.answer.report import AuditTest, Countermeasure
from remanence.auditing.answer.saved import dump_answer, parse_answer
from remanence.auditing.answer.tradeoff import along_sweep
from remanence.auditing.attempts.applicability import applicable_again
from remanence.auditing.countermeasures import sweep
from remanence.auditing.countermeasures.axes import AXES, DEFAULT, parse_sweep, settings
from remanence.auditing.countermeasures.comparison import countermeasures_for
from remanence.auditing.countermeasures.federation import Federation
from remanence.auditing.countermeasures.sweep import sweep_update
from remanence.auditing.evidence.labels import labels_of
from remanence.releases import Gradient, LocalUpdate
from remanence.releases.defenses import Clipping, TopK
from remanence.training import Adam, CrossEntropy, Training
from remanence.types import Params, concat


def test_a_sweep_says_what_the_update_is_of_already() -> None:
    shown = sent(STEP, clients=2, defenses=(Clipping(norm=0.01),))
    asked = applicable(shown, records=8, attacks=("FirstLayer",))
    first, more = sweep_update(shown, part(0, 8), part(100, 300), {"clients": (2,)}, asked, budget=10, seed=0)
    assert "the sum of 2 clients" in (first.reason or "")
    assert "Clipping(norm=0.01)" in (first.reason or "")
    assert (more.setting, more.value, more.status) == ("sums of 4 clients", 4, "ran")


def test_a_sweep_needs_held_out_records_of_several_subjects() -> None:
    alone = replace(part(100, 140), groups=torch.zeros(40, dtype=torch.int64))
    with refused("empty", "held_out"):
        Federation.from_held_out(sent(STEP), part(0, 8), alone, 2, seed=0)
    asked = applicable(sent(STEP), records=8, attacks=("FirstLayer",))
    rows = sweep_update(sent(STEP), part(0, 8), alone, {"noise": (1,)}, asked, budget=10, seed=0)
    assert [row.status for row in rows] == ["refused", "refused"]
    assert "more subjects" in (what_would_help(rows) or "")
    few = replace(part(100, 140), groups=torch.arange(40) % 4)  # sampled one by one, none would be left
    made = Federation.from_held_out(sent(STEP), part(0, 8), few, 2, seed=0)
    assert (len(made.others), len(made.held_out)) == (16, 20)


def test_an_update_that_is_taken_for_a_gradient_has_its_defenses() -> None:
    truth = part(0, 8)
    for defense in (Clipping(norm=0.01), TopK(fraction=0.1)):
        shown = sent(STEP, defenses=(defense,))
        [one] = applicable(shown, records=8, attacks=("FirstLayer",))
        simulated = one.release.simulate(truth.x, truth.y)
        for name, g in one.release.gradient.items():
            torch.testing.assert_close(g, -10 * shown.update[name], rtol=1e-3, atol=1e-6)
            assert float((simulated[name] - g).norm()) < 0.2 * float(g.norm()), defense


def test_a_sweep_is_parsed_and_its_settings_go_from_weak_to_strong() -> None:
    parsed = parse_sweep("clients=10,1,2 noise=1,0,0.1 topk=0.01,0.1 bits=32,2,8 clip=1,10 epsilon=1,inf,10")
    made = settings(parsed)
    assert [(each.axis, each.value) for each in made] == [
        *(("clients", 2), ("clients", 10), ("noise", 0.1), ("noise", 1), ("topk", 0.1), ("topk", 0.01)),
        *(("bits", 8), ("bits", 2), ("clip", 10), ("clip", 1), ("epsilon", 10), ("epsilon", 1)),
    ]
    assert [each.clients for each in made] == [2, 10] + [1] * 10
    assert [each.words for each in made[:3]] == ["sums of 2 clients", "sums of 10 clients", "noise of 0.1"]
    assert settings(DEFAULT)
    assert settings({"clip": (inf, 1)})[0].value == 1


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("client=1,2", "unknown-name", "did you mean one of `clients`?"),
        ("noize=1", "unknown-name", "noise"),
        ("noise=-1", "out-of-range", "0 or more"),
        ("clients=2.5", "out-of-range", "whole numbers"),
        ("topk=0", "out-of-range", "above 0 and at most 1"),
        ("topk=2", "out-of-range", "at most 1"),
        ("epsilon=0", "out-of-range", "above 0"),
        ("bits=20", "out-of-range", "at most 16"),
        ("noise=nan", "out-of-range", "got nan"),
        ("noise=a", "wrong-type", "commas"),
        ("noise", "wrong-type", "clients=1,2,5"),
        ("noise=1 noise=2", "conflict", "twice"),
        ("noise=0", "empty", "names no defense"),
        ("", "empty", "names no defense"),
        ("noise=" + ",".join(map(str, range(1, 60))), "out-of-range", "got 59"),
    ],
)
def test_what_is_no_sweep_is_refused_with_the_nearest_name(text: str, code: str, words: str) -> None:
    with refused(code, "sweep") as caught:
        parse_sweep(text)
    assert words.replace("one of `clients`", "`clients`") in str(caught.value)


def test_attacks_apply_again_as_if_they_were_asked() -> None:
    asked = applicable(sent(STEP), records=8, attacks=("FirstLayer", "GradientMatching", "SimuDy"))
    made = federation(STEP).update(3, AXES["noise"].setting("noise", 0.1).defenses).release
    again = {one.name: one for one in applicable_again(asked, made, records=24, times=3)}
    fresh = {one.name: one for one in applicable(made, records=24, attacks=tuple(again))}
    for name, one in again.items():
        assert (one.status, one.reason, one.knowledge) == (
            fresh[name].status,
            fresh[name].reason,
            fresh[name].knowledge,
        )
        assert (repr(one.attack), type(one.release)) == (repr(fresh[name].attack), type(fresh[name].release))
        assert one.reconstruction is None
    assert again["SimuDy"].status == "refused"
    [estimate] = [one.seconds for one in asked if one.name == "GradientMatching"]
    assert again["GradientMatching"].seconds == pytest.approx(3 * (estimate or 0.0))


@pytest.fixture(scope="module")
def swept() -> tuple[Countermeasure, ...]:
    asked = applicable(sent(STEP), records=8, attacks=("FirstLayer",))
    sweep = {"clients": (2, 1000), "noise": (0.1, 100)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remanence.auditing.countermeasures.sweep.MAX_ROUNDS", 40)  # in time on a busy machine too
        return sweep_update(sent(STEP), part(0, 8), part(100, 900), sweep, asked, budget=60, seed=0)


def found(row: Countermeasure) -> int:
    assert row.together is not None
    return row.together.found


def test_noise_hides_records_and_labels_and_costs_accuracy(swept: tuple[Countermeasure, ...]) -> None:
    first, two, many, little, much = swept
    assert [row.value for row in swept] == [None, 2, 1000, 0.1, 100]
    assert (found(first), found(two), found(much)) == (8, 8, 0)
    assert first.labels is not None
    assert much.labels is not None
    assert (first.labels.value, first.labels.p) == (1.0, 0.001)
    assert (much.labels.p or 0) > 0.01
    for row in (first, two, little, much):
        assert row.accuracy is not None
        assert row.attack is None or row.attack.subject == "stand-in"
    assert first.accuracy is not None
    assert much.accuracy is not None
    assert two.accuracy == first.accuracy
    assert much.accuracy.high < first.accuracy.low
    assert (many.status, many.accuracy) == ("refused", None)
    assert "hold out" in (many.reason or "")
    assert "rounds of" in (first.reason or "")


def test_the_sentence_of_a_real_sweep_names_what_hides(swept: tuple[Countermeasure, ...]) -> None:
    said = what_would_help(swept) or ""
    assert "noise of 100 would hide the records" in said.lower()
    assert "8 of 8 without" in said
    assert "safe" not in said


def test_a_sweep_is_saved_shown_and_printed(swept: tuple[Countermeasure, ...]) -> None:
    sentence = what_would_help(swept)
    answer = made_answer(countermeasures=swept, what_would_help=sentence)
    assert parse_answer(dump_answer(answer), where="here") == answer
    page = Report(answer=answer).to_html()
    assert sentence
    assert sentence in page
    assert "federated training" in page
    assert "bound" not in page.partition("What would help</h2>")[2].partition("For the record")[0].lower()
    printed = str(Report(answer=answer)).splitlines()
    [line] = [line for line in printed if line.startswith("noise of 100  ")]
    assert "0 of 8" in line
    assert all(len(line) <= 100 for line in printed)
    figure = along_sweep(swept)
    assert [series.name for series in figure.series] == [
        "records found",
        "labels inferred",
        "accuracy",
        "labels by chance",
    ]
    assert figure.series[0].x == ("the update as it is", "sums of 2 clients", "noise of 0.1", "noise of 100")


@pytest.mark.usefixtures("short_searches")
def test_what_one_attack_finds_by_itself_counts_in_a_sweep_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among attacks that return noise, whose best scores list none."""
    joint = sweep.together

    def drowned(*args: Any, **kwargs: Any) -> AuditTest | None:
        every = joint(*args, **kwargs)
        return every and replace(every, found=0, copies=0, p=0.5)

    monkeypatch.setattr(sweep, "together", drowned)
    asked = applicable(sent(STEP), records=8, attacks=("FirstLayer", "GradientMatching"))
    first, _ = sweep_update(sent(STEP), part(0, 8), part(100, 900), {"noise": (100,)}, asked, budget=60, seed=0)
    assert first.attack
    assert first.attack.name == "FirstLayer"
    assert found(first) == 8


def test_the_budget_of_a_sweep_is_kept() -> None:
    asked = applicable(sent(STEP), records=8, attacks=("FirstLayer", "GradientMatching"))
    start = process_time()
    rows = sweep_update(sent(STEP), part(0, 8), part(100, 900), DEFAULT, asked, budget=1.0, seed=0)
    assert process_time() - start < 15
    assert len(rows) == 1 + sum(map(len, DEFAULT.values()))


@pytest.mark.slow
def test_an_audit_sweeps_on_request_by_mini_batches_of_adam() -> None:
    training = Training(optimizer=Adam(lr=1e-3), epochs=2, batch_size=4)
    truth, held_out = part(0, 8), part(100, 700)
    report = audit(
        sent(training), truth=truth, held_out=held_out, attacks=("FirstLayer",), budget=30, sweep={"noise": (1,)}
    )
    assert [row.setting for row in report.answer.countermeasures] == ["the update as it is", "noise of 1"]
    assert report.answer.what_would_help
    assert "Adam" in (report.answer.countermeasures[0].reason or "")


def test_what_cannot_be_made_again_is_refused() -> None:
    gradient = Gradient(
        model=net(),
        at=sent(STEP).at,
        gradient=sent(STEP).sent,
        labels=None,
        batch_size=8,
        shape=(1, 8, 8),
        loss=CrossEntropy(),
    )
    with refused("not-enough-knowledge", "sweep"):
        audit(gradient, truth=part(0, 8), held_out=part(100, 300), sweep={"noise": (1,)})
    with refused("unknown-name", "sweep"):
        audit(sent(STEP), truth=part(0, 8), held_out=part(100, 300), sweep={"nose": (1,)})
    [row] = countermeasures_for(gradient, part(0, 8), part(100, 300), budget=10, seed=0)
    assert "--local" in (row.reason or "")


def test_labels_are_no_surer_than_the_exchanges_that_few_held_out_records_allow() -> None:
    release, few = sent(STEP), part(100, 102)
    found, _ = labels_of(release, part(0, 8), few, seed=0)
    assert found.value == 1
    assert found.p is not None
    assert found.p > 1 / comb(10, 2)  # of ten records two are left out of a batch


def test_labels_of_many_held_out_records_are_inferred_by_some_of_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are sorted by class, and the client is simulated on no more than 2,000 of them at once."""
    simulate, simulated = LocalUpdate.simulate, list[torch.Tensor]()

    def recorded(self: LocalUpdate, x: torch.Tensor, labels: torch.Tensor) -> Params:
        simulated.append(x)
        return simulate(self, x, labels)

    monkeypatch.setattr(LocalUpdate, "simulate", recorded)
    some = part(100, 1700)
    many = concat([some, some]).take(torch.cat([some.y, some.y]).argsort())
    found, _ = labels_of(sent(SEVERAL, records=32), part(0, 32), many, seed=0)
    assert found.value is not None
    assert found.value > 0.8
    assert simulated
    assert max(map(len, simulated)) <= 2000
    of_class = {row.numpy().tobytes(): int(y) for row, y in zip(many.x, many.y, strict=True)}
    assert {of_class[row.numpy().tobytes()] for row in simulated[0]} == set(range(10))


def test_labels_end_with_their_time_and_say_so() -> None:
    release = sent(replace(SEVERAL, epochs=20), records=32)
    early, in_full = (labels_of(release, part(0, 32), part(100, 900), seed=0, seconds=s)[0] for s in (0.0, 600.0))
    assert early.value is not None
    assert early.meaning.endswith("stopped early, to keep the budget")
    assert "stopped" not in in_full.meaning


def test_labels_of_another_batch_are_not_inferred_beyond_chance() -> None:
    release = sent(STEP, records=32)
    ours, _ = labels_of(release, part(0, 32), part(100, 900), seed=0)
    p_values = [labels_of(release, part(k, k + 32), part(100, 900), seed=0)[0].p or 0.0 for k in range(900, 1700, 32)]
    assert (ours.value, ours.p) == (1.0, 0.001)
    assert 0.5 < (ours.chance or 0) < 0.9  # of 32 labels of ten classes, any answer shares most
    assert sum(p <= 0.05 for p in p_values) <= 5  # of 25
    assert max(p_values) > 0.3


def test_a_training_that_learns_nothing_measures_no_accuracy() -> None:
    held_out = part(100, 900)
    unlearnable = replace(held_out, y=held_out.y[torch.randperm(800, generator=torch.Generator().manual_seed(1))])
    asked = applicable(sent(STEP), records=8, attacks=("FirstLayer",))
    rows = sweep_update(sent(STEP), part(0, 8), unlearnable, {"noise": (1,)}, asked, budget=6, seed=0)
    assert [row.accuracy for row in rows] == [None, None]
    assert "learn nothing" in (rows[0].reason or "")
