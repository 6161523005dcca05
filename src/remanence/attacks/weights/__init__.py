"""Attacks on trained weights alone."""
