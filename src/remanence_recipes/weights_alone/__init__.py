"""What the recipes of Haim et al. (2022) and Buzaglo et al. (2023) share: victims of which the final weights alone are
shown, both attacks on the same weights, what is measured of them, and surveys over several victims.

`smoke` takes digits, `small` photographs with half their side. The papers train for 1,000,000 epochs of plain gradient
descent and search for 50,000 iterations in some hundred runs; here victims are trained with momentum, which comes to
the same rest sooner, and both are shorter at every scale: `Effort` says how much.
"""
