"""A model to serve: `poise serve poise_lab.demo.digits:Digits` reads handwritten digits of 8 by 8 pixels.

    curl -X POST 127.0.0.1:8080/predict -d '[0, 0, 5, 13, …]'          # 64 numbers from 0 to 16
    {"digit":0,"sure":0.97}

The model is trained at startup, on three quarters of scikit-learn's digits. A forest takes nearly as long for one digit
as for many, so batching pays off.
"""

from typing import Annotated, Any

import msgspec

TREES = 100

Pixels = Annotated[list[Annotated[float, msgspec.Meta(ge=0, le=16)]], msgspec.Meta(min_length=64, max_length=64)]


class Answer(msgspec.Struct):
    """The digit, and the fraction of the trees that vote for it."""

    digit: int
    sure: float


class Digits:
    """A random forest."""

    def load(self) -> None:
        from sklearn.datasets import load_digits
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.model_selection import train_test_split

        images, digits = load_digits(return_X_y=True)
        known, self._others, names, _ = train_test_split(images, digits, random_state=0)
        self._forest: Any = RandomForestClassifier(TREES, random_state=0, n_jobs=1).fit(known, names)

    def predict(self, batch: list[Pixels]) -> list[Answer]:
        shares = self._forest.predict_proba(batch)
        return [Answer(int(one.argmax()), round(float(one.max()), 2)) for one in shares]

    def example(self) -> Pixels:
        """Return a digit that was not used for training."""
        return [float(one) for one in self._others[0]]

    def questions(self) -> list[bytes]:
        """Return request bodies: all digits that were not used for training."""
        return [msgspec.json.encode(one) for one in self._others.tolist()]
