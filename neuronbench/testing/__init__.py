"""What neuronbench is tested with, public so that plugin authors can test with it too.

`neuronbench.testing.truth_server` is an OpenAI-compatible server whose timings are known: it decides when each token
leaves, writes the instant at which it left into the event, and misbehaves in scripted ways. A client's error is its
own stamp minus the one it was sent.

Nothing here is imported by the measuring code, and importing this package imports nothing else.
"""
