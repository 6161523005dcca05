"""Audits of updates on text: tokens and sentences beside chance, from files, with defenses, on the page."""

import json
from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.stats import binomtest
from text_updates import HELD_OUT, LENGTH, LR, TRUTH, WORDS, released, sampled, weights
from torch import nn

from remanence.attacks import DAGER, infer_tokens
from remanence.auditing import Report, audit
from remanence.auditing.answer.formats import to_sarif
from remanence.auditing.answer.gate import failures
from remanence.auditing.answer.sentences import text_verdict
from remanence.auditing.checks.tokens import check_tokens
from remanence.auditing.evidence.text_labels import text_labels
from remanence.auditing.evidence.tokens import agreement, as_records, token_evidence
from remanence.auditing.inputs.tokens import load_tokens, load_vocabulary
from remanence.auditing.inputs.transformers import token_network, token_update
from remanence.metrics.tokens import score_tokens
from remanence.models import decoder, encoder, transformer_params
from remanence.releases import token_gradient, transformer_update
from remanence.releases.defenses import Defense, GaussianNoise, Quantization, TopK


@pytest.fixture(scope="module")
def report() -> Report:
    return audit(released(), truth=TRUTH, held_out=HELD_OUT, budget=60)


def test_every_sentence_and_token_of_a_client_is_found(report: Report) -> None:
    [row] = report.attacks
    assert (row.name, row.found, row.exact, row.records) == ("DAGER", 5, 5, 5)
    assert report.severity == "many-records"
    rows = {each.name: each for each in report.evidence}
    assert rows["tokens by attention: recall"].value == rows["tokens by embeddings: recall"].value == 1
    assert "5 of 5 sentences" in report.verdict
    assert [each.status for each in report.answer.preflight.checks] == ["ok"]
    assert report.answer.preflight.numbers["update_cosine"] == pytest.approx(1)


def test_sentences_are_stored_shown_and_left_out_of_a_redacted_report(report: Report, tmp_path: Path) -> None:
    shown = report.sentences
    assert {each.tokens for each in shown} == {
        tuple(WORDS[token] for token in row if token) for row in TRUTH.ids.tolist()
    }
    assert all(each.exact and each.reconstruction == each.tokens for each in shown)
    assert {mark for each in shown for mark in each.marks} == {"position"}
    report.save(tmp_path)
    loaded = Report.load(tmp_path)
    assert loaded.sentences == shown
    assert loaded.answer == report.answer
    word = shown[0].tokens[0]
    assert f'<span class="position">{word}</span>' in report.to_html()
    loaded.save(tmp_path, redact=True)
    assert not (tmp_path / "sentences.json").exists()
    written = (tmp_path / "report.html").read_text() + (tmp_path / "report.json").read_text()
    assert f">{word}<" not in written
    assert "No record is shown." in written


def test_a_word_is_text_on_the_page_whatever_it_says(report: Report) -> None:
    hostile = replace(report.sentences[0], tokens=("<img src=x>",) * len(report.sentences[0].tokens))
    assert "<img src=x" not in replace(report, sentences=(hostile,)).to_html()


def test_damaged_sentences_are_refused(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path)
    stored = json.loads((tmp_path / "sentences.json").read_text())
    stored["sentences"][0]["marks"].pop()
    for text in (json.dumps(stored), "{", "[]"):
        (tmp_path / "sentences.json").write_text(text)
        with refused("damaged-file", "folder"):
            Report.load(tmp_path)


def test_an_update_of_other_sentences_finds_none() -> None:
    other = audit(released(truth=sampled(5, seed=7)), truth=TRUTH, held_out=HELD_OUT, budget=60)
    [row] = other.attacks
    assert (row.found, row.exact) == (0, 0)
    assert other.severity == "inconclusive"  # nothing could have been found by these
    assert other.verdict.startswith("Inconclusive: what the attacks assume does not fit (see the warning on `update`)")
    read = next(each for each in other.evidence if each.p is not None)
    assert "which chance explains" in other.verdict
    assert read.p is not None
    assert read.p > 0.001
    assert other.answer.correction.startswith("1 attack ran. It lists")
    assert other.answer.caveats[0].code == "preflight-warning"
    [said] = failures(other, ["found>0", "tokens.recall>0.9"])
    assert said.startswith("found>0: what the attacks assume does not fit")


def test_p_values_of_other_batches_are_not_small() -> None:
    """Over batches that the update is not of: of tokens and of sentences one in twenty below one in twenty at most."""
    release = released(truth=sampled(5, seed=7))
    found = [audit(release, truth=sampled(5, seed=s), held_out=HELD_OUT, budget=60) for s in range(20, 40)]
    tokens = sum((each.evidence[0].p or 0) <= 0.05 for each in found)
    sentences = sum((each.attacks[0].p or 0) <= 0.05 for each in found)
    listed = sum(bool(each.attacks[0].found) for each in found)
    for count in (tokens, sentences, listed):
        assert binomtest(count, len(found), 0.05, alternative="greater").pvalue > 0.01


@pytest.mark.parametrize("count", [1, 3])
def test_few_held_out_sentences_make_the_p_value_of_tokens_large(count: int) -> None:
    """Every token is right: p is that of choosing the private sentences among all, and no smaller."""
    truth, held_out = sampled(2, seed=0), sampled(count, seed=1)
    found = DAGER().run(released(truth=truth), seed=0)
    scores = score_tokens(found, truth, public=held_out, held_out=held_out)
    recall, _ = token_evidence("attention", scores, found.tokens, as_records(truth), as_records(held_out), seed=0)
    assert recall.p == pytest.approx(1 / comb(2 + count, 2), rel=0.1)


@pytest.mark.parametrize(("count", "others"), [(3, 20), (6, 60)])
def test_the_p_value_of_tokens_is_that_of_a_loop_over_sets(count: int, others: int) -> None:
    """The tokens of one private sentence are returned: batches of the same rows, drawn one by one, contain as many."""
    truth, held_out = sampled(count, seed=0), sampled(others, seed=1)
    returned = truth.ids[0].unique()
    found = DAGER().run(released(truth=truth.take([0])), seed=0)
    scores = replace(score_tokens(found, truth, public=held_out, held_out=held_out), only_returned=99, only_guessed=0)
    recall, _ = token_evidence("attention", scores, returned, as_records(truth), as_records(held_out), seed=7)
    generator, above = torch.Generator().manual_seed(7), 0
    rows = [set(row) - {0} for row in [*truth.ids.tolist(), *held_out.ids.tolist()]]
    for _ in range(9999):
        drawn = torch.randperm(len(rows), generator=generator)[:count].tolist()
        batch = set().union(*(rows[i] for i in drawn))
        above += len(batch & set(returned.tolist())) / len(batch) >= (recall.value or 0) - 1e-9
    assert recall.p == (1 + above) / 10_000
    assert 1e-4 < recall.p < 1


def test_the_gate_counts_sentences_and_tokens(report: Report) -> None:
    assert failures(report, ["DAGER.found>0", "found>=50%", "tokens.recall>0.8"])
    assert len(failures(report, ["DAGER.found>5", "exact>5"])) == 0


def test_a_verdict_of_ranks_alone_says_nothing_of_tokens(report: Report) -> None:
    """Twelve sentences of which none is listed, whose ranks show membership and whose tokens chance explains."""
    row = replace(report.attacks[0], records=12, found=0, exact=0, p=1e-4)
    recall = replace(report.evidence[0], p=0.4)
    scores = score_tokens(DAGER().run(released(), seed=0), TRUTH, public=HELD_OUT, held_out=HELD_OUT)
    said = text_verdict(row, scores, recall, "membership")
    assert "nearer to private than to held-out sentences" in said
    assert "tokens" not in said


def test_agreement_is_that_of_a_loop_over_lists() -> None:
    ids = sampled(7, seed=3).ids
    other = torch.where(torch.rand(4, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.5, ids[:4], 9)
    expected = [
        [
            sum(a == b and a > 0 for a, b in zip(one, two, strict=True))
            / sum(a > 0 or b > 0 for a, b in zip(one, two, strict=True))
            for two in ids.tolist()
        ]
        for one in other.tolist()
    ]
    torch.testing.assert_close(agreement(other.float(), ids.float()), torch.tensor(expected))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("defense", [None, TopK(fraction=0.01), GaussianNoise(relative_std=0.3)], ids=str)
def test_rows_of_embeddings_show_the_tokens(causal: bool, defense: Defense | None) -> None:
    release = released((defense,) if defense else (), causal=causal)
    assert set(infer_tokens(release).tolist()) == set(TRUTH.ids.unique().tolist()) - {0}


def test_what_the_embeddings_do_not_say_is_not_inferred() -> None:
    release = released()
    adapters = {name: g for name, g in release.gradient.items() if name != "tokens.weight"}
    with refused("not-enough-knowledge", "gradient"):
        infer_tokens(replace(release, gradient=adapters))
    frozen = {name: g for name, g in release.gradient.items() if "tokens" in name or "norm" in name}
    zeros = {f"blocks.0.{name}.weight": torch.zeros(64, 64) for name in ("query", "key", "value")}
    seen = audit(replace(release, gradient=frozen | zeros), truth=TRUTH, held_out=HELD_OUT, budget=60)
    assert (seen.attacks[0].status, seen.severity) == ("refused", "membership")
    assert [each.name for each in seen.evidence] == ["tokens by embeddings: recall", "tokens by embeddings: precision"]
    [said] = json.loads(to_sarif(seen.answer))["runs"][0]["results"]
    assert said["message"]["text"].startswith("tokens by embeddings: recall 100")
    assert (seen.answer.correction, "; the update shows " in seen.verdict) == ("No attack ran.", True)


def test_a_refusal_is_said_with_its_reason_while_one_waits(capsys: pytest.CaptureFixture[str]) -> None:
    release = released()
    zeros = {name: torch.zeros_like(g) if "blocks" in name else g for name, g in release.gradient.items()}
    seen = audit(replace(release, gradient=zeros), truth=TRUTH, held_out=HELD_OUT, budget=60)
    [row] = seen.attacks
    assert (row.status, bool(row.reason)) == ("refused", True)
    assert f"DAGER: refused ({row.reason})" in capsys.readouterr().err


def test_coarse_entries_are_read_as_exact_ones() -> None:
    release = released((Quantization(bits=8),))
    found = DAGER().run(release, seed=0)
    assert set(map(tuple, found.ids.tolist())) == set(map(tuple, TRUTH.ids.tolist()))
    unknown = DAGER().run(replace(release, defenses=()), seed=0)
    assert not set(map(tuple, unknown.ids.tolist())) & set(map(tuple, TRUTH.ids.tolist()))


def saved(path: Path, **arrays: object) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def test_tokens_are_read_with_their_padding(tmp_path: Path) -> None:
    model, words = decoder(300, length=LENGTH), WORDS
    ids = TRUTH.ids.numpy()
    mask = (ids != 0).astype(np.int64)
    files = [
        saved(tmp_path / "a.npz", input_ids=np.where(mask, ids, 7), attention_mask=mask),
        saved(tmp_path / "b.npz", ids=np.where(mask, ids, 7), lengths=mask.sum(1)),
        saved(tmp_path / "c.npz", tokens=np.where(mask, ids, -100).astype(np.int32)),
    ]
    np.save(tmp_path / "d.npy", ids)
    torch.save({"input_ids": TRUTH.ids}, tmp_path / "e.pt")
    for each in (*files, str(tmp_path / "d.npy"), str(tmp_path / "e.pt")):
        assert torch.equal(load_tokens(each, model, words, argument="data").ids, TRUTH.ids)


@pytest.mark.parametrize(
    ("arrays", "code", "words"),
    [
        ({"ids": np.ones((2, 3), np.float32)}, "wrong-type", "whole numbers"),
        ({"ids": np.ones((2, 3), bool)}, "wrong-type", "whole numbers"),
        ({"ids": np.full((2, 3), 300)}, "out-of-range", "300 tokens"),
        ({"ids": np.ones(3, int)}, "shape-mismatch", "(3,)"),
        ({"ids": np.ones((0, 3), int)}, "shape-mismatch", "(0, 3)"),
        ({"ids": np.ones((2, 9), int)}, "out-of-range", "positions for 6"),
        ({"ids": np.array([[0, 5]])}, "out-of-range", "padding at its end"),
        ({"ids": np.array([[5, 0, 5]])}, "out-of-range", "padding at its end"),
        ({"ids": np.array([[0, 0]])}, "out-of-range", "a token in each"),
        ({"ids": np.ones((2, 3), int), "lengths": np.ones(3, int)}, "shape-mismatch", "lengths"),
        ({"a": np.ones((2, 3), int), "b": np.ones((2, 3), int)}, "unknown-name", "input_ids"),
    ],
)
def test_what_is_no_token_is_refused(arrays: dict[str, object], code: str, words: str, tmp_path: Path) -> None:
    with refused(code, "data") as caught:
        load_tokens(saved(tmp_path / "a.npz", **arrays), decoder(300, length=LENGTH), WORDS, argument="data")
    assert words in str(caught.value)


def test_an_encoder_needs_the_labels_of_its_sequences(tmp_path: Path) -> None:
    model, ids = encoder(300, 2, length=LENGTH), TRUTH.ids.numpy()
    with refused("unknown-name", "data"):
        load_tokens(saved(tmp_path / "a.npz", ids=ids), model, WORDS, argument="data")
    with refused("out-of-range", "data"):
        load_tokens(saved(tmp_path / "b.npz", ids=ids, y=np.full(5, 2)), model, WORDS, argument="data")
    made = load_tokens(saved(tmp_path / "c.npz", ids=ids, y=TRUTH.y.numpy()), model, WORDS, argument="data")
    assert torch.equal(made.y, TRUTH.y)


def test_an_update_with_its_ends_swapped_is_said_to_be_one() -> None:
    sent = released()
    swapped = replace(sent, gradient={name: -g for name, g in sent.gradient.items()})
    [check] = check_tokens(swapped, TRUTH, HELD_OUT).checks
    assert (check.name, check.status) == ("update", "warning")
    assert "(cosine -1.00)" in check.text
    assert "the weights before and after are swapped" in check.text


def test_a_vocabulary_is_a_list_ids_by_word_or_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = decoder(300, length=LENGTH), tmp_path / "v.json"
    for text in (json.dumps(list(WORDS)), json.dumps({word: i for i, word in enumerate(WORDS)})):
        path.write_text(text)
        assert load_vocabulary(path, model) == ("w0", *WORDS[1:])
    (tmp_path / "v.txt").write_text("\n".join(WORDS[:200]))
    assert load_vocabulary(tmp_path / "v.txt", model)[199:201] == ("w199", "200")
    assert "v.txt names 200 of 300 tokens; the others are shown as numbers" in capsys.readouterr().err
    for text, code in (("3", "wrong-type"), ('{"a": 1.5}', "wrong-type"), (json.dumps(["x"] * 301), "out-of-range")):
        path.write_text(text)
        with refused(code, "vocabulary"):
            load_vocabulary(path, model)


@pytest.mark.parametrize(("kind", "lr"), [(torch.float32, 0.1), (torch.bfloat16, 1.0)])
def test_weights_after_a_step_show_what_their_rounding_leaves(kind: torch.dtype, lr: float) -> None:
    """The error of the difference, by its definition, and what the attack makes of it; the step is not so small that
    weights stay as they are."""
    release = released()
    network = token_network(release.model)
    assert network
    before = {name: p.to(kind).float() for name, p in release.at.items()}
    exact = token_gradient(release.model, before, TRUTH)
    after = {name: (p - lr * exact[name]).to(kind).float() for name, p in before.items()}
    made = token_update(network, before, after, TRUTH, gradient=False, lr=lr)
    names = [f"blocks.{block}.{name}.weight" for block in (0, 1) for name in ("query", "key", "value")]
    errors = [made.gradient[name] - exact[name] for name in names]
    relative = max(float(e.norm() / made.gradient[name].norm()) for e, name in zip(errors, names, strict=True))
    assert made.rounding == pytest.approx(relative, rel=0.3)
    found = audit(made, truth=TRUTH, held_out=HELD_OUT, budget=60)
    assert found.attacks[0].exact == 5 if kind is torch.float32 else "rounding" in str(found.answer.preflight)


def test_adapters_of_the_values_alone_are_audited_and_swept() -> None:
    """Nothing else was sent: other projections are frozen, and other clients send the same."""
    model = decoder(300, length=LENGTH, width=64, rank=16)
    at = transformer_params(model, seed=1, lora_std=0.02)
    gradient = token_gradient(model, at, TRUTH)
    after = {name: p - LR * gradient[name] if ".value.lora" in name else p for name, p in at.items()}
    network = token_network(model)
    assert network
    made = token_update(network, at, after, TRUTH, gradient=False)
    report = audit(made, truth=TRUTH, held_out=HELD_OUT, budget=60, sweep={"clients": (2,)})
    assert report.attacks[0].exact == 5
    assert report.answer.preflight.numbers["update_cosine"] == pytest.approx(1, abs=1e-3)
    assert [row.status for row in report.answer.countermeasures] == ["ran", "ran"]


def test_weight_decay_of_a_step_is_taken_out() -> None:
    release = released()
    network = token_network(release.model)
    assert network
    after = {name: p - LR * (release.gradient[name] + 0.1 * p) for name, p in release.at.items()}
    exact = token_update(network, release.at, after, TRUTH, gradient=False, lr=LR, decay=0.1)
    for name in ("blocks.0.query.weight", "tokens.weight"):
        expected = release.gradient[name]
        assert torch.allclose(exact.gradient[name], expected, atol=1e-3 * float(expected.abs().max()))


def test_sentences_and_labels_of_an_encoder_are_found() -> None:
    found = audit(released(causal=False), truth=TRUTH, held_out=HELD_OUT, budget=60, sweep={"clients": (2,)})
    assert found.attacks[0].exact == 5
    rows = {each.name: each for each in found.evidence}
    assert (rows["tokens by attention: recall"].value, rows["labels"].value) == (1, 1)
    assert [row.labels and row.labels.value for row in found.answer.countermeasures] == [1, 1]
    assert 'class="num">labels</th>' in found.to_html()


def test_labels_of_all_clients_are_those_of_the_sum() -> None:
    """Ten sentences of one class among others of both: their counts are told by the head's bias alone."""
    one = replace(sampled(10, seed=5), y=torch.ones(10).long())
    model = encoder(300, 2, length=LENGTH, width=64)
    release = transformer_update(model, weights(model), one, seed=0).release
    labels = text_labels(release, one, HELD_OUT, seed=0)
    assert labels
    assert labels.value == 1
    assert (labels.p or 1) < 0.01
    assert text_labels(released(), TRUTH, HELD_OUT, seed=0) is None


def test_what_is_no_text_is_refused_for_a_release_of_it() -> None:
    with refused("wrong-type", "truth"):
        audit(released(), truth=(TRUTH.ids, TRUTH.y), held_out=HELD_OUT)
    with refused("shape-mismatch", "truth"):
        audit(replace(released(), length=3), truth=TRUTH, held_out=HELD_OUT)
    with refused("empty", "held_out"):
        audit(released(), truth=TRUTH, held_out=HELD_OUT.take([]))


def test_a_network_that_is_no_transformer_is_none() -> None:
    assert token_network(nn.Linear(3, 3)) is None
