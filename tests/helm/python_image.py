"""Checks the packages of the image variant with Python. They are fetched for the image's Python and both of its
platforms, and laid out for the SBOM. No package runs, because the machine has another Python."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from toolbox import HERE_CHART, digest_of, pip

ROOT = os.path.dirname(os.path.dirname(HERE_CHART))
# Debian 12 has glibc 2.36, so wheels for older versions of glibc run too.
PLATFORMS = {cpu: [f"manylinux_2_28_{cpu}", f"manylinux_2_17_{cpu}", f"manylinux2014_{cpu}"] for cpu in ("x86_64", "aarch64")}
# The SBOM must list these packages in addition to the packages in requirements.txt.
NAMED = {"python", "tickfleet", "libc6", "redis", "tokio"}


def requirements(name):
    """Returns the path of a requirements file, and name → version of its pins."""
    path = os.path.join(ROOT, "image", name)
    with open(path, encoding="utf-8") as file:
        return path, dict(re.findall(r"^([\w.-]+)==(\S+) \\$", file.read(), re.MULTILINE))


def python_version():
    with open(os.path.join(ROOT, "Dockerfile"), encoding="utf-8") as file:
        return re.search(r"^ARG PYTHON_VERSION=(\S+)$", file.read(), re.MULTILINE)[1]


def for_image(cpu):
    """Returns options that make pip look for wheels for the image's Python."""
    platforms = [option for platform in PLATFORMS[cpu] for option in ("--platform", platform)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", python_version(), *platforms]


def fetched(toolbox, name, cpu):
    """Returns a folder that contains exactly the wheels that a requirements file pins. pip fails if the file does not
    pin one of their dependencies."""
    path, _ = requirements(name)
    with open(path, "rb") as file:
        folder = os.path.join(toolbox.cache, f"wheels-{digest_of(file.read() + python_version().encode())[:12]}-{cpu}")
    if not os.path.exists(folder):
        with tempfile.TemporaryDirectory(dir=toolbox.cache) as scratch:
            target = os.path.join(scratch, "wheels")
            pip("download", "--require-hashes", *for_image(cpu), "--requirement", path, "--dest", target)
            # Another process may have created the folder first, with the same wheels.
            if not os.path.exists(folder):
                os.rename(target, folder)
    return folder


def built(toolbox, scratch):
    """Builds the wheel of the package tickfleet like the Dockerfile, with pinned packages only."""
    system, source, wheels = (os.path.join(scratch, name) for name in ("system", "source", "wheels"))
    path, _ = requirements("requirements-build.txt")
    links = ["--no-index", "--find-links", fetched(toolbox, "requirements-build.txt", "x86_64")]
    pip("install", *links, "--require-hashes", "--requirement", path, "--target", system)
    shutil.copytree(os.path.join(ROOT, "python"), source, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", wheels, source]
    environment = {"PATH": os.environ["PATH"], "HOME": scratch, "PYTHONPATH": system}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return wheels, [] if done.returncode == 0 else [f"the package tickfleet cannot be built: {done.stdout}"]


def laid_out(toolbox, scratch, wheels):
    """Lays out the parts of a root file system that the SBOM covers: a file for the binary, this machine's Debian
    packages, Python, the pinned packages and our package. pip fails if a dependency of our package is not pinned."""
    root, python = os.path.join(scratch, "root"), f"python{python_version()}"
    for place in ("usr/bin", "var/lib/dpkg", f"usr/local/include/{python}"):
        os.makedirs(os.path.join(root, place))
    shutil.copy(sys.executable, os.path.join(root, "usr/bin/tickfleet"))
    shutil.copy("/var/lib/dpkg/status", os.path.join(root, "var/lib/dpkg/status"))
    with open(os.path.join(root, f"usr/local/include/{python}/patchlevel.h"), "w", encoding="utf-8") as file:
        file.write(f'#define PY_MAJOR_VERSION\t3\n#define PY_VERSION      \t"{python_version()}.0"\n')
    _, pinned = requirements("requirements.txt")
    links = ["--no-index", "--find-links", fetched(toolbox, "requirements.txt", "x86_64"), "--no-compile"]
    packages = os.path.join(root, f"usr/local/lib/{python}/site-packages")
    wheel = os.path.join(wheels, os.listdir(wheels)[0])
    pip("install", *links, *for_image("x86_64"), "--target", packages, wheel, *(f"{name}=={pin}" for name, pin in pinned.items()))
    return root


def listed(scratch, root):
    """Returns the SBOM that image/sbom.py writes for that root."""
    described, listing = os.path.join(scratch, "metadata.json"), os.path.join(scratch, "sbom.json")
    with open(described, "wb") as file:
        host = subprocess.check_output(["rustc", "--print", "host-tuple"], text=True).strip()
        command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", host]
        subprocess.run(command, cwd=ROOT, stdout=file, check=True)
    command = [sys.executable, os.path.join(ROOT, "image/sbom.py"), described, root, listing]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    with open(listing, encoding="utf-8") as file:
        return json.load(file)


def check(toolbox):
    """Returns the number of pinned packages, the SBOM, and complaints."""
    _, pinned = requirements("requirements.txt")
    for cpu in PLATFORMS:
        fetched(toolbox, "requirements.txt", cpu)
    with tempfile.TemporaryDirectory(dir=toolbox.cache) as scratch:
        wheels, complaints = built(toolbox, scratch)
        if complaints:
            return len(pinned), {}, complaints
        listing = listed(scratch, laid_out(toolbox, scratch, wheels))
    held = {component["name"]: component for component in [listing["metadata"]["component"], *listing["components"]]}
    complaints += [f"the SBOM does not list {name}" for name in sorted({*NAMED, *pinned} - set(held))]
    complaints += [
        f"the SBOM says {name} {held[name]['version']}, not {version}"
        for name, version in pinned.items()
        if name in held and held[name]["version"] != version
    ]
    # Our package is in no index, so a PyPI package URL could name another project's package.
    if "pkg:generic/python-tickfleet@" not in held["tickfleet"]["purl"]:
        complaints.append(f"the package tickfleet is listed as {held['tickfleet']['purl']}")
    return len(pinned), listing, complaints
