"""Buzaglo, Haim, Yehudai, Vardi, Oz, Nikankin, Irani, "Deconstructing Data Reconstruction: Multiclass, Weight Decay and
General Losses" (NeurIPS 2023), after Haim et al. (NeurIPS 2022): what the trained weights of a network alone tell about
its training images.

At full scale images and networks are the paper's. Training and search are shorter (see `weights_alone`) but in
`published`, which has the paper's length.
"""
