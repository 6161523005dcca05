"""The gate of a release in CI: one model leaks and must not pass, the other has nothing to show.

    python ci_gate.py
    remanence audit model fine_tuned:Net --weights leak.pt --base base.pt --data private.npz --held-out others.npz \
        --budget 20s --redact --out leak-audit --fail-if "severity>=membership" --junit leak.xml
    remanence audit model fine_tuned:Net --weights null.pt --base base.pt --data private.npz --held-out others.npz \
        --budget 20s --redact --out null-audit --fail-if "severity>=membership" --junit null.xml

The first audit ends with exit code 3, the second with 0. `leak.pt` was tuned on the private records, `null.pt` on
others. The job for GitHub Actions is in docs/ci.md.
"""

import numpy as np
import torch
from fine_tuned import Net, fit, numbers


def main():
    torch.manual_seed(0)
    public, private, unrelated, others = numbers(2000), numbers(60), numbers(60), numbers(1000)
    np.savez("private.npz", x=private[0], y=private[1])
    np.savez("others.npz", x=others[0], y=others[1])

    net = Net()
    fit(net, torch.optim.Adam(net.parameters(), lr=1e-3), *public, epochs=5, batch_size=64)
    base = {name: value.clone() for name, value in net.state_dict().items()}
    torch.save(base, "base.pt")
    for name, records in (("leak", private), ("null", unrelated)):
        net.load_state_dict(base)
        fit(net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9), *records, epochs=30, batch_size=60)
        torch.save(net.state_dict(), f"{name}.pt")


if __name__ == "__main__":
    main()
