"""TLS for gRPC servers and channels, from PEM files. A name that is empty stands for a file that is not there."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, kw_only=True)
class ServerTls:
    """A server's certificate chain and key; with `client_ca` only clients that this authority vouches for get in.

    Nothing set is plaintext. Raises ValueError when one is set without what it needs.
    """

    certificate: str = ""
    key: str = ""
    client_ca: str = ""

    def __post_init__(self) -> None:
        _require_pair(self.certificate, self.key)
        if self.client_ca and not self.certificate:
            raise ValueError("tls_client_ca: needs tls_certificate and tls_key")

    def credentials(self) -> grpc.ServerCredentials | None:
        """None for plaintext. Raises ValueError when a file can't be used."""
        if not self.certificate:
            return None
        return grpc.ssl_server_credentials(
            [_read_pair(self.certificate, self.key)[::-1]],
            root_certificates=_read_authority("tls_client_ca", self.client_ca),
            require_client_auth=bool(self.client_ca),
        )


@dataclass(frozen=True, kw_only=True)
class ChannelTls:
    """The authority that must vouch for the server, and the certificate and key that this side shows when asked.

    Without `ca` the channel is plaintext. Raises ValueError when a certificate comes without its key.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        _require_pair(self.certificate, self.key)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """None for plaintext. Raises ValueError when a file can't be used."""
        if not self.ca:
            return None
        chain, key = _read_pair(self.certificate, self.key) if self.certificate else (None, None)
        return grpc.ssl_channel_credentials(_read_authority("ca", self.ca), private_key=key, certificate_chain=chain)


def _require_pair(certificate: str, key: str) -> None:
    if bool(certificate) != bool(key):
        raise ValueError("tls_certificate and tls_key: one is of no use without the other")


def _read_pair(certificate: str, key: str) -> tuple[bytes, bytes]:
    """Certificate chain and key. gRPC would tell of an unusable pair only at the first handshake, if at all."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise ValueError(f"tls_certificate {certificate}, tls_key {key}: {error}") from error
    return Path(certificate).read_bytes(), Path(key).read_bytes()


def _read_authority(name: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError as error:
        raise ValueError(f"{name} {path}: {error}") from error
    return Path(path).read_bytes()
