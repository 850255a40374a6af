"""Tables from CSV files: read them, decide what every column is, turn rows into numbers.

Cells stay text until the kind of their column is known. Whatever is decided on the way is said in a note;
what cannot be decided is an error that names the column and the way out.
"""

from bayeswise.tables.columns import CategoryColumn, Encoder, NumberColumn, PairColumn, training_columns
from bayeswise.tables.reading import Table, read_table
from bayeswise.tables.targets import ClassTarget, NumberTarget, Target, choose_target, held_out
from bayeswise.tables.words import TableError, listed, near, shown

__all__ = [
    "CategoryColumn",
    "ClassTarget",
    "Encoder",
    "NumberColumn",
    "NumberTarget",
    "PairColumn",
    "Table",
    "TableError",
    "Target",
    "choose_target",
    "held_out",
    "listed",
    "near",
    "read_table",
    "shown",
    "training_columns",
]
