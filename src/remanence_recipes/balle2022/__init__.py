"""Balle, Cherubin, Hayes, "Reconstructing Training Data with Informed Adversaries" (IEEE S&P 2022).

remanence run balle2022.mnist --scale full --device cuda      one H200: about a minute
expected                                                      mean MSE about 0.002, printed 0.0089

The adversary knows all training records but one, the training and the initial weights, and learns from shadow models to
reconstruct the unknown record from the released weights. Printed are the numbers of table III and of the authors'
notebook; the other figures have none. At `smoke` scale the records are scikit-learn's 8x8 digits.
"""
