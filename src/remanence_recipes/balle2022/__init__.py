"""Balle, Cherubin, Hayes, "Reconstructing Training Data with Informed Adversaries" (IEEE S&P 2022).

remanence run balle2022.mnist --scale paper --device cuda      one H200: about a minute
expected                                                       mean MSE about 0.002, printed 0.0089

Numbers marked "printed" are the paper's tables III and the authors' notebook; the paper draws the other figures without
numbers. `smoke` walks the same way on scikit-learn's 8x8 digits and says nothing about the paper.
"""
