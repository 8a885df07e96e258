"""Write this machine's pip settings to a file, and print a line for each folder that a container needs to use them.

    python pip_settings.py PIP_CONF

Settings of all levels are merged in pip's own order, environment variables last. Lines are `SOURCE:TARGET:ro`.
"""

import ast
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit


def read_settings() -> dict[str, str]:
    """Names and values as `pip config list` tells them, environment variables winning."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    settings: dict[str, str] = {}
    for line in sorted(listing.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    settings.pop("config-file", None)
    return settings


def local_paths(value: str) -> list[Path]:
    """What of a value lies on this machine. An index's files lie beside it, so its parent counts."""
    paths = []
    for word in value.split():
        address = urlsplit(word)
        if address.scheme == "file":
            paths.append(Path(address.path).parent)
        elif word.startswith("/") and Path(word).exists():
            paths.append(Path(word))
    return [path for path in paths if path.exists()]


def main() -> None:
    settings = read_settings()
    lines = [f"{name} = {' '.join(value.split())}" for name, value in settings.items()]
    Path(sys.argv[1]).write_text("\n".join(["[global]", *lines, ""]))
    for path in sorted({path for value in settings.values() for path in local_paths(value)}):
        print(f"{path}:{path}:ro")


if __name__ == "__main__":
    main()
