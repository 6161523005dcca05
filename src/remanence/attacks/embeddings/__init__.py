"""Images from the embeddings that an attack on a head reconstructed."""
