"""A process that writes batches: python writer.py URL FOLDER NAME HOW_MANY RECORDS."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from audit.keys import read
from audit.registry import blocks, index, store
from tests.audit.registry.made import BATCH, RUN, table

url, folder, name, many, records = sys.argv[1:]
blocks.BLOCK_RECORDS, store.TOGETHER = 4, 2
write = index.write


def told(*arguments: Any) -> None:
    """Within the transaction of a block."""
    print("block", flush=True)
    write(*arguments)


index.write = told
keys = read(Path(folder))
with store.open(url) as registry:
    print("ready", flush=True)
    sys.stdin.readline()
    registry.add_run(replace(RUN, id=name), keys)
    for number in range(int(many)):
        batch = replace(BATCH, id=f"{name}-{number}", run=name, records=int(records))
        registry.add_batch(batch, table(int(records), name.encode()), keys)
        print(number, flush=True)
