"""One file per command of the command line; `common.cli` only names them."""
