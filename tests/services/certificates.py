"""Certificates of an authority that lives as long as the test, as PEM files."""

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Files of a certificate and its key."""

    certificate: str
    key: str


class Authority:
    """Writes into `folder`: `ca.pem`, and for each name that is issued NAME.pem and NAME.key."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str) -> Identity:
        """For the host `name`, and for calls by the loopback address."""
        issued = self._authority.issue_cert(name, "localhost", "127.0.0.1")
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return Identity(certificate=str(certificate), key=str(key))
