"""How many bytes of tensors an object keeps."""

import gc
from types import FunctionType, ModuleType

import torch


def held_bytes(root: object) -> int:
    """Of all tensors that can be reached from `root` without going through a module or a class; each memory once."""
    seen: set[int] = set()
    storages: dict[int, int] = {}
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
        elif isinstance(item, FunctionType):
            # Not its globals: they are the module's.
            waiting += [item.__closure__, item.__defaults__, item.__kwdefaults__]
        else:
            waiting += gc.get_referents(item)
    return sum(storages.values())
