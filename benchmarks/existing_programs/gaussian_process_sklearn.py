"""scikit-learn: Gaussian process regression on the diabetes data, its kernel fitted by the marginal likelihood."""

import numpy as np
from harness import main
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel


def load(small):
    features, progress = load_diabetes(return_X_y=True)
    count = 120 if small else len(features)
    progress = (progress - progress.mean()) / progress.std()
    return features[:count] * 20, progress[:count]


def compute(data):
    features, progress = data
    kernel = ConstantKernel(1.0) * RBF(3.0) + WhiteKernel(0.5)
    model = GaussianProcessRegressor(kernel, random_state=0).fit(features, progress)
    mean, deviation = model.predict(features, return_std=True)
    _, covariance = model.predict(features[:100], return_cov=True)
    grid = [model.log_marginal_likelihood(model.kernel_.theta + shift) for shift in np.linspace(-0.5, 0.5, 20)]
    return {
        "likelihood": model.log_marginal_likelihood_value_,
        "likelihoods around it": np.array(grid),
        "mean": mean,
        "deviation": deviation,
        "covariance": covariance,
    }


if __name__ == "__main__":
    main(load, compute)
