"""Estimators of scikit-learn as releases: their predictions are the reference, and the unknown record comes back."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, LogisticRegressionCV, Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

from remanence import AllButOneUnknownInit, Data, WeightsOnly, audit, from_sklearn
from remanence.attacks import GLM, Differencing
from remanence.auditing.checks.preflight import preflight
from remanence.auditing.inputs.records import as_data
from remanence.auditing.inputs.sklearn import covering
from remanence.models import apply

CANCER = load_breast_cancer(return_X_y=True)
IRIS = load_iris(return_X_y=True)


def fitted(estimator: Any, x: Any, y: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a training that stops early
        return estimator.fit(x, y)


def predicted(release: Any, x: Any, y: Any) -> np.ndarray:
    data = as_data((x, y), release, "truth")
    with torch.no_grad():
        logits: np.ndarray = apply(release.model, release.final, data.x).numpy()
    return logits


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(max_iter=50),
        LogisticRegression(fit_intercept=False, max_iter=50),
        SGDClassifier(loss="log_loss", max_iter=5),
        MLPClassifier((5, 4), max_iter=5),
        MLPClassifier((5,), activation="tanh", max_iter=5),
        MLPClassifier((5,), activation="logistic", max_iter=5),
        MLPClassifier((5,), activation="identity", max_iter=5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("records", [CANCER, IRIS], ids=["binary", "three classes"])
def test_the_model_of_a_release_predicts_as_the_estimator(estimator: Any, records: tuple[Any, Any]) -> None:
    x, y = records
    names = np.array(["benign", "malignant", "other"])[y]
    pipeline = fitted(make_pipeline(StandardScaler(), estimator), x, names)
    release = from_sklearn(pipeline, like=x)
    assert isinstance(release, WeightsOnly)
    logits = predicted(release, x, names)
    if isinstance(estimator, MLPClassifier):
        expected = pipeline.predict_proba(x)
        binary = 1 / (1 + np.exp(-np.concatenate([-logits, logits], axis=1))) if logits.shape[1] == 1 else None
        ours = torch.tensor(logits).softmax(1).numpy() if binary is None else binary
    else:
        expected, ours = pipeline.decision_function(x).reshape(len(x), -1), logits
    assert np.allclose(ours, expected, atol=1e-8)
    assert release.num_classes == len(set(names))


@pytest.mark.parametrize("estimator", [Ridge(alpha=3.0), LinearRegression()], ids=repr)
def test_the_unknown_record_of_a_regression_comes_back(estimator: Any) -> None:
    x, y = load_diabetes(return_X_y=True, scaled=False)
    fixed = (x[:100], y[:100])
    release = from_sklearn(fitted(make_pipeline(MinMaxScaler(), estimator), x[:101], y[:101]), fixed=fixed)
    found = GLM().run(release, seed=0)
    assert torch.allclose(found.x, as_data((x[100], y[100]), release, "truth").x, atol=1e-6)


@pytest.mark.parametrize("estimator", [Ridge(), LinearRegression()], ids=repr)
def test_a_regression_needs_the_other_records(estimator: Any) -> None:
    """Labels are the nearest of the known targets, of which the weights alone tell none."""
    x, y = load_diabetes(return_X_y=True)
    with refused("not-enough-knowledge", "fixed") as caught:
        from_sklearn(fitted(make_pipeline(StandardScaler(), estimator), x, y), like=x)
    assert "fixed=(X, y)" in str(caught.value)


def test_the_preflight_of_a_regression_speaks_of_target_values() -> None:
    x, y = load_diabetes(return_X_y=True, scaled=False)
    release = from_sklearn(Ridge().fit(x[:101], y[:101]), fixed=(x[:100], y[:100]))
    release = covering(release, (x, y))
    private, others = (as_data((x[rows], y[rows]), release, "truth") for rows in (slice(100, 101), slice(101, None)))
    nearest = np.unique(y[:100])[np.abs(np.unique(y[:100]) - y[100]).argmin()]
    checks = preflight(release, private, others).checks
    said = {check.name: check.text for check in checks}
    values = len(np.unique(torch.cat([private.y, others.y])))
    assert said["labels"].startswith(f"{values} target values")
    assert said["held-out"].endswith(f"with target value {nearest:g}.")
    assert not [text for text in said.values() if "class" in text]
    assert private.columns is not None
    assert private.columns.describe_label(int(private.y[0])) == f"{nearest:g}"


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000),
        LogisticRegression(solver="liblinear", tol=1e-10, max_iter=10_000),
        LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10),
        LogisticRegressionCV(Cs=[0.01, 0.5], cv=3, tol=1e-10, max_iter=10_000),
        LogisticRegressionCV(Cs=[0.01, 0.5], cv=3, solver="liblinear", tol=1e-10, max_iter=10_000),
    ],
    ids=["lbfgs", "liblinear", "no penalty", "cross-validated", "cross-validated by liblinear"],
)
def test_the_unknown_record_of_a_logistic_regression_comes_back(estimator: Any) -> None:
    x, y = (part[np.random.default_rng(0).permutation(569)] for part in CANCER)
    x = x[:, :8]  # with few features the classes are not separable, and an optimum exists without a penalty
    release = from_sklearn(fitted(make_pipeline(MinMaxScaler(), estimator), x[:301], y[:301]), fixed=(x[:300], y[:300]))
    assert isinstance(release, AllButOneUnknownInit)
    found = GLM().run(release, seed=0)
    truth = as_data((x[300], y[300]), release, "truth")
    assert torch.allclose(found.x, truth.x, atol=1e-3)
    assert found.y is not None
    assert found.y.tolist() == truth.y.tolist()


def test_an_audit_finds_the_unknown_record_in_raw_units() -> None:
    x, y = (part[np.random.default_rng(1).permutation(569)] for part in CANCER)
    fixed, held_out, found = (x[:300], y[:300]), (x[300:540], y[300:540]), 0
    for k in range(540, 542):
        rows = np.append(np.arange(300), k)
        pipeline = make_pipeline(MinMaxScaler(), LogisticRegression(tol=1e-8, max_iter=10_000)).fit(x[rows], y[rows])
        release = from_sklearn(pipeline, fixed=fixed)
        report = audit(release, truth=(x[k], y[k]), held_out=held_out, attacks=["GLM"])
        assert report.worst is not None
        found += report.worst.found or 0
        (check,) = [check for check in report.answer.preflight.checks if check.name == "stationarity"]
        assert "are stationary" in check.text
    assert found == 2


@pytest.mark.parametrize("estimator", [LogisticRegression(), MLPClassifier((8,), max_iter=10)], ids=repr)
def test_a_standard_scaler_gives_the_unknown_record_away(estimator: Any) -> None:
    x, y = CANCER
    release = from_sklearn(fitted(make_pipeline(StandardScaler(), estimator), x[:301], y[:301]), (x[:300], y[:300]))
    found = Differencing().run(release, seed=0)
    assert torch.allclose(found.x, as_data((x[300], y[300]), release, "truth").x, atol=1e-9)
    assert found.objective == 0


def mixed(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A table of age, sex, income (with gaps) and town, and a label."""
    rng = np.random.default_rng(0)
    age, sex = rng.integers(18, 90, rows), rng.choice(["female", "male"], rows)
    income, town = rng.normal(3000, 800, rows).round(2), rng.choice(["Ulm", "Bonn", "Kiel"], rows)
    income[rng.random(rows) < 0.2] = np.nan
    y = np.where(age + 10 * (sex == "male") + rng.normal(0, 10, rows) > 55, "ill", "well")
    x = np.empty((rows, 4), dtype=object)
    x[:, 0], x[:, 1], x[:, 2], x[:, 3] = age, sex, income, town
    return x, y


def tabular(estimator: Any) -> Any:
    numbers = Pipeline([("fill", SimpleImputer(strategy="median", add_indicator=True)), ("scale", StandardScaler())])
    return make_pipeline(
        ColumnTransformer([("n", numbers, [0, 2]), ("c", OneHotEncoder(drop="if_binary"), [1, 3])]), estimator
    )


def test_categories_and_gaps_keep_their_names_and_come_back() -> None:
    x, y = mixed(201)
    pipeline = tabular(LogisticRegression(tol=1e-10, max_iter=10_000)).fit(x, y)
    release = from_sklearn(pipeline, fixed=(x[:200], y[:200]))
    found = GLM().run(release, seed=0)
    columns = release.fixed.columns if isinstance(release, AllButOneUnknownInit) else None
    assert columns is not None
    assert [c.name for c in columns.columns] == ["x0", "x2", "x2 missing", "x1", "x3"]
    (row,) = columns.describe(found.x)
    age, sex, income, town = x[200]
    assert row["x0"] == str(age)
    assert (row["x1"], row["x3"]) == (sex, town)
    assert np.isnan(income) or float(row["x2"]) == pytest.approx(income, abs=0.05)
    assert columns.describe_label(int(found.y[0])) == y[200]


def test_records_outside_the_ranges_widen_them_and_change_nothing_else() -> None:
    x, y = (part[:301] for part in CANCER)
    pipeline = make_pipeline(MinMaxScaler(), LogisticRegression(tol=1e-10, max_iter=10_000)).fit(x, y)
    narrow = from_sklearn(pipeline, fixed=(x[:300], y[:300]))
    outlier = 10 * x[:5].copy()
    wide = covering(narrow, (outlier, y[:5]), (x, y))
    assert wide is not narrow
    assert covering(wide, (outlier, y[:5])) is wide
    with refused("out-of-range", "truth"):
        as_data((outlier, y[:5]), narrow, "truth")
    widened = as_data((outlier, y[:5]), wide, "truth").x
    assert float(widened.min()) > 0.01  # an attack that is cut off at a side does not have the value by that
    assert float(widened.max()) < 0.99
    logits = predicted(wide, outlier, y[:5])
    assert np.allclose(logits[:, 0], pipeline.decision_function(outlier))
    truth, found = as_data((x[300], y[300]), wide, "truth"), GLM().run(wide, seed=0)
    assert torch.allclose(found.x, truth.x, atol=1e-3)
    assert truth.columns is not None
    raw = [column.raw(truth.x)[0].item() for column in truth.columns.columns]
    assert np.allclose(raw, x[300], rtol=1e-6, atol=1e-6)


def test_what_cannot_be_read_is_refused() -> None:
    x, y = CANCER
    for estimator in (LinearSVC(), SGDClassifier(loss="hinge")):
        with refused("unsupported-model", "estimator"):
            from_sklearn(fitted(make_pipeline(StandardScaler(), estimator), x, y))
    with refused("unsupported-model", "estimator"):
        from_sklearn(fitted(make_pipeline(PCA(3), LogisticRegression()), x, y))
    search = fitted(GridSearchCV(LogisticRegression(max_iter=5000), {"C": [0.1, 1.0]}, cv=2), x, y)
    with refused("unsupported-model", "estimator") as caught:
        from_sklearn(search)
    assert "`best_estimator_`" in str(caught.value)
    chosen = fitted(LogisticRegressionCV(Cs=[0.1, 1.0], cv=2, max_iter=5000), x, y)
    assert all(isinstance(from_sklearn(each), WeightsOnly) for each in (search.best_estimator_, chosen))
    scaled = fitted(make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced")), x, y)
    with refused("unsupported-training", "fixed"):
        from_sklearn(scaled, fixed=(x, y))
    averaged = fitted(LogisticRegressionCV(Cs=[0.1, 1.0], cv=2, max_iter=50, refit=False), x, y)
    with refused("unsupported-training", "fixed"):
        from_sklearn(averaged, fixed=(x, y))
    with refused("wrong-type", "fixed"):
        from_sklearn(scaled, fixed=x)
    release = from_sklearn(scaled)
    with refused("out-of-range", "truth"):
        as_data((x[:3], ["benign"] * 3), release, "truth")
    with refused("out-of-range", "truth"):
        as_data((1000 * x[:3], y[:3]), release, "truth")
    with refused("shape-mismatch", "truth"):
        as_data((x[:3, :5], y[:3]), release, "truth")
    with refused("shape-mismatch", "truth"):
        as_data((x[:3], y[:2]), release, "truth")
    assert isinstance(as_data((x[:3], y[:3]), release, "truth"), Data)
