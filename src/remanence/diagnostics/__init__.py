"""What can be measured of a release without a reconstruction."""
