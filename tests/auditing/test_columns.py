"""Tables through an audit: the strongest attack, in the owner's columns, beside imputation."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from torch import nn

from remanence import CrossEntropy, Data, Gradient, Report, audit, from_sklearn, split
from remanence.auditing.evidence.columns import encoding_checks, impute
from remanence.columns import Column, Columns, Kind
from remanence.data import from_csv
from remanence.engine import loss_gradient
from remanence.models import initial_params, mlp, torch_params


@pytest.fixture(scope="module")
def cancer(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """scikit-learn's breast-cancer table, through a CSV file."""
    table, path = load_breast_cancer(), Path(tmp_path_factory.mktemp("table")) / "cancer.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([*table.feature_names, "diagnosis"])
        rows.writerows(
            [*x, table.target_names[y]] for x, y in zip(table.data.tolist(), table.target.tolist(), strict=True)
        )
    return from_csv(path, "diagnosis")


def of_gradient(data: Data, records: int, width: int, activation: type[nn.Module], attack: str) -> Report:
    parts = split(data, private=records, fixed=0, public=0, test=500, seed=0)
    model = mlp(data.shape, 2, hidden=(width,), activation=activation)
    init = initial_params if activation is nn.ReLU else torch_params
    at, loss = init(model, seed=0), CrossEntropy()
    gradient = loss_gradient(model, at, parts.private.x, parts.private.y, loss=loss)
    release = Gradient(
        model=model, at=at, gradient=gradient, labels=None, batch_size=records, shape=data.shape, loss=loss
    )
    return audit(release, truth=parts.private, held_out=parts.test, attacks=[attack])


def test_the_gradient_of_a_batch_of_a_table_shows_all_of_it(cancer: Data) -> None:
    report = of_gradient(cancer, 32, 256, nn.ReLU, "FirstLayer")
    assert report.worst is not None
    assert (report.worst.found, report.worst.exact) == (32, 32)
    rows = {row.name: row for row in report.evidence}
    total = rows["columns: exact values by FirstLayer"]
    assert total.value is not None
    assert total.chance is not None
    assert total.value > 0.9
    assert total.chance < 0.2
    assert len([name for name in rows if name.startswith("column ")]) == 12


def test_stein_finds_records_of_a_table_behind_elu(cancer: Data) -> None:
    report = of_gradient(cancer, 3, 200, nn.ELU, "Stein")
    assert report.worst is not None
    assert (report.worst.found or 0) >= 2


def test_one_column_of_a_logistic_regression_given_the_others() -> None:
    x, y = (part[np.random.default_rng(0).permutation(569)] for part in load_breast_cancer(return_X_y=True))
    pipeline = make_pipeline(MinMaxScaler(), LogisticRegression(tol=1e-10, max_iter=10_000)).fit(x[:301], y[:301])
    release = from_sklearn(pipeline, fixed=(x[:300], y[:300]))
    report = audit(release, truth=(x[300], y[300]), held_out=(x[301:], y[301:]), attacks=["GLM"])
    (row,) = [row for row in report.evidence if row.name == "columns: one inferred from the others"]
    assert row.value is not None
    assert row.chance is not None
    assert row.value > 0.8 > row.chance + 0.5


def test_what_was_done_to_a_table_is_noted() -> None:
    columns = Columns(columns=(Column(name="a", start=0),), notes=("`id` was left out",))
    data = Data(x=torch.zeros(1, 1), y=torch.zeros(1, dtype=torch.int64), num_classes=1, columns=columns)
    assert [check.text for check in encoding_checks(data, data)] == ["`id` was left out"]


def test_columns_whose_range_ends_at_a_private_record_are_noted() -> None:
    names = ("alone", "shared", "inside", "flag", "town")
    kinds: tuple[Kind, ...] = ("number", "number", "number", "number", "category")
    columns = tuple(
        Column(name=name, start=i, kind=kind, categories=("f",) if kind == "category" else ())
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    )
    private, held_out = (
        Data(x=torch.tensor(x), y=torch.zeros(2, dtype=torch.int64), num_classes=1, columns=Columns(columns=columns))
        for x in (
            [[1.0, 0.0, 0.5, 1.0, 1.0], [0.3, 0.4, 0.6, 0.0, 0.0]],
            [[0.0, 0.0, 0.1, 0.0, 0.0], [0.9, 1.0, 0.9, 0.0, 0.0]],
        )
    )
    (check,) = encoding_checks(private, held_out)
    assert (check.name, check.status) == ("columns", "note")
    assert "1 of 5 columns (alone)" in check.text
    (check,) = encoding_checks(held_out, private)
    assert "2 of 5 columns (alone, shared)" in check.text


def test_imputation_uses_the_other_columns() -> None:
    x = torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sex = (x[:, :1] > 0.5).double()
    table = torch.cat([x[:, :1], 1 - sex, sex], dim=1)
    category = Column(name="sex", start=1, kind="category", categories=("f", "m"))
    found = impute(category, table[:50], table[50:])
    assert (found == sex[:50, 0]).double().mean() > 0.9
    number = Column(name="age", start=0, low=0.0, high=100.0, resolution=1.0)
    found = impute(number, table[:50], table[50:])
    assert ((found > 50) == (sex[:50, 0] == 1)).all()


def test_raw_values_are_rounded_to_the_resolution() -> None:
    age = Column(name="age", start=0, low=20.0, high=60.0, resolution=1.0, unit="years")
    town = Column(name="town", start=1, kind="category", categories=("Bonn", "Kiel"), reference="Ulm")
    columns = Columns(columns=(age, town), classes=("well", "ill"))
    x = torch.tensor([[0.51, 0.2, 0.9], [0.0, 0.1, 0.3]])
    assert columns.describe(x) == [{"age": "40 years", "town": "Kiel"}, {"age": "20 years", "town": "Ulm"}]
    assert columns.describe_label(1) == "ill"
