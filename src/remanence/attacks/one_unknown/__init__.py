"""Attacks of an informed adversary, who knows all records but one."""
