"""Audits: attacks on releases, and reasons to doubt what they find."""
