"""Rows that come a block at a time: the same as all at once, to rounding, in the memory of a block."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from gradients import PAPERS, Activation, name_of, planted, unit_vectors
from torch import Tensor, nn

from remanence.attacks import Stein
from remanence.attacks.gradients.tensor.moments import Moments, MomentsInBlocks, span_in_blocks, span_of_rows
from remanence.attacks.gradients.tensor.wide_layer import WideLayer
from remanence.models import mlp, server_params, server_rows
from remanence_recipes.wang2023.setting import SquareAndCube, gradient_in_blocks

ROWS = 2000
OTHERS: list[Activation] = [SquareAndCube, nn.Tanh, nn.ReLU]
READ: list[Callable[[Moments | MomentsInBlocks], Tensor]] = [
    lambda given: given.first,
    lambda given: given.second(),
    lambda given: given.second_contracted(torch.ones(5).double()),
    lambda given: given.third(torch.eye(5).double()[:, :2]),
    lambda given: given.third_contracted(torch.eye(5).double()[:, :2], torch.ones(5).double()),
    lambda given: given.within(torch.eye(5).double()[:, :2]).sent,
]


def sent(activation: Activation, *, block: int) -> Callable[[], Iterator[WideLayer]]:
    truth = unit_vectors()
    return gradient_in_blocks(truth.x, truth.y, activation=activation, rows=ROWS, seed=0, block=block)


@pytest.mark.parametrize("block", [64, 2000, 4096])
def test_the_seed_gives_the_rows_again(block: int) -> None:
    """In blocks of sixteen numbers, which torch draws together."""
    whole = server_params(mlp((7,), 1, hidden=(ROWS,)), seed=3)["1.weight"]
    parts = list(server_rows(ROWS, 7, seed=3, block=block))
    assert len(parts[0]) == min(block, ROWS)
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("activation", OTHERS, ids=name_of)
def test_blocks_of_a_gradient_are_those_of_autograd(activation: Activation) -> None:
    whole, parts = WideLayer.from_release(planted(activation, rows=ROWS)), list(sent(activation, block=640)())
    assert len(parts) == 4
    for name in ("rows", "biases", "head", "grad_rows", "grad_biases", "grad_head"):
        joined = torch.cat([getattr(part, name) for part in parts])
        assert torch.allclose(joined, getattr(whole, name), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(ROWS, 5), (ROWS,)], ids=["rows", "head"])
def test_moments_of_blocks_are_those_of_all_rows(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, own = (torch.randn(each, generator=generator).double() for each in ((ROWS, 5), shape))
    whole = Moments(rows=rows, sent=own)
    blocks = MomentsInBlocks(
        blocks=lambda: (Moments(rows=rows[k : k + 300], sent=own[k : k + 300]) for k in range(0, ROWS, 300))
    )
    for read in READ:
        assert torch.allclose(read(blocks), read(whole), rtol=1e-12, atol=1e-13)


def test_the_span_of_blocks_is_that_of_all_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(500, 3, generator=generator).double() @ torch.randn(3, 40, generator=generator).double()
    found = span_in_blocks(lambda: matrix.split(120), 3, seed=1)
    expected = span_of_rows(matrix, 3, seed=0)[0]
    assert torch.allclose(found.T @ found, torch.eye(3).double(), atol=1e-12)
    assert torch.allclose(found @ found.T, expected @ expected.T, atol=1e-12)


@pytest.mark.parametrize("attack", [PAPERS, Stein(refine=False), Stein()], ids=["paper's", "exact span", "refined"])
@pytest.mark.parametrize("activation", OTHERS, ids=name_of)
def test_records_of_blocks_are_those_of_all_rows(activation: Activation, attack: Stein) -> None:
    one = attack.run_in_blocks(sent(activation, block=ROWS), 2, seed=0)
    many = attack.run_in_blocks(sent(activation, block=640), 2, seed=0)
    assert torch.allclose(many.x, one.x, atol=1e-8)
    assert many.objective == pytest.approx(one.objective, abs=1e-9)


GROWTH = """
import resource, torch
from remanence_recipes.wang2023.setting import PAPERS, SquareAndCube, gradient_in_blocks, standard_batch
torch.set_num_threads(1)
x, labels = standard_batch(200)
for rows in (8192, 32_768):
    PAPERS.run_in_blocks(gradient_in_blocks(x, labels, activation=SquareAndCube, rows=rows, seed=0), 2, seed=0)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_more_rows_do_not_need_their_memory() -> None:
    """32,768 rows of 200 features are 52 MB, and so is their gradient."""
    said = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True).stdout
    few, many = (int(line) * (1 if sys.platform == "darwin" else 1024) for line in said.split())
    assert many - few < 40e6
