"""Small models of ours trained on the data of a user, for `remanence audit data`."""
