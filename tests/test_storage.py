"""A posterior on disk: everything comes back, nothing else is needed, another model is refused."""

import builtins
import json
import pickle

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.saving import SavedModelError
from bayeswise.storage import read_extra, save_posterior

B, I, O, S, N = 7, 5, 3, 11, 40  # noqa: E741


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Gated(nn.Module):
    """Two inferred layers, a fixed parameter, a buffer that is saved and one that is not."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(I, width), nn.Linear(width, O)
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("shift", torch.full((width,), 0.2))
        self.register_buffer("mask", torch.ones(width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b((self.a(x) * self.gain + self.shift).tanh() * self.mask)


def gated(width: int = 4, dtype: torch.dtype = torch.float64) -> Gated:
    return Gated(width).to(dtype)


LIKELIHOODS = {
    "inferred": bw.Gaussian(),
    "known": bw.Gaussian(0.3),
    "matrix": bw.Gaussian(torch.tensor([[1.0, 0.2, 0], [0.2, 2.0, 0], [0, 0, 0.5]], dtype=torch.float64)),
    "categorical": bw.Categorical(),
    "bernoulli": bw.Bernoulli(),
}


def fitted(kind: str = "inferred", model: nn.Module | None = None, **settings) -> bw.Posterior:
    y = 3 + 2 * random(N, O, seed=1)
    y = y.argmax(1) if kind == "categorical" else (y > 3).double() if kind == "bernoulli" else y
    method = bw.BALI(steps=4, **settings)
    with pytest.warns(UserWarning, match="gain"):
        return bw.fit(model or gated(), (random(N, I), y), LIKELIHOODS[kind], method, seed=6, progress=False)


def everything(posterior: bw.Posterior) -> list[Tensor]:
    p = posterior.predict(random(B, I, seed=3), S)
    return [p.mean, p.std, p.epistemic, p.aleatoric, p.draws, *posterior.sample(2).values()]


@pytest.mark.parametrize("kind", LIKELIHOODS)
@pytest.mark.parametrize("settings", [{}, {"noise": "drawn"}])
def test_what_is_saved_comes_back_bit_for_bit(kind: str, settings: dict, tmp_path):
    posterior = fitted(kind, **settings)
    posterior.save(tmp_path / "m")
    model = gated()
    with torch.no_grad():  # none of the new model's own values matter
        for value in (*model.parameters(), *model.buffers()):
            value.add_(0.7)
    restored = bw.load(tmp_path / "m", model)
    for a, b in zip(everything(posterior), everything(restored), strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype
    assert restored.summary() == posterior.summary() and restored.seed == 6
    assert restored.problem.n == N and type(restored.problem.likelihood) is type(LIKELIHOODS[kind])
    restored.save(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "m")


def test_a_kind_that_has_no_name_is_not_saved(tmp_path):
    class Mine(bw.Gaussian):
        pass

    pair = random(N, I), random(N, O)
    posterior = bw.fit(nn.Linear(I, O), pair, Mine(), bw.BALI(steps=2), progress=False)
    with pytest.raises(TypeError, match=r"a Mine cannot be saved, only Gaussian, .*CONTRIBUTING\.md"):
        posterior.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def contents(folder) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir())}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_of_the_fit_comes_back_whatever_the_models(dtype, tmp_path):
    pair = random(N, I).to(dtype), random(N, O).to(dtype)
    model = nn.Linear(I, O).to(dtype)
    posterior = bw.fit(model, pair, bw.Gaussian(), bw.BALI(steps=2), progress=False)
    posterior.save(tmp_path / "m")
    other = nn.Linear(I, O).to(torch.float64 if dtype == torch.float32 else torch.float32)
    restored = bw.load(tmp_path / "m", other)
    mean = restored.predict(pair[0], S).mean
    assert mean.dtype == dtype and torch.equal(mean, posterior.predict(pair[0], S).mean)
    assert next(other.parameters()).dtype != dtype


def test_a_bare_layer_and_a_compiled_model(tmp_path):
    x, y = random(N, I), random(N, O)
    model = nn.Linear(I, O).double()
    posterior = bw.fit(model, (x, y), bw.Gaussian(), bw.BALI(steps=2), progress=False)
    posterior.save(tmp_path / "m")
    wrapped = nn.Module()
    wrapped._orig_mod = model  # what torch.compile puts around a module
    for given in (nn.Linear(I, O).double(), wrapped):
        assert torch.equal(bw.load(tmp_path / "m", given).predict(x, S).mean, posterior.predict(x, S).mean)


def test_no_pickle_on_either_way(tmp_path, monkeypatch):
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("pickle")

    posterior = fitted()
    for owner, name in ((pickle, "load"), (pickle, "loads"), (pickle, "dump"), (pickle, "dumps")):
        monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(builtins, "eval", refuse)
    posterior.save(tmp_path / "m")
    bw.load(tmp_path / "m", gated())


class Wider(Gated):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(9))


class Unlinear(Gated):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Bilinear(I, I, 4)


def test_another_model_is_refused_with_the_culprit(tmp_path):
    fitted().save(tmp_path / "m")
    cases = {
        r"has shape \(9,\) in the model and \(4,\) in the saved one; build the same model": gated(9),
        r'"gain" has shape \(9,\)': Wider(),
        'no layer "a" of the kind': Unlinear(),
        'no layer "a"': nn.Linear(I, O),
    }
    for message, model in cases.items():
        with pytest.raises(SavedModelError, match=message):
            bw.load(tmp_path / "m", model)
    with pytest.raises(TypeError, match="model is a NoneType; .* give a torch.nn.Module like the one"):
        bw.load(tmp_path / "m", None)  # type: ignore[arg-type]
    extra = gated()
    extra.register_buffer("count", torch.zeros(2))
    with pytest.raises(SavedModelError, match='has "count", which the saved one has not'):
        bw.load(tmp_path / "m", extra)


def test_a_flipped_bit_is_refused(tmp_path):
    fitted().save(tmp_path / "m")
    for file in sorted((tmp_path / "m").iterdir()):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        kept = file.read_bytes()
        file.write_bytes(bytes(content))
        with pytest.raises(SavedModelError, match=file.name.split(".")[0]):
            bw.load(tmp_path / "m", gated())
        file.write_bytes(kept)
    bw.load(tmp_path / "m", gated())


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    with pytest.raises((SavedModelError, FileNotFoundError), match="nowhere"):
        bw.load(tmp_path / "nowhere", gated())
    with pytest.raises(SavedModelError):
        bw.load(tmp_path, gated())


def test_extra_values_travel_with_the_model(tmp_path):
    posterior = fitted()
    save_posterior(posterior, tmp_path / "m", {"columns": ["a", "b"], "scale": 2.5})
    assert read_extra(tmp_path / "m") == {"columns": ["a", "b"], "scale": 2.5}
    posterior.save(tmp_path / "n")
    assert read_extra(tmp_path / "n") == {}


def test_the_configuration_is_plain_json(tmp_path):
    fitted().save(tmp_path / "m")
    texts = [json.loads(f.read_text()) for f in (tmp_path / "m").glob("*.json")]
    assert any("gain" in json.dumps(text) for text in texts)
    assert {f.suffix for f in (tmp_path / "m").iterdir()} == {".json", ".safetensors"}


def test_saving_over_a_model_replaces_it(tmp_path):
    fitted().save(tmp_path / "m")
    other = fitted("categorical")
    other.save(tmp_path / "m")
    x = random(B, I)
    assert torch.equal(bw.load(tmp_path / "m", gated()).predict(x, S).mean, other.predict(x, S).mean)
