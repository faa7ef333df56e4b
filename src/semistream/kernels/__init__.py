"""Compiled kernels: hashing, packed rows, pages, the tuple cache and the frequency sketch.

Importing one of these modules loads numba and the compiled code (about half a second), so everything else imports
them only where it is about to run a join. ``python -m semistream.kernels`` compiles them all ahead of time.
"""
