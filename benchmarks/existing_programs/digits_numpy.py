"""Handwritten digits with NumPy alone: principal components, least squares on their products, a spectral embedding."""

import numpy as np
from harness import main
from sklearn.datasets import load_digits


def load(small):
    images, labels = load_digits(return_X_y=True)
    count = 300 if small else len(images)
    return images[:count], labels[:count], 12 if small else 30


def compute(data):
    images, labels, components = data
    centred = images - images.mean(axis=0)
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    scores = centred @ axes[:components].T / singular[:components]

    # A quadratic classifier: least squares on all products of two scores.
    first, second = np.triu_indices(components)
    features = np.column_stack([np.ones(len(scores)), scores, scores[:, first] * scores[:, second] * 30])
    targets = np.eye(10)[labels]
    weights, *_ = np.linalg.lstsq(features, targets, rcond=None)
    predicted = features @ weights

    # Laplacian eigenmaps: the eigenvectors of a normalised similarity matrix.
    squares = (centred**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * centred @ centred.T, 0)
    similarity = np.exp(-distances / np.median(distances))
    scale = 1 / np.sqrt(similarity.sum(axis=1))
    values, vectors = np.linalg.eigh(scale[:, None] * similarity * scale)
    embedding = vectors[:, -components:] * values[-components:]
    return {
        "singular values": singular,
        "predicted": predicted,
        "accuracy": np.mean(predicted.argmax(axis=1) == labels),
        "eigenvalues": values,
        "embedded distances": embedding[:100] @ embedding.T,
    }


if __name__ == "__main__":
    main(load, compute)
