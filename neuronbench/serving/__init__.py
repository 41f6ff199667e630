"""Start and watch an OpenAI-compatible server, or attach to one that runs."""
