"""Evidence without a reconstruction: membership, the span of the first layer, labels, columns of a table."""
