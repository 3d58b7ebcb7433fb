"""One module per command: `run`, whose signature and docstring give the flags and their help, and an `EXAMPLE`. Heavy
imports are inside `run`, so that `--help` and a mistyped flag are answered at once."""
