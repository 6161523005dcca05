"""Attacks on two versions of one model."""
