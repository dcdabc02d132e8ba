"""The command line: one module per noun, tables and progress, no decisions."""
