"""Functions of scipy and scikit-learn run on tensors through the array API, with numpy's results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((20, 3)), RNG.standard_normal((20, 3))
LABELS, GUESSES = np.array([0, 1, 1, 0, 1, 1], np.int32), np.array([0, 1, 0, 0, 1, 0], np.int32)
ROOT = Path(__file__).resolve().parents[2]

# Functions of `a`, which makes arrays: they run on numpy's and on ours.
SCIPY = {
    "skew": "scipy.stats.skew(a(A))",
    "zscore": "scipy.stats.zscore(a(A))",
    "ttest_ind": "scipy.stats.ttest_ind(a(A), a(B)).statistic",
    "pearsonr": "scipy.stats.pearsonr(a(A), a(B), axis=0).statistic",
    "gstd": "scipy.stats.gstd(a(abs(A)))",
    "rankdata": "scipy.stats.rankdata(a(A), axis=0)",
    "logsumexp": "scipy.special.logsumexp(a(A), axis=0)",
    "erf": "scipy.special.erf(a(A))",
    "trapezoid": "scipy.integrate.trapezoid(a(A), axis=0)",
    "detrend": "scipy.signal.detrend(a(A), axis=0)",
    "vq": "scipy.cluster.vq.vq(a(A), a(B[:4]))[1]",
    "rosen": "scipy.optimize.rosen(a(A[:, 0]))",
}
SKLEARN = {
    "accuracy_score": "sklearn.metrics.accuracy_score(a(LABELS), a(GUESSES))",
    "f1_score": "sklearn.metrics.f1_score(a(LABELS), a(GUESSES))",
    "mean_squared_error": "sklearn.metrics.mean_squared_error(a(A[:, 0]), a(B[:, 0]))",
    "r2_score": "sklearn.metrics.r2_score(a(A[:, 0]), a(B[:, 0]))",
    "rbf_kernel": "sklearn.metrics.pairwise.rbf_kernel(a(A), a(B[:4]))",
    "StandardScaler": "sklearn.preprocessing.StandardScaler().fit_transform(a(A))",
    "MinMaxScaler": "sklearn.preprocessing.MinMaxScaler().fit_transform(a(A))",
    "PCA": "sklearn.decomposition.PCA(2, svd_solver='full').fit(a(A)).explained_variance_",
    "LinearDiscriminantAnalysis": (
        "sklearn.discriminant_analysis.LinearDiscriminantAnalysis().fit(a(A[:6]), a(LABELS)).predict(a(B))"
    ),
}
MODULES = {
    "scipy": ("cluster.vq", "integrate", "optimize", "signal", "special", "stats"),
    "sklearn": ("decomposition", "discriminant_analysis", "metrics", "preprocessing"),
}
SCRIPT = """
import contextlib, importlib, json, sys
import numpy as np
from gradlet import Tensor
from tests.array_api.test_libraries import A, B, GUESSES, LABELS, MODULES
package, functions = json.loads(sys.argv[1])
names = {"A": A, "B": B, "LABELS": LABELS, "GUESSES": GUESSES, package: importlib.import_module(package)}
for module in MODULES[package]:
    importlib.import_module(f"{package}.{module}")
dispatch = contextlib.nullcontext() if package == "scipy" else names[package].config_context(array_api_dispatch=True)
results = {}
with dispatch:
    for name, text in functions.items():
        ours, theirs = eval(text, {**names, "a": Tensor}), eval(text, {**names, "a": np.asarray})
        equal = np.allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5)
        results[name] = [isinstance(ours, (Tensor, float)), bool(equal)]
print(json.dumps(results))
"""


def run(package: str, functions: dict[str, str]) -> None:
    """Run in a new process: both libraries read scipy's switch when they are imported."""
    pytest.importorskip(package)
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps([package, functions])]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: [True, True] for name in functions}


@pytest.mark.slow
def test_scipy() -> None:
    run("scipy", SCIPY)


@pytest.mark.slow
def test_sklearn() -> None:
    run("sklearn", SKLEARN)
