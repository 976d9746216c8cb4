"""Build vLLM for every accelerator and take every image on a sea trial before it gets a name."""

__version__ = "0.1.0"
