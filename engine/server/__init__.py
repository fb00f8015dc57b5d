"""The vLLM server as a child process: command, life cycle, start-up phases, diagnosis."""
