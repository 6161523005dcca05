"""A normalisation by the records' own mean gives the unknown one away; other statistics are refused."""

import dataclasses

import pytest
import torch
from refusals import refused

from remanence import AllButOne, Data, Training
from remanence.attacks import Differencing
from remanence.data import Split
from remanence.models import initial_params, mlp, normalized, normalized_params


def release_of(fixed: Data, target: Data, *, correction: int = 0) -> AllButOne:
    """An untrained net that standardises by the statistics of all records, where these vary."""
    x = torch.cat([fixed.x, target.x]).flatten(1)
    mean, std = x.mean(0), x.std(0, correction=correction)
    model = normalized(mlp(fixed.shape, fixed.num_classes), mean, torch.where(std > 0, std, 1.0))
    inner = {name: p.to(x) for name, p in initial_params(mlp(fixed.shape, fixed.num_classes), seed=0).items()}
    final = normalized_params(model, inner) | {"normalize.mean": mean, "normalize.std": torch.where(std > 0, std, 1.0)}
    return AllButOne(
        model=model,
        final=final,
        shape=fixed.shape,
        num_classes=fixed.num_classes,
        initial=final,
        training=Training(),
        fixed=fixed,
    )


@pytest.mark.parametrize("correction", [0, 1])
def test_the_unknown_record_is_the_difference(parts: Split, correction: int) -> None:
    fixed, target = (data.to("cpu", torch.float64) for data in (parts.fixed, parts.private.take(slice(0, 1))))
    varying = torch.cat([fixed.x, target.x]).std(0) > 0
    found = Differencing().run(release_of(fixed, target, correction=correction), seed=0)
    assert torch.allclose(found.x, target.x, atol=1e-9)
    assert found.objective == pytest.approx(1 - float(varying.double().mean()))


def test_statistics_of_other_records_are_refused(parts: Split) -> None:
    fixed, target = (data.to("cpu", torch.float64) for data in (parts.fixed, parts.private.take(slice(0, 1))))
    release = release_of(fixed, target)
    other = release_of(parts.public.to("cpu", torch.float64), target)
    plain = mlp(fixed.shape, 10)
    for model, final in ((release.model, other.final), (plain, initial_params(plain, seed=0))):
        with refused("unsupported-model", "release"):
            Differencing().run(dataclasses.replace(release, model=model, final=final), seed=0)
