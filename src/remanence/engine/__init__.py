"""Layers of a convolutional net with their passes written out: forward, back, and how both change along a direction.

The slope of  <p, gradient>  by weights and records is the change of the gradient along p. Autograd finds it by going
back through the backward pass, where the part of a kernel is a convolution whose filter is as large as the image. Here
a convolution runs forward, back to its input and back to its kernel, and in no other way. Along a direction each is a
sum of two, as the change of a product is; where they share an output they can be one, with the channels of both.
"""

import remanence.training  # noqa: F401
