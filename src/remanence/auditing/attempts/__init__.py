"""Attacks of an audit: which apply, with which settings, and how they run within the budget."""
