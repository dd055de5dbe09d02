import numpy as np
import pytest

from vcotta.runs import Run


@pytest.fixture
def make_run():
    """Make a run with chosen numbers of errors, of 20 images a batch and two batches a domain."""

    def make(method, errors, *, seconds=0.5, alphas=None, nll=0.5, confidence=0.9):
        records, timing = [], []
        for index, (domain, severity, wrong) in enumerate(
            (domain, severity, wrong) for (domain, severity), wrong in errors.items() for _ in range(2)
        ):
            labels = np.arange(20) % 4
            predictions = np.where(np.arange(20) < wrong, (labels + 1) % 4, labels)
            last = {"forwards": 1} if alphas is None else {"forwards": 1, "alpha": alphas[index]}
            records.append(
                {
                    "batch": index,
                    "domain": domain,
                    "severity": severity,
                    "n": 20,
                    "errors": wrong,
                    "nll": nll,
                    "brier": 0.25,
                    "labels": labels.tolist(),
                    "predictions": predictions.tolist(),
                    "confidences": [confidence] * 20,
                    "last": last,
                }
            )
            timing.append({"batch": index, "seconds": seconds, "peak_memory": 1000})
        return Run({"method": method, "batches": len(records)}, records, timing)

    return make
