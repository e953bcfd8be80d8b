"""scikit-learn: kernel PCA of the digits, and their reconstruction from it."""

import numpy as np
from harness import main
from sklearn.datasets import load_digits
from sklearn.decomposition import KernelPCA


def load(small):
    images = load_digits().data / 16
    return images[: 250 if small else 1500], images[250:300] if small else images[1500:], 8 if small else 60


def compute(data):
    images, others, components = data
    model = KernelPCA(
        components, kernel="rbf", gamma=0.02, alpha=1e-2, eigen_solver="dense", fit_inverse_transform=True, random_state=0
    )
    scores = model.fit_transform(images)
    restored = model.inverse_transform(model.transform(others))
    return {
        "eigenvalues": model.eigenvalues_,
        "products of scores": scores[:100] @ scores.T,
        "restored": restored,
        "error": np.mean((restored - others) ** 2),
    }


if __name__ == "__main__":
    main(load, compute)
