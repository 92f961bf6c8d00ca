"""The peers' own metrics, in their environment: ``run_peers.py WHAT FOLDER``.

``mostlyai-search``: one of the searches that mostlyai-qa's metric consists of. ``mostlyai``: its
metric, the larger share of seven column sets. ``sdmetrics``: its overfitting score on a sample of
1,000 records, as its documentation advises for large tables. Facts as JSON on standard output.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

SAMPLE = 1000


def mostlyai_search(train: Any, holdout: Any, synthetic: Any) -> dict[str, Any]:
    from mostlyai.qa._distances import calculate_dcrs_nndrs
    from mostlyai.qa._embeddings import encode_data

    release, data, _ = encode_data(synthetic, train)
    started = time.perf_counter()
    calculate_dcrs_nndrs(data=data, query=release)
    return {"seconds": time.perf_counter() - started}


def mostlyai(train: Any, holdout: Any, synthetic: Any) -> dict[str, Any]:
    from mostlyai.qa._distances import calculate_dcr_share, calculate_distances
    from mostlyai.qa._embeddings import encode_data

    started = time.perf_counter()
    release, data, other = encode_data(synthetic, train, holdout)
    found = calculate_distances(syn_embeds=release, trn_embeds=data, hol_embeds=other)
    share = calculate_dcr_share(found["dcr_syn_trn"], found["dcr_syn_hol"])
    return {"seconds": time.perf_counter() - started, "share": float(share)}


def sdmetrics(train: Any, holdout: Any, synthetic: Any) -> dict[str, Any]:
    from sdmetrics.single_table import DCROverfittingProtection

    kinds = {"M": "datetime", "i": "numerical", "f": "numerical"}
    columns = {name: {"sdtype": kinds.get(train[name].dtype.kind, "categorical")} for name in train}
    started = time.perf_counter()
    found = DCROverfittingProtection.compute_breakdown(
        real_training_data=train,
        synthetic_data=synthetic,
        real_validation_data=holdout,
        metadata={"columns": columns},
        table_name=None,
        num_rows_subsample=SAMPLE,
    )
    share = found["synthetic_data_percentages"]["closer_to_training"]
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "share": float(share), "score": float(found["score"])}


def main() -> None:
    what, folder = sys.argv[1:]
    names = ("train", "holdout", "synthetic")
    frames = [pd.read_parquet(Path(folder) / f"{name}.parquet") for name in names]
    measures = {"mostlyai-search": mostlyai_search, "mostlyai": mostlyai, "sdmetrics": sdmetrics}
    facts = measures[what](*frames)
    facts["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
