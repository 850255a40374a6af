"""How targets depend on network outputs: p(y | f) for numbers, classes and yes/no labels.

Outputs f are (..., B, O). Every function takes leading dimensions: members K, or draws S and members. H is
the Hessian of -log p(y | f) with respect to the outputs f of one row; none of the three depends on y.

| likelihood | -log p(y given f) | H |
|---|---|---|
| Gaussian | (y - f)ᵀ Σ⁻¹ (y - f) / 2 + log det(2πΣ) / 2 | Σ⁻¹ |
| Categorical | logsumexp(f) - f_y | diag(p) - p pᵀ, p = softmax(f) |
| Bernoulli | Σ_o log(1 + exp(f_o)) - y_o f_o | diag(p (1 - p)), p = sigmoid(f) |
"""

from bayeswise.likelihoods.gaussian import Gaussian
from bayeswise.likelihoods.labels import Bernoulli, Categorical
from bayeswise.likelihoods.protocol import Likelihood

__all__ = ["Bernoulli", "Categorical", "Gaussian", "Likelihood"]
