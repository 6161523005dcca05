"""The inputs of a linear layer whose outputs are logits, from its gradient: exact where classes outnumber records.

For n records with inputs F (n, features) the gradient of the weights is  D' F  with the errors
D = (softmax(F W' + b) - Y) / n,  Y being the labels. Its row space V (n, features) is that of the inputs, so that
F = A V  with n² unknown numbers A, and  D(A)' A = gradient V'  are n equations for each class. Errors sum to zero over
classes, so that the equations are more than the unknowns for n + 1 < classes. Ours; for one record it is the quotient
of rows.
"""

import torch
from scipy.optimize import least_squares
from torch import Tensor
from torch.func import jacrev
from torch.nn.functional import one_hot

from remanence.progress import track

_ROUNDING = 30  # units in the last place: singular values below are rounding
_SOLVED = 100  # units in the last place: residual of the equations, of each direction relative to its length
_MIN_SOLVED = 1e-9  # where values were sent in float64
_MAX_RECORDS = 16  # whose squared number is that of unknowns
_STARTS = 10  # from errors that are perturbed, since those of records of one class are alike
_PERTURBATION = 0.02
_EVALUATIONS = 300  # of the residual in one solution


def decode_inputs(
    gradient: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, *, precision: float, seed: int
) -> Tensor | None:
    """The inputs (n, features) of the records with `labels` (n,), in float64; None where the equations do not say.

    `gradient` (classes, features + 1) is that of the weights and, in its last column, the bias, whose values were sent
    with a relative rounding error of `precision`.
    """
    n, classes = len(labels), len(bias)
    _, values, rows = torch.linalg.svd(gradient[:, :-1], full_matrices=False)
    if n > _MAX_RECORDS or n + 1 >= classes or float(values[n - 1]) < _ROUNDING * precision * float(values[0]):
        return None
    rows, targets = rows[:n], one_hot(labels, classes).to(gradient)
    product, of_bias = gradient[:, :-1] @ rows.T, gradient[:, -1]
    lengths, logits = values[:n], weight @ rows.T

    def residual(flat: Tensor) -> Tensor:
        inputs = flat.view(n, n)
        errors = ((inputs @ logits.T + bias).softmax(1) - targets) / n
        of_weight = (errors.T @ inputs - product) / lengths
        return torch.cat([of_weight.flatten(), (errors.sum(0) - of_bias) / of_bias.norm()])

    def as_tensor(flat: object) -> Tensor:
        return torch.as_tensor(flat, dtype=gradient.dtype, device=gradient.device)

    mean_errors = (of_bias + targets.mean(0) - targets) / n  # as if all records had the mean softmax
    generator, repeated = torch.Generator().manual_seed(seed), len(labels.unique()) < n
    for start in track(range(_STARTS), total=_STARTS, label="inputs of the linear layer"):
        noise = torch.randn(mean_errors.shape, generator=generator, dtype=torch.float64).to(gradient) / n
        errors = mean_errors + (start + repeated) * _PERTURBATION * noise
        solved = least_squares(
            lambda flat: residual(as_tensor(flat)).cpu().numpy(),
            (torch.linalg.pinv(errors.T) @ product).flatten().cpu().numpy(),
            jac=lambda flat: jacrev(residual)(as_tensor(flat)).cpu().numpy(),
            **{"method": "lm", "xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": _EVALUATIONS},
        )
        found = as_tensor(solved.x)
        if float(residual(found).norm()) < max(_SOLVED * precision, _MIN_SOLVED):
            inputs: Tensor = found.view(n, n) @ rows
            return inputs
    return None
