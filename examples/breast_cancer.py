"""A table: the update that a network sends after one step on 32 patients.

    python breast_cancer.py
    remanence audit update breast_cancer:Net --before before.pt --after after.pt \
        --local "sgd lr=0.1 epochs=1 batch=full" --data private.csv --held-out others.csv --label diagnosis \
        --budget 30s --out cancer-audit

The columns keep their names and units: the page shows the values of a patient beside those that were read back.
"""

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
    table = load_breast_cancer(as_frame=True)
    rows = table.data.assign(diagnosis=table.target_names[table.target]).sample(frac=1, random_state=0)
    private, others = rows[:32], rows[32:]
    private.to_csv("private.csv", index=False)
    others.to_csv("others.csv", index=False)
    x = torch.tensor(private.drop(columns="diagnosis").to_numpy(), dtype=torch.float32)
    y = torch.tensor((private.diagnosis == "malignant").to_numpy(), dtype=torch.int64)

    net = Net()
    values = torch.tensor(table.data.to_numpy(), dtype=torch.float32)
    net.low.copy_(values.amin(0))
    net.span.copy_(values.amax(0) - values.amin(0))
    torch.save(net.state_dict(), "before.pt")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    cross_entropy(net(x), y).backward()
    optimizer.step()
    torch.save(net.state_dict(), "after.pt")


if __name__ == "__main__":
    main()
