"""Unrolled training on fixed records that the dynamics hold, and those that are given after them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from simulating import EASY, HARD, NETS, some, victim

from remanence import DPGD, SGD, Training, Victim
from remanence.engine import Unrolled
from remanence.engine.unroll import GenericDynamics

BATCHED = replace(HARD, optimizer=SGD(lr=0.03), epochs=3, lr_schedule=((2, 0.5),))


def generic(made: Victim) -> GenericDynamics:
    return GenericDynamics.from_release(made.model, made.training, made.initial, made.final)


@pytest.mark.parametrize("training", [EASY, BATCHED, replace(EASY, privacy=DPGD(clip=0.1, noise=0.0))], ids=repr)
@pytest.mark.parametrize("net", ["mlp with relu", "vgg"])
def test_fixed_records_that_the_dynamics_hold_train_as_those_that_are_given(net: str, training: Training) -> None:
    data = some(10)
    made, fixed = victim(NETS[net], data, training), data.take(slice(0, 7))
    steps: dict[str, Any] = {"training": training, "batches": tuple(training.batches(10, 0)), "segment": 2}
    together = Unrolled(dynamics=generic(made), **steps)
    apart = Unrolled(dynamics=replace(generic(made), fixed=fixed), known=7, **steps)
    x, given = data.x.clone().requires_grad_(), data.x[7:].clone().requires_grad_()
    (expected, _), (found, _) = together(x, data.y), apart(given, data.y[7:])
    torch.testing.assert_close(found, expected)
    grads = [
        torch.autograd.grad(sum((p * made.initial[name]).sum() for name, p in weights.items()), of)[0]
        for weights, of in ((expected, x), (found, given))
    ]
    torch.testing.assert_close(grads[1], grads[0][7:])
    assert grads[1].abs().max() > 0


def test_first_segments_of_fixed_records_alone_have_no_gradient() -> None:
    """The record that is given comes last, and its gradient is that of one graph."""
    data = some(10)
    made, fixed, last = victim(NETS["mlp with relu"], data, BATCHED), data.take(slice(0, 9)), data.x[9:]
    batches = tuple(torch.arange(10).split(4))
    assert not bool((batches[0] >= 9).any())  # else the test shows nothing
    grads = []
    for segment in (1, len(batches)):
        record, dynamics = last.clone().requires_grad_(), replace(generic(made), fixed=fixed)
        steps = Unrolled(training=BATCHED, dynamics=dynamics, batches=batches, segment=segment, known=9)
        weights, _ = steps(record, data.y[9:])
        total = sum((p * made.initial[name]).sum() for name, p in weights.items())
        grads.append(torch.autograd.grad(total, record)[0])
    torch.testing.assert_close(grads[0], grads[1])
    assert grads[0].abs().max() > 0
