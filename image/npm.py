"""Packs the npm packages of a release: the client with the command `tickfleet`, and the program for each platform.

    python3 npm.py [--client FOLDER] OUTPUT PLATFORM=BINARY…

PLATFORM has the form of Node.js: linux-x64, linux-arm64, darwin-x64, darwin-arm64. The client's folder must be
built; its default is `typescript`. The client has these platform packages as optional dependencies, so npm installs
only the matching one. Requires npm.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def pack(folder, output, name):
    """Packs the package in the folder. Writes it to the file OUTPUT/name instead of a name chosen by npm."""
    command = ["npm", "pack", "--silent", "--ignore-scripts"]
    packed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()[-1]
    shutil.move(os.path.join(folder, packed), os.path.join(output, name))


def write(folder, package):
    with open(os.path.join(folder, "package.json"), "w", encoding="utf-8") as file:
        json.dump(package, file, indent=2)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--client", default=os.path.join(ROOT, "typescript"))
    parser.add_argument("output")
    parser.add_argument("platforms", nargs="+")
    given = parser.parse_args()
    os.makedirs(given.output, exist_ok=True)
    with open(os.path.join(given.client, "package.json"), encoding="utf-8") as file:
        client = json.load(file)
    with tempfile.TemporaryDirectory() as staged:
        for platform, binary in (platform.split("=", 1) for platform in given.platforms):
            name = f"@tickfleet/{platform}"
            system, processor = platform.split("-")
            folder = os.path.join(staged, platform)
            os.makedirs(os.path.join(folder, "bin"))
            shutil.copy(binary, os.path.join(folder, "bin/tickfleet"))
            shutil.copy(os.path.join(ROOT, "LICENSE"), folder)
            if licenses := os.environ.get("TICKFLEET_LICENSES"):
                shutil.copy(licenses, os.path.join(folder, "THIRD-PARTY-LICENSES.txt"))
            write(
                folder,
                {
                    "name": name,
                    "version": client["version"],
                    "description": f"The program tickfleet for {platform}",
                    "license": client["license"],
                    "os": [system],
                    "cpu": [processor],
                    # Yarn must unpack the package, because it cannot run a file inside an archive.
                    "preferUnplugged": True,
                },
            )
            pack(folder, given.output, f"tickfleet-npm-{platform}-{client['version']}.tgz")
            client.setdefault("optionalDependencies", {})[name] = client["version"]
        folder = os.path.join(staged, "client")
        shutil.copytree(given.client, folder, ignore=shutil.ignore_patterns("node_modules", "src", "*.tgz"))
        # The package is already built, so it needs no build step.
        client["scripts"].pop("prepare", None)
        write(folder, client)
        pack(folder, given.output, f"tickfleet-npm-{client['version']}.tgz")


if __name__ == "__main__":
    main()
