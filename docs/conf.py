"""How Sphinx builds these pages: Markdown by myst-parser, the furo theme."""

from importlib.metadata import version as installed_version

project = "bayeswise"
author = "The bayeswise authors"
copyright = author
version = release = installed_version("bayeswise")

extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"bayeswise {release}"
html_show_copyright = False
