"""llama.cpp: a `llama-server` binary, or the embedded server over xllamacpp with the same command line.

The engine itself is `engine.LlamaCpp`; it is not imported here, so that the embedded server, which lives in
this package, starts without it.
"""
