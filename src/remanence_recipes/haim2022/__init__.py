"""Haim, Vardi, Yehudai, Shamir, Irani, "Reconstructing Training Data from Trained Neural Networks" (NeurIPS 2022):
binary classifiers, from their final weights alone; with the regression of Buzaglo et al. (NeurIPS 2023), which has one
output too.

The paper's victims have no weight decay and start from a small first layer. Beside them stand ones that come to rest
under weight decay.
"""
