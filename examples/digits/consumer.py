"""python -m examples.digits.consumer: a script without ``await``."""

import numpy as np

from steelyard import BlockingConsumer

from .contract import Digits, NotAPicture
from .model import halves

QUESTIONS = 200

_, _, pictures, labels = halves()
with BlockingConsumer() as consumer:
    digits = consumer.refer(Digits)
    right = 0
    for picture, label in zip(pictures[:QUESTIONS], labels, strict=False):
        right += digits.read(picture.reshape(8, 8)).digit == label
    print(f"{right} of {QUESTIONS} right")
    print(digits.read(pictures[0].reshape(8, 8)))
    try:
        digits.read(np.zeros((2, 2)))
    except NotAPicture as error:
        print("refused:", error)
