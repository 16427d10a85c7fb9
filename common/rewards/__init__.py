"""Verifiers: `scorers` says what a response is worth, `pool` asks it in killable worker processes."""
