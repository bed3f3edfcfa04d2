"""The command `laneway`: one module per group of commands."""
