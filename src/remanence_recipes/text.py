"""What a server reconstructs from the gradients of clients that train transformers on text: studies of our own.

    remanence run text.decoder       scale small, one CPU core: about two minutes; text.encoder about five

Weights are random unless an experiment says that they were trained; sentences are those of Python's documentation.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import final

import torch

from remanence.attacks import DAGER, infer_tokens
from remanence.data import TextSplit, Tokens, python_docs
from remanence.experiments import Claim, Experiment, Measure, Outcome, Scale, Trial
from remanence.experiments.checks import tuned_on_truth
from remanence.metrics.statistics import binomial_proportion
from remanence.metrics.tokens import TokenScores, score_tokens
from remanence.models import Transformer, adapter_names, transformer_params
from remanence.models import decoder as make_decoder
from remanence.models import encoder as make_encoder
from remanence.releases import transformer_update
from remanence.releases.defenses import Clipping, Defense, GaussianNoise, Quantization, TopK
from remanence.seeds import derive_seed
from remanence.types import Params
from remanence_recipes.curves import measured

TOKENS, SEQUENCES = "tokens found", "sequences found"


@final
@dataclass(frozen=True, kw_only=True)
class _Client:
    """A batch of sentences, and the network that the client sends a gradient of."""

    sequences: int
    length: int = 16
    min_length: int | None = None  # of a sentence; `length` unless given
    width: int = 768
    blocks: int = 2
    causal: bool = True
    rank: int | None = None  # of adapters
    lora_std: float = 0.02  # of their factor B
    steps: int = 0  # of Adam, on public sentences, before the update
    defenses: tuple[Defense, ...] = ()


def decoder(scale: Scale) -> Sequence[Experiment]:
    """Sentences of a batch, exactly, from one gradient of a decoder: larger batches, more blocks, trained weights."""
    if scale == "smoke":
        return [_experiment("4 sentences of 8 tokens", _Client(sequences=4, length=8, width=96), sequences=4)]
    trained = "32 sentences of 16 tokens, trained for 40 steps"
    made = [
        *(_experiment(f"{n} sentences of 16 tokens", _Client(sequences=n), sequences=n) for n in (1, 8)),
        _experiment("32 sentences of 16 tokens", _Client(sequences=32), sequences=30),
        _experiment("32 sentences of 16 tokens, 4 blocks", _Client(sequences=32, blocks=4), sequences=30),
        _experiment(trained, _Client(sequences=32, steps=40)),
    ]
    if scale == "full":
        made.append(
            _experiment("32 sentences of 32 tokens", _Client(sequences=32, length=32, width=1280), sequences=30)
        )
    return made


def encoder(scale: Scale) -> Sequence[Experiment]:
    """Sentences of a batch from one gradient of an encoder that classifies, at random weights and after training."""
    if scale == "smoke":
        client = _Client(sequences=4, length=8, width=96, blocks=2, causal=False)
        return [_experiment("4 sentences of 8 tokens", client, sequences=4)]
    eight = _Client(sequences=8, blocks=3, causal=False)
    return [
        *(_experiment(f"{n} sentences of 16 tokens", replace(eight, sequences=n), sequences=n) for n in (1, 8)),
        _experiment("8 sentences of 16 tokens, 2 blocks", replace(eight, blocks=2), sequences=8),
        _experiment("8 sentences of 6 to 16 tokens", replace(eight, min_length=6), sequences=8),
        _experiment("32 sentences of 16 tokens", replace(eight, sequences=32)),
        _experiment("8 sentences of 16 tokens, trained for 40 steps", replace(eight, width=256, steps=40)),
    ]


def width(scale: Scale) -> Sequence[Experiment]:
    """Batches of 8 sentences of 16 tokens and a width that ends the span: decoders and encoders of 96 to 256."""
    if scale == "smoke":
        return [_experiment("decoder of width 96", _Client(sequences=4, length=8, width=96), sequences=4)]
    return [
        _experiment(f"{name} of width {each}", _Client(sequences=8, width=each, causal=causal))
        for name, causal in (("decoder", True), ("encoder", False))
        for each in (96, 112, 128, 144, 160, 192, 256)
    ]


def lora(scale: Scale) -> Sequence[Experiment]:
    """Adapters alone are sent: tokens and sentences by their rank, random factors B and ones after 20 steps."""
    if scale == "smoke":
        client = _Client(sequences=4, length=8, width=96, rank=8)
        return [_experiment("rank 8, 4 sentences of 8 tokens", client, recall=0.9)]
    made = [
        *((rank, _Client(sequences=8, rank=rank), "8 sentences") for rank in (1, 2, 4, 8, 16, 32, 64)),
        *(
            (rank, _Client(sequences=8, rank=rank, lora_std=0.0, steps=20), "8 sentences, B after 20 steps")
            for rank in (4, 16, 64)
        ),
        (16, _Client(sequences=32, rank=16), "32 sentences"),
    ]
    return [
        _experiment(f"rank {rank}, {name}", client, recall=0.9 if (rank, client.sequences) == (16, 8) else None)
        for rank, client, name in made
    ]


def defenses(scale: Scale) -> Sequence[Experiment]:
    """Defences of the update: what remains of 8 sentences of a decoder by its attention, and by rows of embeddings."""
    if scale == "smoke":
        client = _Client(sequences=4, length=8, width=96, defenses=(Clipping(norm=0.1),))
        return [_experiment("clipping, 4 sentences of 8 tokens", client, sequences=4)]
    noises = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
    chosen: dict[str, tuple[Defense, ...]] = {
        "none": (),
        "clipping to norm 0.1": (Clipping(norm=0.1),),
        **{f"noise {std:g}": (GaussianNoise(relative_std=std),) for std in noises},
        **{f"{bits} bits": (Quantization(bits=bits),) for bits in (8, 4, 2)},
        "largest 10 % of the entries": (TopK(fraction=0.1),),
    }
    return [_experiment(name, _Client(sequences=8, defenses=each)) for name, each in chosen.items()]


def _experiment(
    label: str, client: _Client, *, sequences: int | None = None, recall: float | None = None
) -> Experiment:
    goals = {SEQUENCES: sequences and sequences / client.sequences, TOKENS: recall}
    claims = tuple(
        Claim(quantity=name, higher_is_better=True, target=target, where="ours")
        for name, target in goals.items()
        if target is not None
    )
    about = "The batch from one gradient; chance guesses the most frequent words, as many as were returned."
    made = measured(label, about, partial(_attacked, client), claims)
    return replace(made, evaluations=(*made.evaluations, _tuned))


def _tuned(trial: Trial) -> Outcome:
    caveat = tuned_on_truth("Thresholds of DAGER were chosen on true sentences of the same corpus, of other seeds.")
    return Outcome(caveats=(caveat,))


def _attacked(client: _Client, seed: int, device: torch.device) -> Outcome:
    """Recall and precision of the tokens, sequences with every token right, each with its chance level."""
    parts = python_docs(
        length=client.length,
        private=client.sequences,
        seed=derive_seed(seed, "sentences"),
        min_length=client.min_length,
    )
    model = _network(client, parts.private)
    at = transformer_params(model, seed=derive_seed(seed, "weights"), lora_std=client.lora_std)
    at = _trained(model, at, parts, steps=client.steps, seed=derive_seed(seed, "training"))
    at, batch = {name: p.to(device) for name, p in at.items()}, parts.private.to(device)
    case = transformer_update(model, at, batch, seed=seed, defenses=client.defenses)
    started = perf_counter()
    found = DAGER().run(case.release, seed=seed)
    seconds = perf_counter() - started
    scores = score_tokens(found, case.truth, public=parts.public, held_out=parts.test)
    measures = [
        _recall(TOKENS, scores),
        Measure(
            name="precision of the tokens",
            value=scores.precision if scores.returned_tokens else None,
            meaning=f"of the {scores.returned_tokens} tokens returned",
            chance=scores.guessed_tokens / scores.returned_tokens if scores.returned_tokens else None,
        ),
        Measure.from_interval(
            SEQUENCES,
            binomial_proportion(scores.right_sequences, scores.sequences),
            meaning=f"of {scores.sequences}, every token right; chance is the fraction of the returned ones that "
            "equals a held-out sentence",
            chance=scores.held_out_sequences / max(1, scores.returned_sequences),
        ),
        Measure(
            name="positions right",
            value=scores.overlap,
            meaning="mean agreement with the nearest returned sequence; chance is that of held-out sentences",
            chance=scores.held_out_overlap,
        ),
        Measure(name="seconds of the attack", value=seconds, meaning="on one machine, often shared"),
    ]
    if client.rank is None:
        rows = replace(found, tokens=infer_tokens(case.release))
        of_rows = score_tokens(rows, case.truth, public=parts.public, held_out=parts.test)
        measures.insert(2, _recall("tokens by embeddings", of_rows))
    return Outcome(measures=tuple(measures))


def _recall(name: str, scores: TokenScores) -> Measure:
    return Measure.from_interval(
        name,
        binomial_proportion(scores.right_tokens, scores.tokens),
        meaning=f"of the {scores.tokens} distinct tokens of the batch, {scores.returned_tokens} were returned; "
        "chance guesses as many by frequency",
        chance=scores.guessed_recall,
    )


def _network(client: _Client, data: Tokens) -> Transformer:
    words, heads = len(data.vocabulary), 8
    if client.causal:
        return make_decoder(
            words, length=client.length, width=client.width, blocks=client.blocks, heads=heads, rank=client.rank
        )
    return make_encoder(
        words,
        data.num_classes,
        length=client.length,
        width=client.width,
        blocks=client.blocks,
        heads=heads,
        rank=client.rank,
    )


def _trained(model: Transformer, at: Params, parts: TextSplit, *, steps: int, seed: int) -> Params:
    """The weights after `steps` of Adam at 0.001 on 16 public sentences each; with adapters those alone are trained."""
    if not steps:
        return at
    network = deepcopy(model).to_empty(device="cpu")
    network.load_state_dict(at)
    adapters = adapter_names(model)
    trained = [p for name, p in network.named_parameters() if not adapters or name in adapters]
    optimizer, generator = torch.optim.Adam(trained, lr=1e-3), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = parts.public.take(torch.randint(len(parts.public), (16,), generator=generator))
        optimizer.zero_grad()
        network.loss(batch.ids, batch.y).backward()
        optimizer.step()
    return {name: p.detach() for name, p in network.named_parameters()}
