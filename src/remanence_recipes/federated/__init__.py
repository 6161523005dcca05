"""What an honest but curious server reads from the updates of federated clients: no paper's figures, but ours.

remanence run federated.first_layer               scale small, one CPU core: a few minutes, nearly all of them scoring
expected                                          whole batches exactly where the first layer is wide enough, then few

The weights are ordinary ones, drawn or trained, and not of the server's choice; `from_the_tensor` is the exception.
`smoke` takes small images and short searches.
"""
