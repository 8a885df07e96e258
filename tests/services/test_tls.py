"""TLS between the services, with an authority made for the test: who is let in, who is not, and what is said."""

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest

from draftwood_client import AsyncClient
from draftwood_gateway.config import GatewayConfig
from draftwood_wire.errors import Unavailable
from draftwood_wire.tls import ChannelTls, ServerTls
from tests.services.certificates import Authority
from tests.services.fake_verifier import FakeVerifier, serving
from tests.services.gateway_harness import gateway, make_tokenizer, saying

TEXT = "the tree accepts the draft"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def fake(folder: Path) -> FakeVerifier:
    tokenizer = make_tokenizer(folder)
    return FakeVerifier(script=saying(tokenizer.encode(TEXT).ids), vocab_size=tokenizer.get_vocab_size())


def test_services_that_know_each_other_talk(tmp_path: Path, authority: Authority) -> None:
    verifier, front = authority.issue("verifier"), authority.issue("gateway")
    tls = ServerTls(certificate=verifier.certificate, key=verifier.key, client_ca=authority.ca)

    async def main() -> None:
        async with (
            serving(fake(tmp_path), tls=tls) as (address, _),
            gateway(
                tmp_path,
                [address],
                verifier_ca=authority.ca,
                tls_certificate=front.certificate,
                tls_key=front.key,
            ) as running,
            AsyncClient(running.grpc, ca=authority.ca) as client,
        ):
            assert (await client.generate("hello")).text == TEXT
            body = {"model": "tiny", "prompt": "hello", "max_tokens": 100}
            trust = ssl.create_default_context(cafile=authority.ca)
            async with httpx.AsyncClient(verify=trust) as http:
                answer = await http.post(running.http.replace("http:", "https:") + "/v1/completions", json=body)
            assert answer.json()["choices"][0]["text"] == TEXT

    asyncio.run(main())


@pytest.mark.parametrize("shown", ["nothing", "a certificate of somebody else's authority"])
def test_a_gateway_the_verifier_does_not_know_is_kept_out(tmp_path: Path, authority: Authority, shown: str) -> None:
    verifier = authority.issue("verifier")
    tls = ServerTls(certificate=verifier.certificate, key=verifier.key, client_ca=authority.ca)
    stranger = Authority(tmp_path / "stranger").issue("gateway")

    async def main() -> None:
        pair = {} if shown == "nothing" else {"tls_certificate": stranger.certificate, "tls_key": stranger.key}
        model = fake(tmp_path)
        async with (
            serving(model, tls=tls) as (address, _),
            gateway(tmp_path, [address], 0.5, verifier_ca=authority.ca, **pair) as running,
        ):
            trust = ssl.create_default_context(cafile=str(tmp_path / "stranger" / "ca.pem")) if pair else False
            url = running.http.replace("http:", "https:") if pair else running.http
            async with httpx.AsyncClient(verify=trust) as http:
                assert (await http.get(url + "/healthz")).status_code == 503
        assert model.calls == []

    asyncio.run(main())


@pytest.mark.parametrize("trust", ["nobody", "somebody else"])
def test_a_client_refuses_a_gateway_it_can_not_verify(tmp_path: Path, authority: Authority, trust: str) -> None:
    front = authority.issue("gateway")
    ca = "" if trust == "nobody" else Authority(tmp_path / "stranger").ca

    async def main() -> None:
        options = {"tls_certificate": front.certificate, "tls_key": front.key}
        async with (
            serving(fake(tmp_path)) as (address, _),
            gateway(tmp_path, [address], **options) as running,
            AsyncClient(running.grpc, ca=ca) as client,
        ):
            with pytest.raises(Unavailable):
                await client.generate("hello", timeout_s=10)

    asyncio.run(main())


def test_wrong_files_are_named_at_the_start(tmp_path: Path, authority: Authority) -> None:
    make_tokenizer(tmp_path)
    identity, other = authority.issue("a"), authority.issue("b")
    with pytest.raises(ValueError, match="tls_certificate and tls_key"):
        GatewayConfig(tokenizer=tmp_path, verifier=("x:1",), tls_certificate=identity.certificate)
    with pytest.raises(ValueError, match="tls_client_ca: needs"):
        ServerTls(client_ca=authority.ca)
    with pytest.raises(ValueError, match=r"b\.key"):
        ServerTls(certificate=identity.certificate, key=other.key).credentials()
    with pytest.raises(ValueError, match=r"absent\.pem"):
        ServerTls(certificate=str(tmp_path / "absent.pem"), key=identity.key).credentials()
    with pytest.raises(ValueError, match=r"ca .*tokenizer\.json"):
        ChannelTls(ca=str(tmp_path / "tokenizer.json")).credentials()
