"""What Prometheus would see."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """Samples of one scrape of `address`."""

    def __init__(self, address: str) -> None:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
            families = list(text_string_to_metric_families(reply.read().decode()))
        self._samples = [sample for family in families for sample in family.samples]
        self.names = {sample.name for sample in self._samples}

    def total(self, name: str, **labels: str) -> float:
        """Sum over all series of that name which have the labels; fails when there is none."""
        found = [s.value for s in self._samples if s.name == name and labels.items() <= s.labels.items()]
        assert found, f"no sample of {name} with {labels}; there are {sorted(self.names)}"
        return sum(found)

    def by(self, name: str, label: str) -> dict[str, float]:
        return {s.labels[label]: s.value for s in self._samples if s.name == name}
