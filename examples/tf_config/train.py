"""A training script for processes that TF_CONFIG describes; it does not mention TF_CONFIG itself.

    python hosts.py python train.py

starts it on three "hosts" of this machine. Every rank draws its share of a line's points with noise and fits slope and
intercept by gradient descent; the all-reduce averages the gradients. Numpy only.
"""

import numpy as np

import tfcollective

POINTS, STEPS, RATE = 900, 200, 0.5


def main() -> None:
    tfcollective.init()
    world = tfcollective.get_communicator()
    print(f"{tfcollective.task()} is rank {world.rank} of {world.size}", flush=True)

    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, POINTS)
    y = 3 * x + 1 + random.normal(0, 0.01, POINTS)
    x, y = x[world.rank :: world.size], y[world.rank :: world.size]

    slope_and_intercept = np.zeros(2)
    for _ in range(STEPS):
        error = slope_and_intercept[0] * x + slope_and_intercept[1] - y
        gradient = np.array([np.mean(error * x), np.mean(error)])
        slope_and_intercept -= RATE * world.allreduce(gradient, op=tfcollective.Average)
    if world.rank == 0:
        print("y = {:.2f} x + {:.2f}".format(*slope_and_intercept))


if __name__ == "__main__":
    main()
