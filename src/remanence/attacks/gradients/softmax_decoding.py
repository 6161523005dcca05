"""The inputs of a linear layer whose outputs are logits, from its gradient: exact where classes outnumber records.

For n records with inputs F (n, features) the gradient of the weights is  D' F  with the errors
D = (softmax(F W' + b) - Y) / n,  Y being the labels. Its row space V (n, features) is that of the inputs, so that
F = A V  with n² unknown numbers A, and  D(A)' A = gradient V'  are n equations for each class. Errors sum to zero over
classes, so that the equations are more than the unknowns for n + 1 < classes. Ours; for one record it is the quotient
of rows.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.progress import track

_ROUNDING = 30  # units in the last place: singular values below are rounding
_SOLVED = 100  # units in the last place: residual of the equations, of each direction relative to its length
_MIN_SOLVED = 1e-9  # where values were sent in float64
_MAX_RECORDS = 16  # whose squared number is that of unknowns
_STARTS = 6  # from errors that are perturbed, since those of records of one class are alike
_PERTURBATION = 0.02
_EVALUATIONS = 300  # of the residual in one solution


def decode_inputs(
    gradient: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, *, precision: float, seed: int
) -> Tensor | None:
    """The inputs (n, features) of the records with `labels` (n,), in float64; None where the equations do not say.

    `gradient` (classes, features + 1) is that of the weights and, in its last column, the bias, whose values were sent
    with a relative rounding error of `precision`.
    """
    from scipy.optimize import least_squares

    n, classes = len(labels), len(bias)
    _, values, rows = torch.linalg.svd(gradient[:, :-1], full_matrices=False)
    if n > min(_MAX_RECORDS, classes - 2, len(values)):
        return None
    if float(values[n - 1]) < _ROUNDING * precision * float(values[0]):
        return None
    rows, targets = rows[:n], one_hot(labels, classes).to(gradient)
    product, of_bias = gradient[:, :-1] @ rows.T, gradient[:, -1]
    lengths, logits = values[:n], weight @ rows.T

    def as_inputs(flat: object) -> Tensor:
        return torch.as_tensor(flat, dtype=gradient.dtype, device=gradient.device).view(n, n)

    def residual(flat: object) -> Any:
        inputs = as_inputs(flat)
        errors = ((inputs @ logits.T + bias).softmax(1) - targets) / n
        of_weight = (errors.T @ inputs - product) / lengths
        return torch.cat([of_weight.flatten(), (errors.sum(0) - of_bias) / of_bias.norm()]).cpu().numpy()

    def jacobian(flat: object) -> Any:
        inputs = as_inputs(flat)
        softmax = (inputs @ logits.T + bias).softmax(1)
        of_errors = softmax[:, :, None] * (logits - (softmax @ logits)[:, None]) / n  # (record, class, direction)
        of_weight = torch.einsum("ick,ij->cjik", of_errors, inputs)
        of_weight = of_weight + torch.einsum("ic,jk->cjik", (softmax - targets) / n, torch.eye(n).to(inputs))
        of_weight = of_weight / lengths[:, None, None]
        rows = of_weight.flatten(2).flatten(0, 1), of_errors.transpose(0, 1).flatten(1) / of_bias.norm()
        return torch.cat(rows).cpu().numpy()

    mean_errors = (of_bias + targets.mean(0) - targets) / n  # as if all records had the mean softmax
    generator, repeated = torch.Generator().manual_seed(seed), len(labels.unique()) < n
    for start in track(range(_STARTS), total=_STARTS, label="inputs of the linear layer"):
        noise = torch.randn(mean_errors.shape, generator=generator, dtype=torch.float64).to(gradient) / n
        errors = mean_errors + (start + repeated) * _PERTURBATION * noise
        initial = (torch.linalg.pinv(errors.T) @ product).flatten().cpu().numpy()
        tolerances = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
        solved = least_squares(residual, initial, jac=jacobian, method="lm", max_nfev=_EVALUATIONS, **tolerances)
        if float(np.linalg.norm(solved.fun)) < max(_SOLVED * precision, _MIN_SOLVED):
            inputs: Tensor = as_inputs(solved.x) @ rows
            return inputs
    return None
