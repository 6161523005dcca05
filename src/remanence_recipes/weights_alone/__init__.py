"""What the recipes of Haim et al. (2022) and Buzaglo et al. (2023) share: victims that release their final weights
alone, KKT and Stationarity on the same weights, what is measured, and surveys over several victims.

The papers train for 1,000,000 epochs of gradient descent, and search for 50,000 iterations in about 100 runs. Here
victims are trained with momentum, which converges sooner, and training and search are shorter at every scale: each
experiment states its budget. `smoke` takes digits, `small` photographs of half the side.
"""
