"""One module a command, each with its flags (`define`, `REQUIRED`) and what it does (`run`). Heavy imports stand inside
`run`, so that a mistyped flag is answered at once."""
