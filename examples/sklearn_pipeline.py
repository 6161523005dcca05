"""A scikit-learn pipeline, shown to an attacker who has all training records but one.

    python sklearn_pipeline.py

A hospital publishes a fitted `StandardScaler` and `LogisticRegression`. Somebody knows all of its patients but one: can
the last row be computed from the published numbers? Twenty patients in turn are the unknown one.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import remanence
from remanence.progress import set_mode


def main():
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    others = x[order[300:]], y[order[300:]]
    x, y = x[order[:300]], y[order[:300]]
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)  # what is published

    set_mode("quiet")  # no lines about each of the twenty audits
    found = 0
    for i in range(20):
        known = np.delete(x, i, axis=0), np.delete(y, i)
        unknown = x[[i]], y[[i]]
        release = remanence.from_sklearn(pipeline, fixed=known)
        report = remanence.audit(release, truth=unknown, held_out=others, attacks=["Differencing", "GLM"])
        found += report.worst.found
    print(f"{found} of 20 records were found")
    print(report)  # of the last one
    report.save("sklearn-audit")


if __name__ == "__main__":
    main()
