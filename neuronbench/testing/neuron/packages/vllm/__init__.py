"""Not vLLM: a stand-in that is started like it, talks like it, and serves what it is told to.

Which vLLM it is, and with which plugin for Neuron, is told by the distributions that the environment claims to have.
What it can be told is in `vllm.fake.settings`.
"""
