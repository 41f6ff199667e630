"""A team's tracking server on this machine, boxes that push to it all at once, and the proof that nothing was lost.

`python -m neuronbench.testing.tracking --boxes 100 --points 1000` runs the whole; the parts are for tests, too.
"""
