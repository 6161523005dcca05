"""Attacks on gradients and federated updates."""
