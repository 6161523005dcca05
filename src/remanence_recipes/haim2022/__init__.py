"""Haim, Vardi, Yehudai, Shamir, Irani, "Reconstructing Training Data from Trained Neural Networks" (NeurIPS 2022):
binary classifiers, from their final weights alone; with the regression of Buzaglo et al. (NeurIPS 2023), which has one
output too.

The paper's victims have no weight decay and start from a small first layer. Beside them stand ones that come to rest
under weight decay.

remanence run haim2022.mnist_binary --seed 1     scale small, weight decay
expected          of 50 digits Stationarity finds 13, KKT none; unrelated digits reach SSIM 0.4 for all 50
"""
