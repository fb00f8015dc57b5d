"""The KV cache: how large it is and how it is shared out."""
