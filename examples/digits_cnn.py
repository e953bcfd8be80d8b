"""Handwritten digits: a small convolutional network, trained without a framework.

The data are the 1797 digits of the UCI collection (8x8 pixels, values 0 to 16) that scikit-learn ships; scikit-learn only loads
them. Every layer and every gradient is an operation of backline; NumPy shuffles, sums gradients of biases, and steps down them.

    python examples/digits_cnn.py
    python examples/digits_cnn.py --deterministic
    BACKLINE_ONLY=numpy python examples/digits_cnn.py

Where determinism is switched on, two trainings give the same weights, bit for bit: two short ones always check that, and with
`--deterministic` the whole training is done twice. The network that was learnt is quantized to int8 as well.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import backline
from backline import backends, quantized
from backline.nn import functional, grad

Array = np.ndarray[Any, Any]

EPOCHS = 12
BATCH = 32
PASSES = 7
RATE = 2e-3
HELD_OUT = 360
KNOWN_ACCURACY = 0.97


class Layer:
    """Weights by name and, after `backward`, their gradients. `forward` keeps what `backward` needs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.weights: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}

    def draw(self, rng: np.random.Generator, *shape: int) -> None:
        """Weights for an activation of relu: normal, of variance 2 / inputs; biases of 0."""
        deviation = np.float32(np.sqrt(2 / np.prod(shape[1:])))
        self.weights = {"weight": rng.standard_normal(shape, np.float32) * deviation, "bias": np.zeros(shape[0], np.float32)}


class Convolution(Layer):
    """3x3, same size, with relu in the same call."""

    def __init__(self, name: str, channels: int, features: int, rng: np.random.Generator) -> None:
        super().__init__(name)
        self.draw(rng, features, channels, 3, 3)

    def forward(self, x: Array, training: bool) -> Array:
        self.x = x
        self.y: Array = functional.conv2d(x, **self.weights, padding=1, activation="relu")
        return self.y

    def backward(self, g: Array) -> Array:
        weight = self.weights["weight"]
        g = grad.relu_input(self.y, g)
        self.gradients = {"weight": grad.conv2d_weight(self.x, weight.shape, g, padding=1), "bias": g.sum((0, 2, 3))}
        result: Array = grad.conv2d_input(self.x.shape, weight, g, padding=1)
        return result


class Normalisation(Layer):
    """Batch normalisation: the batch's statistics in training, their running means after it."""

    def __init__(self, name: str, channels: int) -> None:
        super().__init__(name)
        self.weights = {"weight": np.ones(channels, np.float32), "bias": np.zeros(channels, np.float32)}
        self.mean, self.variance = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def forward(self, x: Array, training: bool) -> Array:
        self.x = x
        return functional.batch_norm(x, self.mean, self.variance, **self.weights, training=training)

    def backward(self, g: Array) -> Array:
        found = grad.batch_norm_backward(self.x, g, self.weights["weight"])
        self.gradients = {"weight": found.weight, "bias": found.bias}
        return found.input


class Pooling(Layer):
    """The largest of every 2x2 points."""

    def forward(self, x: Array, training: bool) -> Array:
        self.x = x
        result: Array = functional.max_pool2d(x, 2)
        return result

    def backward(self, g: Array) -> Array:
        result: Array = grad.max_pool2d_input(self.x, g, 2)
        return result


class Scores(Layer):
    """A linear layer over all that is left, and log_softmax: the logarithm of each digit's probability."""

    def __init__(self, name: str, inputs: int, rng: np.random.Generator) -> None:
        super().__init__(name)
        self.draw(rng, 10, inputs)

    def forward(self, x: Array, training: bool) -> Array:
        self.shape = x.shape
        self.x = x.reshape(len(x), -1)
        self.y: Array = functional.log_softmax(functional.linear(self.x, **self.weights), 1)
        return self.y

    def backward(self, g: Array) -> Array:
        g = grad.log_softmax_input(self.y, g, 1)
        self.gradients = {"weight": grad.linear_weight(self.x, g), "bias": grad.linear_bias(g)}
        result: Array = grad.linear_input(self.weights["weight"], g).reshape(self.shape)
        return result


class Network:
    """The layers, and Adam's running means of their gradients."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.layers: list[Any] = [
            Convolution("convolution 1 to 32", 1, 32, rng),
            Convolution("convolution 32 to 32", 32, 32, rng),
            Pooling("pooling to 4x4"),
            Convolution("convolution 32 to 64", 32, 64, rng),
            Pooling("pooling to 2x2"),
            Normalisation("normalisation", 64),
            Scores("linear 256 to 10", 256, rng),
        ]
        names = [(layer, name) for layer in self.layers for name in layer.weights]
        self.states = [(layer, name, *(np.zeros_like(layer.weights[name]) for _ in range(2))) for layer, name in names]
        self.steps = 0

    def forward(self, x: Array, training: bool = False) -> Array:
        for layer in self.layers:
            x = layer.forward(x, training)
        return x

    def step(self, x: Array, labels: Array) -> float:
        """Learn from one batch; its loss, before."""
        scores = self.forward(x, training=True)
        wanted = np.eye(10, dtype=np.float32)[labels]
        g = wanted * np.float32(-1 / len(x))
        loss = float((scores * g).sum())
        for layer in reversed(self.layers):
            g = layer.backward(g)
        self.steps += 1
        rate = np.float32(RATE * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps))
        for layer, name, mean, square in self.states:
            found = layer.gradients[name]
            mean += np.float32(0.1) * (found - mean)
            square += np.float32(0.001) * (found * found - square)
            layer.weights[name] -= rate * mean / (np.sqrt(square) + np.float32(1e-8))
        return loss

    def accuracy(self, images: Array, labels: Array) -> float:
        return float(np.mean(self.forward(images).argmax(axis=1) == labels))

    def digest(self) -> str:
        """A fingerprint of every bit of the weights."""
        found = hashlib.sha256()
        for layer in self.layers:
            for name in sorted(layer.weights):
                found.update(layer.weights[name].tobytes())
        return found.hexdigest()[:16]


def train(images: Array, labels: Array, *, epochs: int, show: bool = False) -> Network:
    network = Network(seed=1)
    rng = np.random.default_rng(2)
    for epoch in range(1, epochs + 1):
        order = rng.permutation(len(images))
        batches = [order[i : i + BATCH] for i in range(0, len(order) - BATCH + 1, BATCH)]
        losses = [network.step(images[b], labels[b]) for b in batches]
        if show and epoch in (1, 2, 4, 8, epochs):
            print(f"  epoch {epoch:2}: loss {np.mean(losses):.4f}")
    return network


def report(network: Network, images: Array, labels: Array) -> None:
    """Prints which library ran each layer, forward and backward: the medians of some passes with one batch.

    Normalisation takes these for training: the running means are no longer what was learnt.
    """
    x, layers = images[:BATCH], network.layers
    g = np.eye(10, dtype=np.float32)[labels[:BATCH]] * np.float32(-1 / BATCH)
    for way, order, value in (("forward", layers, x), ("backward", layers[::-1], g)):
        print(f"  {way}")
        for layer in order:
            passes = []
            for _ in range(PASSES):
                with backline.trace() as events:
                    result = layer.forward(value, True) if way == "forward" else layer.backward(value)
                passes.append(events)
            value = result
            name = layer.name
            for same in zip(*passes, strict=True):  # one operation, in each pass
                chosen, seconds = same[-1].choice.chosen, statistics.median(event.seconds for event in same)
                ran = f"{chosen.library} {chosen.name} x{chosen.threads}"
                print(f"    {name:<20}  {same[-1].op:<20}  {ran:<22} {seconds * 1e6:6.0f} us")
                name = ""


def quantize(network: Network, seen: Array) -> Callable[[Array], Array]:
    """The network on int8: weights with a scale for each feature, and scales for what is between layers as `seen` has it.

    The engine that `backends.quantized.engine` names packs the weights, and runs them: the fastest here, unless it is set.

    relu costs nothing: where no value is below 0, the integer 0 stands for 0, and results saturate there. Normalisation becomes
    part of the linear layer.
    """
    parameters, packed = [quantized.MinMaxObserver()], []
    parameters[0](seen)
    scale = shift = np.empty(0, np.float32)
    x = seen
    for layer in network.layers:
        x = layer.forward(x, False)
        weights = layer.weights
        if isinstance(layer, Convolution):
            weight = quantized.quantize_weights(weights["weight"])
            packed.append(quantized.conv2d_prepack(weight, weights["bias"], padding=1))
            parameters.append(quantized.MinMaxObserver())
            parameters[-1](x)
        elif isinstance(layer, Normalisation):
            scale = weights["weight"] / np.sqrt(layer.variance + np.float32(1e-5))
            shift = weights["bias"] - layer.mean * scale
        elif isinstance(layer, Scores):
            points = weights["weight"].shape[1] // len(scale)
            bias = functional.linear(np.repeat(shift, points)[None], **weights)[0]
            last = quantized.linear_prepack(quantized.quantize_weights(weights["weight"] * np.repeat(scale, points)), bias)
    between = [observer.calculate_qparams() for observer in parameters]

    def forward(images: Array) -> Array:
        x = quantized.quantize(images, *between[0])
        convolutions = iter(zip(packed, between[1:], strict=True))
        for layer in network.layers:
            if isinstance(layer, Convolution):
                weight, pair = next(convolutions)
                x = quantized.conv2d(x, weight, *pair)
            elif isinstance(layer, Pooling):
                x = quantized.quantize(functional.max_pool2d(x.dequantize(), 2), x.scale, x.zero_point)
        return quantized.linear_dynamic(x.dequantize().reshape(len(images), -1), last)

    return forward


def same_bits(images: Array, labels: Array, *, epochs: int) -> tuple[str, str]:
    """Digests of the weights of two trainings with determinism on."""
    with backends.flags(deterministic=True):
        return train(images, labels, epochs=epochs).digest(), train(images, labels, epochs=epochs).digest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small convolutional network on handwritten digits.")
    parser.add_argument("--deterministic", action="store_true", help="train twice with the same bits, and compare")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"passes over the digits ({EPOCHS})")
    asked = parser.parse_args()

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    images = (digits.images[order, None] / 16 - 0.3).astype(np.float32)
    labels = digits.target[order]
    learnt, held = slice(HELD_OUT, None), slice(0, HELD_OUT)
    count = len(images) - HELD_OUT

    print(f"Training on {count} digits, {HELD_OUT} held out; {backline.get_num_threads()} threads")
    with backends.flags(**({"deterministic": True} if asked.deterministic else {})):
        started = time.perf_counter()
        network = train(images[learnt], labels[learnt], epochs=asked.epochs, show=True)
        seconds = time.perf_counter() - started
        accuracy, digest = network.accuracy(images[held], labels[held]), network.digest()
        print(f"  {seconds:.1f} s, held-out accuracy {accuracy:.4f}, weights {digest}")

        small = quantize(network, images[learnt][:256])
        small(images[held])  # plans are made by the first calls
        with backline.trace() as events:
            few = float(np.mean(small(images[held]).argmax(axis=1) == labels[held]))
        print(f"\nQuantized to int8: accuracy {few:.4f}, {(accuracy - few) * 100:.2f} points lost")
        print(f"What ran each layer, for {HELD_OUT} digits; engine {backends.quantized.engine!r}")
        for event in events:
            chosen = event.choice.chosen
            ran = f"{chosen.library} {chosen.name} x{chosen.threads}"
            print(f"    {event.op:<26}  {ran:<22} {event.seconds * 1e6:6.0f} us")

        print(f"\nWhat ran each layer, for {BATCH} digits")
        report(network, images[learnt], labels[learnt])

    print("\nDeterministic: two trainings give the same weights, bit for bit")
    if asked.deterministic:
        with backends.flags(deterministic=True):
            pair = digest, train(images[learnt], labels[learnt], epochs=asked.epochs).digest()
    else:
        pair = same_bits(images[held], labels[held], epochs=1)
    print(f"  {'the whole training' if asked.deterministic else f'a short one, of {HELD_OUT} digits'}: {pair[0]} and {pair[1]}")
    assert pair[0] == pair[1]
    assert min(accuracy, few) >= KNOWN_ACCURACY or asked.epochs < EPOCHS


if __name__ == "__main__":
    main()
