"""The scikit-learn face: an estimator in a pipeline, judged by cross-validation and by its intervals.

python examples/sklearn_pipeline.py
"""

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import bayeswise as bw


def main() -> dict[str, float]:
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

    columns = make_column_transformer((OneHotEncoder(drop="if_binary"), ["sex"]), remainder="passthrough")
    regressor = bw.BayesianRegressor(hidden=(20,), method=bw.BALI(steps=150, effective=0.2))
    pipeline = make_pipeline(columns, regressor)

    scores = cross_val_score(pipeline, X_train, y_train, cv=3)
    mean, std = pipeline.fit(X_train, y_train).predict(X_test, return_std=True)
    low, high = pipeline[-1].predict_interval(pipeline[:-1].transform(X_test), level=0.9)
    found = {
        "r2_cross_validated": float(scores.mean()),
        "r2_held_out": float(pipeline.score(X_test, y_test)),
        "coverage_90": float(((low <= y_test) & (y_test <= high)).mean()),
        "mean_std": float(std.mean()),
    }

    print("R² in three folds:", np.round(scores, 2))
    print(f"R² on held-out rows: {found['r2_held_out']:.2f}")
    print(f"share of held-out targets inside their 90 % interval: {found['coverage_90']:.2f}")
    print("\nfirst patients   truth   mean    std   90 % interval")
    for row in list(zip(y_test, mean, std, low, high, strict=True))[:4]:
        print("              {:8.0f} {:6.0f} {:6.0f}   {:.0f} … {:.0f}".format(*row))
    return found


if __name__ == "__main__":
    main()
