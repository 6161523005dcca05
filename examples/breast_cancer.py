"""A table: the update that a network sends after one step on 32 patients.

    python breast_cancer.py
    remanence audit update breast_cancer:Net --before before.pt --after after.pt \
        --local "sgd lr=0.1 epochs=1 batch=full" --data private.csv --held-out others.csv --label diagnosis \
        --budget 30s --out cancer-audit

The columns keep their names and units: the page shows the values of a patient beside those that were read back.
"""

import csv

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    """Takes the columns in their own units and maps each to [0, 1] by its range."""

    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.zeros(30))
        self.register_buffer("span", torch.ones(30))
        self.hidden, self.head = nn.Linear(30, 1000), nn.Linear(1000, 2)

    def forward(self, x):
        return self.head(torch.relu(self.hidden((x - self.low) / self.span)))


def main():
    torch.manual_seed(0)
    table = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(table.data))
    for name, part in (("private.csv", order[:32]), ("others.csv", order[32:])):
        with open(name, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*table.feature_names, "diagnosis"])
            writer.writerows([*table.data[i], table.target_names[table.target[i]]] for i in part)
    values, y = torch.tensor(table.data, dtype=torch.float32), torch.tensor(1 - table.target)  # benign 0, malignant 1
    x, y = values[order[:32]], y[order[:32]]

    net = Net()
    net.low.copy_(values.amin(0))
    net.span.copy_(values.amax(0) - values.amin(0))
    torch.save(net.state_dict(), "before.pt")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    cross_entropy(net(x), y).backward()
    optimizer.step()
    torch.save(net.state_dict(), "after.pt")


if __name__ == "__main__":
    main()
