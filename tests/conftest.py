"""What all tests share: one thread, since small models on several only wait for one another."""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # read when numpy and torch are first imported
