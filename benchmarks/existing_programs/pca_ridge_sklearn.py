"""scikit-learn: PCA, polynomial features and ridge regression on the digits, the strength chosen by cross-validation."""

import numpy as np
from harness import main
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.preprocessing import PolynomialFeatures


def load(small):
    images, labels = load_digits(return_X_y=True)
    count = 300 if small else len(images)
    return images[:count], np.eye(10)[labels[:count]], 10 if small else 40, 2 if small else 5


def compute(data):
    images, targets, components, folds = data
    pca = PCA(components, whiten=True, svd_solver="full").fit(images)
    features = PolynomialFeatures(2).fit_transform(pca.transform(images))
    scores = []
    for alpha in (1.0, 10.0, 100.0):
        for train, test in KFold(folds).split(features):
            model = Ridge(alpha, solver="cholesky").fit(features[train], targets[train])
            scores.append(model.score(features[test], targets[test]))
    final = Ridge(10.0, solver="svd").fit(features, targets)
    return {
        "explained variance": pca.explained_variance_ratio_,
        "scores": np.array(scores),
        "coefficients": final.coef_,
        "predicted": final.predict(features),
    }


if __name__ == "__main__":
    main(load, compute)
