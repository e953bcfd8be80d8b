"""SciPy: an array of sensors, filtered, whitened, looked at by an adaptive beamformer, and modelled by autoregression."""

import numpy as np
import scipy.linalg
import scipy.signal
from harness import main


def load(small):
    rng = np.random.default_rng(7)
    sensors, samples = (12, 4096) if small else (64, 65536)
    time = np.arange(samples) / 1000.0
    sources = np.stack([scipy.signal.chirp(time, 20 + 15 * k, time[-1], 60 + 25 * k) for k in range(4)])
    delays = np.exp(-0.1 * np.abs(np.arange(sensors)[:, None] - np.array([3, 5, 8, 10])))
    return delays @ sources + 0.5 * rng.standard_normal((sensors, samples)), 20 if small else 60


def compute(data):
    recorded, order = data
    bands = scipy.signal.butter(4, [10, 200], btype="bandpass", fs=1000.0, output="sos")
    filtered = scipy.signal.sosfiltfilt(bands, recorded, axis=1)

    covariance = filtered @ filtered.T / filtered.shape[1]
    values, vectors = scipy.linalg.eigh(covariance)
    whitening = (vectors / np.sqrt(values)) @ vectors.T
    white = whitening @ filtered

    # Minimum variance distortionless response: one covariance matrix and one system of equations for each frequency.
    _, _, spectra = scipy.signal.stft(filtered, fs=1000.0, nperseg=256)
    by_frequency = np.ascontiguousarray(spectra.transpose(1, 0, 2))
    densities = by_frequency @ by_frequency.conj().transpose(0, 2, 1) / by_frequency.shape[2]
    densities += 1e-3 * np.trace(densities, axis1=1, axis2=2).real[:, None, None] / len(recorded) * np.eye(len(recorded))
    angles = np.linspace(-1, 1, 181)
    steering = np.exp(1j * np.pi * np.outer(np.arange(len(recorded)), angles))
    inverse = np.linalg.inv(densities)
    power = 1 / np.einsum("ka,fka->fa", steering.conj(), inverse @ steering).real

    # Vector autoregression: each sensor predicted from what all sensors measured before.
    lags = order // 10
    past = np.concatenate([white[:, lags - lag : -lag] for lag in range(1, lags + 1)])[:, ::4]
    now = white[:, lags:][:, ::4]
    weights = scipy.linalg.solve(past @ past.T + np.eye(len(past)), past @ now.T, assume_a="pos")
    residual = now - weights.T @ past
    return {
        "variances": values,
        "white covariance": white @ white.T / white.shape[1],
        "power": np.log(power),
        "autoregression": weights,
        "residual": residual.std(axis=1),
    }


if __name__ == "__main__":
    main(load, compute)
