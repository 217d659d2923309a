"""Learn to read digits as they are found in pictures: drawn with noise, found, cut out, and only then looked at.

`python learn_reading.py` writes `made/reading.pkl`, a support vector machine.
"""

import numpy as np
from make import HALF, QUARTERS, SIZE, drawn, split
from perceive import regions_of
from records import keep
from sklearn.svm import SVC

TIMES = 2
"""So often each digit is seen, at another place and with other noise."""


def main() -> None:
    images, digits, _, _ = split()
    noise = np.random.default_rng(0)
    boxes, names = [], []
    for four in np.array_split(noise.permutation(np.arange(len(digits)).repeat(TIMES)), len(digits) * TIMES // 4):
        corners = [HALF * np.array(quarter) + noise.integers(2, HALF - SIZE - 1, 2) for quarter in QUARTERS]
        placed = [(images[at], *corner) for at, corner in zip(four, corners, strict=False)]
        for box, x, y in regions_of(drawn(placed, noise)):
            which = QUARTERS.index((int(x > 0.5), int(y > 0.5)))
            if which < len(four):
                boxes.append(box)
                names.append(digits[four[which]])
    keep("reading", SVC(C=10, gamma=0.02).fit(boxes, names))
    print(f"learned to read from {len(boxes)} digits")


if __name__ == "__main__":
    main()
