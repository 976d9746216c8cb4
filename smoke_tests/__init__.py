"""Sea trial of a vLLM server over HTTP: usable alone, with pytest, httpx and the docker SDK."""
