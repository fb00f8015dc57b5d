"""Engine dialects: what the engines that speak OpenAI's protocol call things, and how they are told apart."""

from engine.dialects.detect import Detected, detect
from engine.dialects.table import UNKNOWN, Dialect, Sign, by_key, dialects

__all__ = ["UNKNOWN", "Detected", "Dialect", "Sign", "by_key", "detect", "dialects"]
