"""The Python client of a Draftwood gateway.

    from draftwood_client import Client

    with Client("127.0.0.1:8051") as client:
        print(client.generate("def main():", max_tokens=64).text)
        for chunk in client.stream(messages=[{"role": "user", "content": "Hello"}]):
            print(chunk.text, end="", flush=True)

Errors are those of `draftwood_wire.errors`: InvalidRequest, Unauthenticated, UnknownModel, Overloaded, Unavailable.
"""

from draftwood_client.async_client import AsyncClient
from draftwood_client.client import Client
from draftwood_client.results import Chunk, FinishReason, Generation, Usage

__all__ = ["AsyncClient", "Chunk", "Client", "FinishReason", "Generation", "Usage"]
