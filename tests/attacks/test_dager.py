"""DAGER against batches that are known: tokens and sequences exactly, with adapters, noise and clipping."""

import dataclasses
from itertools import product

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn
from torch.nn import functional as F

from remanence.attacks import DAGER
from remanence.attacks.gradients.token_sentences import count_tokens, token_errors
from remanence.data import Tokens, python_docs
from remanence.models import Transformer, adapter_names, decoder, encoder, transformer_params
from remanence.releases import TransformerUpdate, transformer_update
from remanence.releases.defenses import Clipping, Defense, GaussianNoise
from remanence.types import Params, TokenReconstruction

LENGTH, WORDS = 6, tuple(map(str, range(300)))


def batch(n: int, *, distinct: int = 37, seed: int = 0) -> Tokens:
    """Sequences of random words, of which there are few enough that many occur more than once."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 3 + distinct, (n, LENGTH), generator=generator)
    return Tokens(ids=ids, y=torch.arange(n) % 2, vocabulary=WORDS, num_classes=2)


def released(
    truth: Tokens,
    *,
    width: int = 64,
    rank: int | None = None,
    lora_std: float = 0.02,
    defenses: tuple[Defense, ...] = (),
) -> TransformerUpdate:
    model = decoder(len(WORDS), length=LENGTH, width=width, rank=rank)
    at = transformer_params(model, seed=1, lora_std=lora_std)
    return transformer_update(model, at, truth, seed=0, defenses=defenses).release


def classified(truth: Tokens, *, blocks: int = 2) -> TransformerUpdate:
    model = encoder(len(WORDS), 2, length=truth.ids.shape[1], width=64, blocks=blocks)
    return transformer_update(model, transformer_params(model, seed=1), truth, seed=0).release


def sequences(found: TokenReconstruction | Tokens) -> set[tuple[int, ...]]:
    return set(map(tuple, found.ids.tolist()))


def words(truth: Tokens) -> set[int]:
    return set(truth.ids.unique().tolist()) - {0}


def without(release: TransformerUpdate, *words: str) -> TransformerUpdate:
    """The update of a client that trains, or sends, no parameter with one of these words in its name."""
    sent = {name: g for name, g in release.gradient.items() if not any(word in name for word in words)}
    return dataclasses.replace(release, gradient=sent)


@pytest.mark.parametrize("rank", [None, 16])
def test_projections_that_were_not_sent_are_not_needed(rank: int | None) -> None:
    """Adapters are often those of query and value alone."""
    truth = batch(3)
    found = DAGER().run(without(released(truth, rank=rank), ".key."), seed=0)
    assert words(truth) <= set(found.tokens.tolist())
    assert sequences(found) == sequences(truth)


def test_without_the_second_attention_there_are_tokens_and_without_the_first_nothing() -> None:
    truth = batch(3)
    release = released(truth)
    found = DAGER().run(without(release, "blocks.1"), seed=0)
    assert words(truth) <= set(found.tokens.tolist())
    assert len(found.ids) == 0
    with refused("not-identifiable", "release"):
        DAGER().run(without(release, "blocks."), seed=0)
    only_words = DAGER().run(without(classified(truth), "blocks.0.value"), seed=0)
    assert words(truth) <= set(only_words.tokens.tolist())
    assert len(only_words.ids) == 0


@pytest.mark.parametrize("defenses", [(), (Clipping(norm=0.01),), (GaussianNoise(relative_std=0.003),)], ids=str)
def test_tokens_and_sequences_of_a_batch_are_exact(defenses: tuple[Defense, ...]) -> None:
    truth = batch(5)
    found = DAGER().run(released(truth, defenses=defenses), seed=0)
    assert set(found.tokens.tolist()) == words(truth)
    assert sequences(found) == sequences(truth)
    assert found.objective == 0


def test_sequences_are_those_that_a_search_over_all_finds() -> None:
    """Every sequence of three tokens, in float64 and against a span by numpy."""
    truth = batch(2)
    truth = dataclasses.replace(truth, ids=truth.ids[:, :3])
    model = decoder(len(WORDS), length=3, width=64)
    at = transformer_params(model, seed=1)
    release = transformer_update(model, at, truth, seed=0).release
    found = DAGER().run(release, seed=0)
    net = loaded(model, at)
    every = torch.tensor(list(product(sorted(words(truth)), repeat=3)))
    entering = net.blocks[1].get_submodule("norm1")(net.blocks[0](net.embed(every), net.mask(every)))[:, -1]
    gradient = release.gradient["blocks.1.value.weight"].double().numpy()
    _, values, rows = np.linalg.svd(gradient)
    rows = rows[: int((values > 1e-6 * values[0]).sum())]
    x = entering.double().numpy()
    inside = np.linalg.norm(x - x @ rows.T @ rows, axis=1) < 1e-3 * np.linalg.norm(x, axis=1)
    assert sequences(found) == {tuple(row) for row in every[torch.from_numpy(inside)].tolist()} == sequences(truth)


@pytest.mark.parametrize("rank", [2, 8])
def test_adapters_of_a_rank_below_the_number_of_tokens_show_the_tokens(rank: int) -> None:
    truth = batch(3)
    release = released(truth, width=128, rank=rank)
    assert set(release.gradient) == set(adapter_names(release.model))
    found = DAGER().run(release, seed=0)
    assert len(words(truth)) > 3 * rank or rank == 8
    assert set(found.tokens.tolist()) == words(truth)


def test_adapters_before_the_first_step_show_nothing() -> None:
    with refused("not-identifiable", "release"):
        DAGER().run(released(batch(3), rank=4, lora_std=0.0), seed=0)


def of_several_lengths() -> Tokens:
    truth = batch(4)
    ids = truth.ids.clone()
    ids[0, 3:] = 0
    ids[1, 5:] = 0
    return dataclasses.replace(truth, ids=ids)


def test_shorter_sequences_end_where_they_end() -> None:
    truth = of_several_lengths()
    assert sequences(DAGER().run(released(truth), seed=0)) == sequences(truth)


@pytest.mark.parametrize("blocks", [2, 3])
def test_tokens_and_sequences_of_an_encoder_are_exact(blocks: int) -> None:
    truth = batch(5, distinct=80)  # so many that each sequence has words of its own
    assert len(words(truth)) < truth.ids.numel()
    found = DAGER().run(classified(truth, blocks=blocks), seed=0)
    assert set(found.tokens.tolist()) == words(truth)
    assert sequences(found) == sequences(truth)
    assert float(found.scores.min()) > 0.999999


def test_sequences_of_an_encoder_are_those_that_a_search_over_all_finds() -> None:
    """Every sequence of three tokens, in float64 and against a span by numpy."""
    truth = batch(2)
    truth = dataclasses.replace(truth, ids=truth.ids[:, :3])
    release = classified(truth, blocks=3)
    net = loaded(release.model, release.at).double()
    every = torch.tensor(list(product(sorted(words(truth)), repeat=3)))
    x = net.blocks[1].get_submodule("norm1")(net.blocks[0](net.embed(every), net.mask(every))).numpy()
    _, values, rows = np.linalg.svd(release.gradient["blocks.1.value.weight"].double().numpy())
    rows = rows[: int((values > 1e-6 * values[0]).sum())]
    outside = np.linalg.norm(x - x @ rows.T @ rows, axis=2) / np.linalg.norm(x, axis=2)
    inside = every[torch.from_numpy((outside < 1e-3).all(1))]
    found = DAGER().run(release, seed=0)
    assert sequences(found) == set(map(tuple, inside.tolist())) == sequences(truth)


def test_shorter_sequences_of_an_encoder_end_where_they_end() -> None:
    truth = of_several_lengths()
    assert sequences(DAGER().run(classified(truth), seed=0)) == sequences(truth)


def test_errors_of_tokens_are_those_that_autograd_propagates_to_the_values() -> None:
    truth = batch(3)
    release = classified(truth)
    net = loaded(release.model, release.at).double()
    outputs: list[torch.Tensor] = []
    net.blocks[0].get_submodule("value").register_forward_hook(lambda *call: outputs.append(call[2]))
    net.requires_grad_(True)
    (errors,) = torch.autograd.grad(net.loss(truth.ids, truth.y), outputs)
    scaled = errors / (net.embed(truth.ids).var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    tokens = truth.ids.unique()
    expected = torch.stack([scaled[truth.ids == token].sum(0) for token in tokens]).detach()
    at = loaded(release.model, release.at)
    found = token_errors(at, release.gradient["blocks.0.value.weight"], tokens, LENGTH)
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


def test_tokens_are_counted_in_the_sentences_whose_errors_they_are_sums_of() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([[1, 0, 0]] * 3 + [[0, 1, 0]] * 3 + [[0, 0, 1]] * 3 + [[0, 2, 0], [1, 1, 0], [1, 2, 1]])
    errors = counts.double() @ torch.randn(3, 30, generator=generator, dtype=torch.float64)
    errors += 0.05 * torch.randn(errors.shape, generator=generator, dtype=torch.float64)
    found, _ = count_tokens(errors, count=3, length=9)
    assert sorted(found.T.tolist()) == sorted(counts.T.tolist())


@pytest.mark.parametrize("causal", [True, False])
def test_a_span_of_every_direction_shows_no_sequences(causal: bool) -> None:
    truth = batch(12)
    found = DAGER().run(released(truth) if causal else classified(truth), seed=0)
    assert found.ids.shape == (0, LENGTH)
    assert len(found.scores) == 0


@pytest.mark.parametrize("causal", [True, False])
def test_positions_that_no_sequence_has_do_not_hide_the_tokens(causal: bool) -> None:
    """A table of more positions than the width, as of GPT-2, spans every direction."""
    truth = batch(3)
    model = decoder(len(WORDS), length=100, width=64) if causal else encoder(len(WORDS), 2, length=100, width=64)
    release = transformer_update(model, transformer_params(model, seed=1), truth, seed=0).release
    found = DAGER().run(release, seed=0)
    assert set(found.tokens.tolist()) == words(truth)
    assert sequences(found) == sequences(truth)


def test_noise_that_hides_everything_leaves_nothing() -> None:
    found = DAGER().run(released(batch(3), defenses=(GaussianNoise(relative_std=1000),)), seed=0)
    assert (len(found.tokens), found.ids.shape) == (0, (0, LENGTH))


@pytest.mark.parametrize("frozen", [False, True])
def test_last_tokens_without_a_loss_are_those_that_were_predicted(frozen: bool) -> None:
    """Sequences of two lengths, some of which end in a token that is nowhere else in the batch; where the last MLP is
    not sent they end one token earlier."""
    truth = batch(4)
    ids = truth.ids.clone()
    ids[0, 4:] = 0
    ids[2:, -1] = torch.tensor([250, 251])
    truth = dataclasses.replace(truth, ids=ids)
    with torch.device("meta"):
        model = Transformer(300, length=LENGTH, width=64, blocks=3, heads=4, classes=None, rank=None, special=False)
    release = transformer_update(model, transformer_params(model, seed=1), truth, seed=0).release
    sent = {name: g for name, g in release.gradient.items() if not frozen or "blocks.2.down" not in name}
    found = DAGER().run(dataclasses.replace(release, gradient=sent), seed=0)
    shorter = {(*row[: len(row) - row.count(0) - 1], *[0] * (row.count(0) + 1)) for row in sequences(truth)}
    assert sequences(found) == (shorter if frozen else sequences(truth))
    assert (250 in found.tokens.tolist()) is not frozen
    assert 0 not in found.tokens.tolist()


def test_the_release_is_left_as_it_was_and_the_answer_repeats() -> None:
    release = released(batch(3))
    before = {name: p.clone() for name, p in (release.at | release.gradient).items()}
    state = torch.get_rng_state()
    one, two = (DAGER().run(release, seed=seed) for seed in (0, 1))
    assert torch.equal(one.ids, two.ids)
    assert torch.equal(one.tokens, two.tokens)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(p, before[name]) for name, p in (release.at | release.gradient).items())
    assert eval(repr(DAGER())) == DAGER()


def test_refuses_what_it_cannot_use() -> None:
    with refused("not-enough-knowledge", "release"):
        DAGER().run(nn.Linear(2, 2), seed=0)  # type: ignore[arg-type]
    with refused("out-of-range", "exact"):
        DAGER(exact=1.0)


def test_the_decoder_is_causal_and_its_loss_is_that_of_the_next_token() -> None:
    truth = batch(2)
    model = decoder(len(WORDS), length=LENGTH, width=32)
    net = loaded(model, transformer_params(model, seed=0))
    changed = truth.ids.clone()
    changed[:, 4:] = 7
    assert torch.allclose(net(truth.ids)[:, :4], net(changed)[:, :4], atol=1e-6)
    total = [
        F.cross_entropy(net(truth.ids)[i, j], torch.tensor(following))
        for i, row in enumerate(truth.ids.tolist())
        for j, following in enumerate([*row[1:], 1])
    ]
    assert torch.allclose(net.loss(truth.ids, truth.y), torch.stack(total).mean())


def test_sentences_are_distinct_and_of_one_vocabulary() -> None:
    parts = python_docs(length=8, private=20, seed=0)
    rows = [tuple(row) for part in (parts.private, parts.public, parts.test) for row in part.ids.tolist()]
    assert len(set(rows)) == len(rows)
    assert len(parts.private) == 20
    assert len(parts.private.vocabulary) > 3000
    assert parts.private.texts()[0].split()[0] == parts.private.vocabulary[int(parts.private.ids[0, 0])]
    with refused("out-of-range", "private"):
        python_docs(length=8, private=10**6, seed=0)


def test_token_records_refuse_ids_outside_their_vocabulary() -> None:
    with refused("out-of-range", "ids"):
        Tokens(ids=torch.tensor([[3]]), y=torch.tensor([0]), vocabulary=("a",), num_classes=1)
    with refused("wrong-type", "ids"):
        Tokens(ids=torch.rand(1, 1), y=torch.tensor([0]), vocabulary=("a",), num_classes=1)


def loaded(model: Transformer, at: Params) -> Transformer:
    net = model.to_empty(device="cpu")
    net.load_state_dict(at)
    return net.requires_grad_(False)
