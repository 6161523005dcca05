"""Wang, Lee, Lei, "Reconstructing Training Data from Model Gradient, Provably" (AISTATS 2023).

remanence run wang2023.figure2 --scale paper      one CPU core: two to three minutes
expected                                          the paper's estimator near its figure, ours far below

Printed numbers are read off the curves of figure 2, whose axis is read as the Frobenius norm of the error over the size
of the batch. All is float64. `smoke` takes fewer rows, features and repetitions.
"""
