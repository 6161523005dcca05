"""Attacks on the weights before and after training."""
