"""SciPy: logistic regression by a trust region with exact Hessians and a nonlinear least-squares fit."""

import numpy as np
import scipy.linalg
import scipy.optimize
from harness import main
from scipy.special import expit


def load(small):
    rng = np.random.default_rng(11)
    rows, columns, bumps = (400, 20, 5) if small else (20000, 250, 40)
    features = rng.standard_normal((rows, columns))
    labels = (features @ rng.standard_normal(columns) + rng.standard_normal(rows) * 3 > 0).astype(float)
    where = np.linspace(0, 1, 60 if small else 3000)
    centres = np.linspace(0.05, 0.95, bumps)
    heights = 1 + rng.random(bumps)
    curve = bells(np.concatenate([heights, centres, np.full(bumps, 0.4 / bumps)]), where) + 0.01 * rng.standard_normal(len(where))
    return features, labels, where, curve, centres


def bells(parameters, where):
    heights, centres, widths = parameters.reshape(3, -1)
    return np.exp(-(((where[:, None] - centres) / widths) ** 2)) @ heights


def slopes(parameters, where):
    heights, centres, widths = parameters.reshape(3, -1)
    relative = (where[:, None] - centres) / widths
    shape = np.exp(-(relative**2))
    return np.hstack([shape, 2 * heights * shape * relative / widths, 2 * heights * shape * relative**2 / widths])


def compute(data):
    features, labels, where, curve, centres = data
    strength = 1.0

    def loss(weights):
        score = features @ weights
        return np.sum(np.logaddexp(0, score) - labels * score) + strength / 2 * weights @ weights

    def gradient(weights):
        return features.T @ (expit(features @ weights) - labels) + strength * weights

    def hessian(weights):
        likely = expit(features @ weights)
        return (features.T * (likely * (1 - likely))) @ features + strength * np.eye(features.shape[1])

    start = np.zeros(features.shape[1])
    logistic = scipy.optimize.minimize(
        loss, start, jac=gradient, hess=hessian, method="trust-exact", options={"gtol": 1e-8, "initial_trust_radius": 10.0}
    )
    covariance = scipy.linalg.cho_solve(scipy.linalg.cho_factor(hessian(logistic.x)), np.eye(len(start)))

    count = len(centres)
    guess = np.concatenate([np.full(count, 1.5), centres + 0.1 / count, np.full(count, 0.5 / count)])
    fit = scipy.optimize.least_squares(
        lambda p: bells(p, where) - curve, guess, lambda p: slopes(p, where), method="trf", xtol=1e-12, ftol=1e-12, gtol=1e-12
    )
    return {
        "logistic weights": logistic.x,
        "standard errors": np.sqrt(np.diag(covariance)),
        "bells": bells(fit.x, where),
        "cost": fit.cost,
    }


if __name__ == "__main__":
    main(load, compute)
