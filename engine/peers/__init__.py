"""Other engines as real servers beside vLLM: llama.cpp and ``transformers serve``, started, measured, ended."""
