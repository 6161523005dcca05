"""Estimators of scikit-learn as releases.

    release = from_sklearn(pipeline, fixed=(X, y))  # shown to an adversary who has all records but one
    report = audit(release, truth=(x1, y1), held_out=(others_x, others_y))

Records stay in raw units: `audit` passes them through the fitted transformers of the estimator, and each feature is
mapped to [0, 1], from as far below the known rows as they reach to as far above; the model begins with the way back.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from torch import nn

from remanence.auditing.inputs.encoding import Encoder, Floats, encoder_for
from remanence.errors import BadInput, NotEnoughKnowledge
from remanence.models import Normalize, apply
from remanence.releases import AllButOneUnknownInit, WeightsOnly
from remanence.training import SGD, Adam, CrossEntropy, Logistic, Optimizer, SquaredError, Training
from remanence.training.losses import KnownLoss
from remanence.types import Params

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
}
_EPOCHS = 1000  # of gradient descent for what scikit-learn fits by other means: it ends at the same weights


def from_sklearn(estimator: Any, fixed: Any = None, *, like: Any = None) -> WeightsOnly | AllButOneUnknownInit:
    """A fitted estimator, or a Pipeline that ends with one, as a release: its weights alone, or with `fixed`, a pair
    (X, y) of raw rows and labels, all training records but one, which a regression needs.

    Known are LogisticRegression (CV too), SGDClassifier with log_loss, MLPClassifier, Ridge and LinearRegression behind
    scalers, OneHotEncoder, SimpleImputer and ColumnTransformer. `like` are raw rows whose ranges are those of the
    records; by default `fixed`, else what a scaler says, else [0, 1].
    """
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    transformer, last = (estimator[:-1], estimator[-1]) if isinstance(estimator, Pipeline) else (None, estimator)
    transformer = transformer if transformer is not None and len(transformer) else None
    rows = [x for x in (None if fixed is None else _pair(fixed)[0], like) if x is not None]
    weights, activation = _weights(last)
    encoder = encoder_for(last, transformer, rows, _targets(last, fixed))
    model = TableModel(encoder, [len(weights[0][0][0]), *(len(w) for w, _ in weights)], activation, _intercepts(last))
    span, final = encoder.high - encoder.low, _ranges(encoder)
    for index, (weight, bias) in enumerate(weights):
        final[f"{2 * index + 1}.weight"] = torch.tensor(weight, dtype=torch.float64)
        if _intercepts(last):
            final[f"{2 * index + 1}.bias"] = torch.tensor(bias, dtype=torch.float64)
    shown: dict[str, Any] = {
        "model": model,
        "final": final,
        "shape": (len(encoder.low),),
        "num_classes": encoder.num_classes,
    }
    _check_same(estimator, shown, encoder, rows)
    if fixed is None:
        return WeightsOnly(**shown)
    data = encoder.encode(*_pair(fixed), "fixed")
    inputs = data.x.numpy() * span + encoder.low
    return AllButOneUnknownInit(**shown, training=_training(last, inputs, encoder), fixed=data)


def covering(release: Any, *given: Any) -> Any:
    """The release with ranges that hold the raw rows of all pairs (X, y) `given`, none of them at the side of a range
    that was widened for it; others leave it as it is."""
    encoder = getattr(release.model, "encoder", None)
    rows = [pair[0] for pair in given if isinstance(pair, tuple | list) and len(pair) == 2]
    if not isinstance(encoder, Encoder) or not rows:
        return release
    wider = encoder.covering(rows)
    if np.array_equal(wider.low, encoder.low) and np.array_equal(wider.high, encoder.high):
        return release
    changes: dict[str, Any] = {"model": release.model.with_encoder(wider), "final": release.final | _ranges(wider)}
    if isinstance(release, AllButOneUnknownInit):
        fixed = encoder.low + (encoder.high - encoder.low) * release.fixed.x.cpu().numpy()
        x = torch.from_numpy((fixed - wider.low) / (wider.high - wider.low)).clamp(0, 1).to(release.fixed.x)
        changes["fixed"] = replace(release.fixed, x=x, columns=wider.columns)
    return replace(release, **changes)


def _ranges(encoder: Encoder) -> Params:
    """The buffers that map [0, 1] to the features of the estimator."""
    span = encoder.high - encoder.low
    return {"0.mean": torch.from_numpy(-encoder.low / span), "0.std": torch.from_numpy(1 / span)}


@final
class TableModel(nn.Sequential):
    """Linear layers of widths `widths` on rows that are mapped from [0, 1] to the features of an estimator; `encoder`
    makes such rows from raw ones."""

    def __init__(self, encoder: Encoder, widths: Sequence[int], activation: type[nn.Module], bias: bool) -> None:
        layers: list[nn.Module] = [Normalize(*_ranges(encoder).values())]
        with torch.device("meta"):
            for fan_in, fan_out in pairwise(widths):
                layers += [nn.Linear(fan_in, fan_out, bias=bias), activation()]
        super().__init__(*layers[:-1])
        self.encoder = encoder

    def with_encoder(self, encoder: Encoder) -> "TableModel":
        """The same network on rows of another encoder."""
        copy = deepcopy(self)
        copy[0], copy.encoder = Normalize(*_ranges(encoder).values()), encoder
        return copy


def _pair(fixed: Any) -> tuple[Any, Any]:
    if not isinstance(fixed, tuple | list) or len(fixed) != 2:
        message = f"`fixed` must be a pair (X, y) of raw rows and labels, got {type(fixed).__name__}"
        raise BadInput(message, code="wrong-type", argument="fixed")
    return fixed[0], fixed[1]


def _targets(estimator: Any, fixed: Any) -> Floats | None:
    """The known targets of a regression, in order; None for a classifier."""
    if hasattr(estimator, "classes_"):
        return None
    if fixed is None:
        message = (
            f"{type(estimator).__name__} is a regression, which needs `fixed`: attacks on weights alone search records "
            "of classes. Give fixed=(X, y), all training records but one"
        )
        raise NotEnoughKnowledge(message, argument="fixed")
    return np.unique(np.asarray(_pair(fixed)[1], dtype=np.float64))


def _intercepts(estimator: Any) -> bool:
    return bool(getattr(estimator, "fit_intercept", True))


def _weights(estimator: Any) -> tuple[list[tuple[Floats, Floats]], type[nn.Module]]:
    """The weight (out, in) and bias of each layer, and the activation between layers."""
    from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
    from sklearn.neural_network import MLPClassifier

    match estimator:
        case MLPClassifier():
            if estimator.out_activation_ == "logistic" and estimator.n_outputs_ > 1:
                raise _unsupported(estimator, "with several labels for a record")
            layers = [(w.T, b) for w, b in zip(estimator.coefs_, estimator.intercepts_, strict=True)]
            return layers, _ACTIVATIONS[estimator.activation]
        case LogisticRegression() | SGDClassifier() | Ridge() | LinearRegression():
            if isinstance(estimator, SGDClassifier) and estimator.loss != "log_loss":
                raise _unsupported(estimator, f"with the loss {estimator.loss}: use log_loss")
            weight = np.atleast_2d(estimator.coef_)
            if not hasattr(estimator, "classes_") and len(weight) > 1:
                raise _unsupported(estimator, "with several targets")
            return [(weight, np.atleast_1d(estimator.intercept_))], nn.Identity
    raise _unsupported(estimator, "")


def _unsupported(estimator: Any, how: str) -> BadInput:
    inside = ": give its `best_estimator_`" if hasattr(estimator, "best_estimator_") else ""
    got = f"{type(estimator).__name__} {how}".rstrip()
    message = (
        "`estimator` must be LogisticRegression, SGDClassifier with log_loss, MLPClassifier, Ridge or LinearRegression "
        f"of one target, got {got}{inside}"
    )
    return BadInput(message, code="unsupported-model", argument="estimator")


def _check_same(estimator: Any, shown: dict[str, Any], encoder: Encoder, rows: Sequence[Any]) -> None:
    """Refuse to go on where the model does not predict what the estimator does."""
    if not rows:
        return
    some = rows[0][:20]
    x = encoder.encode(some, _any_label(encoder, len(some)), "fixed").x
    with torch.no_grad():
        logits = apply(shown["model"], shown["final"], x).numpy()
    if encoder.targets is not None:
        same = np.allclose(logits[:, 0], np.ravel(estimator.predict(some)), rtol=1e-6, atol=1e-6)
    else:
        index = (logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else logits.argmax(axis=1)
        same = [encoder.classes[i] for i in index] == estimator.predict(some).tolist()
    if not same:
        message = "`estimator` predicts otherwise than its weights say, which is not understood here: report it"
        raise BadInput(message, code="unsupported-model", argument="estimator")


def _any_label(encoder: Encoder, count: int) -> list[Any]:
    return [encoder.classes[0] if encoder.classes else 0.0] * count


@final
@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """What differs between the trainings of estimators."""

    weight_decay: float
    optimizer: Optimizer
    epochs: int
    batch_size: int | None = None
    decay_biases: bool = False


def _training(estimator: Any, inputs: Floats, encoder: Encoder) -> Training:
    """The training of the estimator on `inputs` (n, features) and one record more.

    What a solver minimises is what matters: gradient descent stands for L-BFGS and closed forms, which end at the same
    weights.
    """
    recipe = _recipe(estimator, inputs, len(inputs) + 1)
    loss: KnownLoss = CrossEntropy()
    if encoder.targets is not None:
        loss = SquaredError(values=tuple(encoder.targets.tolist()))
    elif len(encoder.classes) == 2:
        loss = Logistic()
    return Training(
        optimizer=recipe.optimizer,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        weight_decay=recipe.weight_decay,
        decay_biases=recipe.decay_biases,
        loss=loss,
    )


def _recipe(estimator: Any, inputs: Floats, n: int) -> _Recipe:
    from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier

    if getattr(estimator, "class_weight", None) is not None or getattr(estimator, "positive", False):
        raise _untrainable(estimator, "class_weight or positive")
    match estimator:
        case LogisticRegression():
            decay = _decay(estimator) / n
            liblinear = estimator.solver == "liblinear"  # which treats the intercept as one more weight
            if liblinear and estimator.intercept_scaling != 1:
                raise _untrainable(estimator, "intercept_scaling")
            curvature = 0.25 if len(estimator.classes_) == 2 else 0.5
            return _Recipe(
                weight_decay=decay,
                decay_biases=liblinear,
                optimizer=_descent(inputs, curvature, decay),
                epochs=_EPOCHS,
            )
        case Ridge() | LinearRegression():
            decay = 2 * float(np.squeeze(getattr(estimator, "alpha", 0.0))) / n
            return _Recipe(weight_decay=decay, optimizer=_descent(inputs, 2.0, decay), epochs=_EPOCHS)
        case SGDClassifier():
            if estimator.penalty not in ("l2", None) or len(estimator.classes_) > 2:
                raise _untrainable(estimator, f"penalty={estimator.penalty!r} or more than two classes")
            decay = float(estimator.alpha) if estimator.penalty else 0.0
            rate = estimator.eta0 if estimator.learning_rate != "optimal" else 1 / (estimator.alpha * estimator.t_)
            return _Recipe(
                weight_decay=decay, optimizer=SGD(lr=float(rate)), epochs=int(estimator.n_iter_), batch_size=1
            )
    return _perceptron(estimator, n)


def _perceptron(estimator: Any, n: int) -> _Recipe:
    full = estimator.solver == "lbfgs"
    batch = n if full else min(200, n) if estimator.batch_size == "auto" else min(estimator.batch_size, n)
    sgd = SGD(lr=estimator.learning_rate_init, momentum=estimator.momentum)
    adam = Adam(lr=estimator.learning_rate_init, beta1=estimator.beta_1, beta2=estimator.beta_2, eps=estimator.epsilon)
    return _Recipe(
        weight_decay=estimator.alpha / batch,
        optimizer=sgd if estimator.solver == "sgd" else adam,
        epochs=int(estimator.n_iter_),
        batch_size=None if batch >= n else batch,
    )


def _decay(estimator: Any) -> float:
    """1 / C of a LogisticRegression, 0 without a penalty; C is what a LogisticRegressionCV chose for its last fit."""
    penalty = getattr(estimator, "penalty", "l2")
    if hasattr(estimator, "C_"):
        c, l1_ratio = estimator.C_, estimator.l1_ratio_
        if not estimator.refit or len(np.unique(c)) > 1:
            raise _untrainable(estimator, "refit=False, whose weights are means over folds, or a C for each class")
    else:
        c, l1_ratio = estimator.C, estimator.l1_ratio
    inverse = float(np.ravel(c)[0])
    if penalty is None or penalty == "none" or np.isinf(inverse):
        return 0.0
    if penalty in ("l1", "elasticnet") or (penalty == "deprecated" and any(np.ravel(l1_ratio))):
        raise _untrainable(estimator, "an L1 penalty")
    return 1 / inverse


def _untrainable(estimator: Any, what: str) -> BadInput:
    message = (
        f"`fixed` needs a training that is known here, got a {type(estimator).__name__} with {what}: leave `fixed` out "
        "to audit the weights alone"
    )
    return BadInput(message, code="unsupported-training", argument="fixed")


def _descent(inputs: Floats, curvature: float, decay: float) -> SGD:
    """Gradient descent with the largest learning rate for which it surely converges."""
    extended = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    largest = float(np.linalg.eigvalsh(extended.T @ extended / len(inputs))[-1])
    return SGD(lr=1 / (curvature * largest + decay), momentum=0.9)
