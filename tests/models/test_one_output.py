"""Networks of one output that return a list of numbers, one for each record, as binary classifiers often do."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from remanence import Data, Logistic, Training
from remanence.attacks import FirstLayer
from remanence.models import MLP, apply, initial_params, parse
from remanence.models.batch_norm import apply_to_batch
from remanence.releases import Victim, gradient_at_initial, local_update
from remanence.training import Adam

LISTS: dict[str, Callable[[Tensor], Tensor]] = {
    "squeeze(-1)": lambda z: z.squeeze(-1),
    "squeeze()": lambda z: z.squeeze(),
    "flatten()": lambda z: z.flatten(),
    "view(-1)": lambda z: z.view(-1),
    "[:, 0]": lambda z: z[:, 0],
    "torch.squeeze": lambda z: torch.squeeze(z, 1),
}


class Binary(nn.Module):
    def __init__(self, listed: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.inner, self.outer, self.listed = nn.Linear(11, 60), nn.Linear(60, 1), listed

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.outer(torch.relu(self.inner(x)))
        return z if self.listed is None else self.listed(z)


def client(model: nn.Module, records: int) -> Victim:
    generator = torch.Generator().manual_seed(0)
    batch = Data(x=torch.rand(records, 11, generator=generator), y=torch.arange(records) % 2, num_classes=2)
    initial, training = initial_params(model, seed=0), Training(epochs=3, optimizer=Adam(lr=0.01), loss=Logistic())
    return Victim(
        model=model, training=training, initial=initial, final=initial, fixed=batch.take(slice(0, 0)), private=batch
    )


@pytest.mark.parametrize("listed", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("records", [1, 4])
def test_a_list_of_numbers_is_one_output_for_each_record(listed: Callable[[Tensor], Tensor], records: int) -> None:
    as_list, as_rows = client(Binary(listed), records), client(Binary(), records)
    x = as_rows.private.x
    rows = apply(as_rows.model, as_rows.initial, x)
    assert torch.equal(apply(as_list.model, as_list.initial, x), rows)
    assert torch.equal(apply_to_batch(as_list.model, as_list.initial, x)[0], rows)
    for reveal in (gradient_at_initial, local_update):
        ours, theirs = reveal(as_list).release.sent, reveal(as_rows).release.sent
        assert all(torch.allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-9) for name in theirs)


@pytest.mark.parametrize("listed", LISTS.values(), ids=LISTS)
def test_it_is_parsed_and_attacked_as_the_same_network(listed: Callable[[Tensor], Tensor]) -> None:
    model = Binary(listed)
    structure = parse(model, (11,))
    assert isinstance(structure, MLP), structure
    assert [layer.path for layer in structure.layers] == ["inner", "outer"]
    victim = client(model, 4)
    found = FirstLayer().run(replace(gradient_at_initial(victim).release, labels=None), seed=0)
    assert torch.cdist(victim.private.x, found.x).min(1).values.max() < 1e-4
