"""Studies of our own, of settings that the papers leave open or of what their figures do not show."""
