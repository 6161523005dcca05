"""Is the evidence of an audit right? Its level where nothing leaks, and its power where something does."""
