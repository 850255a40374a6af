"""The paper's experiments. A task is a file here and a line in `TASKS`."""

from bayeswise.bench.tasks.classification import Classification
from bayeswise.bench.tasks.convergence import Convergence
from bayeswise.bench.tasks.ood import OutOfDistribution
from bayeswise.bench.tasks.protocol import Task
from bayeswise.bench.tasks.reparametrisation import Reparametrisation
from bayeswise.bench.tasks.synthetic import Synthetic
from bayeswise.bench.tasks.uci import UCI

TASKS: dict[str, Task] = {
    "synthetic": Synthetic(),
    "uci": UCI(),
    "classification": Classification(),
    "convergence": Convergence(),
    "ood": OutOfDistribution(),
    "reparametrisation": Reparametrisation(),
}

__all__ = ["TASKS", "Task"]
