"""The experiments of the paper as one command: tasks, data, runner, tables and figures."""
