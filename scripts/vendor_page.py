"""Fetch the libraries of the server's page from the npm registry, and put them into the package with their licences.

    python scripts/vendor_page.py

The versions stand here, with the checksums that the registry gave. To renew one, change its version and run
`npm view NAME@VERSION dist.integrity`; then run this script and the tests of the page.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "specrun" / "serving" / "web" / "vendor"


@dataclass(frozen=True)
class Library:
    """A package of the registry. file: of it, which becomes `becomes`; None for one that another has in its file."""

    name: str
    version: str
    sha512: str
    file: str | None = None
    becomes: str = ""


LIBRARIES = [
    Library(
        "markdown-it",
        "15.0.3",
        "+Az7Ojz3iRGu8KYMvJ6xVhvrxP3eE+vEtJX75Ow88XBpcQNV/0lGX5ZynIIBftREo4DC2jsveAMDaeltmm8QvQ==",
        "dist/browser/markdown-it.esm.min.mjs",
        "markdown-it.js",
    ),
    Library(
        "@highlightjs/cdn-assets",
        "11.12.0",
        "KvOKXODaiFmId9xaq3xc5xCL66wVLUuOngDbO9B/kewbFTqdGbn2nJxNhN3H5R1cgDTVj6R8vH0zgiNDEGjpDw==",
        "es/highlight.min.js",
        "highlight.js",
    ),
    # These lie in markdown-it's file, which npm's packages do not tell the exact versions of.
    Library(
        "entities", "8.1.0", "kxL7msIffSuh9aaFAMD7rxAIuTRMAHMeBtgHW2yUdWw732ZNh4MehkF2gdjvtdmikkaIP9bFDDJOPlsvm7avrA=="
    ),
    Library(
        "linkify-it",
        "6.1.0",
        "wJ/TwpSDTLepCrQoYWYIExIKg5Zchex2Nn5yk2mFnB+6PtdkHtyLx742md9csRjjOnGkKIS/RrbY7l8D6gT9Vw==",
    ),
    Library(
        "mdurl", "2.1.0", "1+HBaOx0zi/dQWht8rNv9MYf9qqpqL/kxI0hXImU6Y547zM6Sni8BQibt7ifgMcYtQg41ao3Ivd6cnSM86inpg=="
    ),
    Library(
        "uc.micro",
        "3.0.0",
        "U3PppEkleoTnIfi8BozMx3yju3qc/L6SwqWo2Sw+54PX+PX0q9I+r1Um5HCmqD7n9VDX5/v3vQH/AjA6deDdtw==",
    ),
    Library(
        "punycode.js",
        "2.3.1",
        "uxFIHU0YlHYhDQtV4R9J6a52SLx28BCjT+4ieh7IGbgwVJWO+km431c4yRlREUAsAmt/uMjQUyQHNEPf0M39CA==",
    ),
]


def fetched(library: Library, folder: Path) -> Path:
    """The package's archive, which npm puts into `folder`. Ends the script if it is another one than expected."""
    command = ["npm", "pack", "--silent", "--pack-destination", folder, f"{library.name}@{library.version}"]
    name = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    digest = base64.b64encode(hashlib.sha512((folder / name).read_bytes()).digest()).decode()
    if digest != library.sha512:
        sys.exit(f"vendor_page.py: {library.name}@{library.version} has the checksum {digest}")
    return folder / name


def member(archive: Path, name: str) -> str:
    """A text file of a package."""
    with tarfile.open(archive) as package:
        file = package.extractfile(f"package/{name}")
        assert file
        return file.read().decode()


def licence(archive: Path) -> str:
    """The text of a package's licence."""
    with tarfile.open(archive) as package:
        names = package.getnames()
    name = next(name for name in names if name.upper().startswith("PACKAGE/LICEN"))
    return member(archive, name.removeprefix("package/"))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    licences = []
    with tempfile.TemporaryDirectory() as folder:
        for library in LIBRARIES:
            archive = fetched(library, Path(folder))
            if library.file:
                (FOLDER / library.becomes).write_text(member(archive, library.file), encoding="utf-8")
            licences.append(f"{library.name} {library.version}\n\n{licence(archive).strip()}\n")
    (FOLDER / "LICENSES.txt").write_text(("\n" + "-" * 100 + "\n\n").join(licences), encoding="utf-8")


if __name__ == "__main__":
    main()
