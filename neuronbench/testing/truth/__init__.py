"""The parts of the truth server; the way in is `neuronbench.testing.truth_server`.

`loop` waits and fires, `connection` speaks HTTP/1.1, `service` routes, `requests` reads bodies, `scenarios` turns a
model name into a `script`, `dialects` and `wire` turn a script into bytes, `playback` sends them at their instants,
`records` and `counters` remember what was done.
"""
