"""Compiled kernels: hashing, packed rows, pages, the tuple cache and the frequency sketch.

Importing one of these modules loads numba and the compiled code (about half a second), so everything else imports
them only where it is about to run a join. They are compiled once per machine, which takes most of a minute and is said
on standard error (`notice`); ``python -m semistream.kernels`` does it ahead of time.
"""
