#!/usr/bin/env python3
"""Prints the coefficients of activations-inl.hpp. Needs numpy and mpmath (python3-numpy, python3-mpmath).

Not part of the build: run it to see where the numbers come from, or to fit others.
"""
import mpmath
import numpy as np

mpmath.mp.dps = 50


def tanh_over_x(square):
    """tanh(x) / x as a function of x^2."""
    if square == 0:
        return 1.0
    x = mpmath.sqrt(mpmath.mpf(float(square)))
    return float(mpmath.tanh(x) / x)


def exp_tail(r):
    """(e^r - 1 - r) / r^2."""
    if abs(r) < 1e-12:
        return 0.5
    r = mpmath.mpf(float(r))
    return float((mpmath.exp(r) - 1 - r) / r**2)


def chebyshev_points(low, high, count):
    return (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(count) + 0.5) / count)


def fit_ratio(f, high, numerator, denominator, points, rounds):
    """P and Q, Q(0) = 1, with P / Q near the smallest largest relative error on [0, high].

    Least squares of P - f Q, divided by the last Q; after each round the weight of a point grows with
    its error (Lawson's iteration). The best round is kept.
    """
    s = chebyshev_points(0.0, high, points)
    values = np.array([f(x) for x in s])
    top = np.vander(s / high, numerator + 1, increasing=True)
    bottom = np.vander(s / high, denominator + 1, increasing=True)
    weight, q_values, best = np.ones(points), np.ones(points), None
    for _ in range(rounds):
        for _ in range(3):
            scale = np.sqrt(weight) / np.abs(q_values * values)
            system = np.hstack([top, -values[:, None] * bottom[:, 1:]]) * scale[:, None]
            solution = np.linalg.lstsq(system, values * scale, rcond=None)[0]
            p = solution[: numerator + 1]
            q = np.concatenate([[1.0], solution[numerator + 1 :]])
            q_values = bottom @ q
        error = np.abs(top @ p / q_values / values - 1)
        if best is None or error.max() < best[0]:
            best = (error.max(), p / high ** np.arange(numerator + 1), q / high ** np.arange(denominator + 1))
        weight *= error / error.max() + 1e-3
        weight /= weight.sum()
    return best


def fit_polynomial(f, half_width, degree):
    """Least squares at Chebyshev points of [-half_width, half_width], which is close to minimax."""
    r = chebyshev_points(-half_width, half_width, 400)
    basis = np.polynomial.chebyshev.chebvander(r / half_width, degree)
    fitted = np.linalg.lstsq(basis, np.array([f(x) for x in r]), rcond=None)[0]
    return np.polynomial.chebyshev.cheb2poly(fitted) / half_width ** np.arange(degree + 1)


def show(what, coefficients, digits):
    print(f"{what:<22}", ", ".join(f"{c:.{digits}g}" for c in coefficients))


def main():
    half = float(mpmath.log(2) / 2) * 1.0005
    show("f32 exp tail", fit_polynomial(exp_tail, half, 4), 9)
    show("f64 exp tail", fit_polynomial(exp_tail, half, 11), 17)
    # 9.02: from here on, tanh rounds to 1 in f32.
    error, p, q = fit_ratio(tanh_over_x, 9.02**2, 4, 4, 1500, 150)
    print(f"f32 tanh, largest relative error of the exact ratio {error:.2g}")
    show("  numerator", p, 9)
    show("  denominator", q, 9)
    error, p, q = fit_ratio(tanh_over_x, 0.625**2 + 1e-3, 3, 3, 600, 60)
    print(f"f64 tanh below 0.625, {error:.2g}")
    show("  numerator", p, 17)
    show("  denominator", q, 17)


if __name__ == "__main__":
    main()
