"""Runs the steps of the Dockerfile without a container engine, and tests the content of the image.

    python3 image/check.py [BINARY [SBOM]]

BINARY is a built `tickfleet`; without it, the script builds one like the image's. SBOM is the path for a copy of the
SBOM. The script lays out the files of the final stage in a temporary folder. It then runs the entry point there as the
image's user, as PID 1 of a process namespace, on a read-only root, against a private Redis. Requires root, Debian and
redis-server. Prints the checks and sizes. If a check fails, exits with 1 and the reason.
"""

import ctypes
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PATIENCE_S = 60
# Maximum bytes of the image in addition to the binary: the loader, the C library, certificates.
SURROUNDINGS_MAX = 8 << 20
# Only the image's /etc/hosts has this name, so only the C library's resolver finds it.
REDIS_HOST = "redis.image.test"
PR_SET_NO_NEW_PRIVS = 38


# This instruction copies the licenses of the linked crates. Every Dockerfile must have it.
LICENSES = "--from=sbom /THIRD-PARTY-LICENSES.txt /usr/share/licenses/tickfleet/"


class Wrong(Exception):
    """A failed check, with the reason."""


def demand(holds, otherwise):
    if not holds:
        raise Wrong(otherwise)


# ---- the Dockerfile --------------------------------------------------------------------------------------------------


class Stage:
    """One stage of a Dockerfile: its base, its name, and its instructions in order."""

    def __init__(self, base, name):
        self.base, self.name, self.instructions = base, name, []

    def of(self, word):
        return [rest for found, rest in self.instructions if found == word]


def dockerfile():
    """Returns the stages of the Dockerfile, and the arguments before the first stage."""
    with open(os.path.join(ROOT, "Dockerfile"), encoding="utf-8") as file:
        text = re.sub(r"^#.*\n", "", file.read(), flags=re.MULTILINE).replace("\\\n", " ")
    stages, arguments = [], {}
    for line in filter(None, map(str.strip, text.splitlines())):
        word, rest = line.split(None, 1)
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append(Stage(base, name.strip()))
        elif not stages:
            arguments.update([rest.split("=", 1)])
        else:
            stages[-1].instructions.append((word, " ".join(rest.split())))
    return stages, arguments


def check_dockerfile(stages, arguments):
    """Checks the final stage, and that all stages run the steps of this script.

    Returns user, entry point and environment."""
    names = [stage.name for stage in stages]
    known = ["build", "sbom", "package", "python", "node-files", "node-sbom", "node", "base"]
    demand(names == known, f"the stages are {names}, and this script knows others")
    build, sbom, package, python, node_files, node_sbom, _, final = stages
    demand(final.base == "scratch", f"the image is made from {final.base}")
    demand(not final.of("RUN"), "the image has no shell, yet RUN is asked for")
    copies = ["--from=build /rootfs/ /", "--from=sbom /sbom.cdx.json /usr/share/sbom/tickfleet.cdx.json", LICENSES]
    demand(final.of("COPY") == copies, f"the image copies {final.of('COPY')}; this script knows {copies}")
    runs = build.of("RUN") + sbom.of("RUN")
    steps = ("cargo build --profile dist --locked --package tickfleet", "image/rootfs /tickfleet /rootfs")
    for step in (*steps, "image/license-files /licenses", "python3 /licenses.py /metadata.json /licenses /THIRD-PARTY-LICENSES.txt"):
        demand(any(step in run for run in runs), f"no stage runs {step!r}")
    demand(any("python3 /sbom.py /metadata.json /rootfs /sbom.cdx.json" in run for run in runs), "no stage writes the SBOM")
    demand(final.of("STOPSIGNAL") == ["SIGTERM"], "the image is not stopped by SIGTERM")
    for stage in (build, sbom, package, python, node_files, node_sbom):
        base = base_of(stage, arguments)
        demand(re.search(r":\d+\.\d+", base) and "latest" not in base, f"{base} is not pinned")
    user = re.fullmatch(r"(\d+):(\d+)", final.of("USER")[0])
    demand(user and int(user[1]) > 0 and int(user[2]) > 0, "the user is not a number above 0")
    entry = json.loads(final.of("ENTRYPOINT")[0])
    demand(not final.of("CMD"), "a default command hides that one is missing")
    environment = dict(shlex.split(pair)[0].split("=", 1) for line in final.of("ENV") for pair in line.split())
    check_versions(final, arguments, int(user[1]))
    check_python(stages, arguments)
    check_node(stages, arguments)
    return (int(user[1]), int(user[2])), entry, environment


def base_of(stage, arguments):
    """Returns the base of a stage, with its arguments filled in."""
    return re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], stage.base)


def check_alike(variant, final, what):
    """Checks that the metadata of a variant equals the metadata of the image."""
    for word in ("ARG", "LABEL", "USER", "WORKDIR", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"):
        demand(variant.of(word) == final.of(word), f"{word} of the image with {what} is {variant.of(word)}, not {final.of(word)}")


def check_node(stages, arguments):
    """Checks the image variant with Node.js, without running it."""
    files, listed, node, final = stages[-4:]
    check_alike(node, final, "Node.js")
    demand(node.base == files.name, f"the image with Node.js is made from {node.base}")
    demand(base_of(files, arguments).endswith(f"-{arguments['DEBIAN_RELEASE']}-slim"), "the binary was linked to another Debian's C library")
    demand(files.of("COPY") == ["--from=build /tickfleet /usr/bin/tickfleet"], f"the image with Node.js copies {files.of('COPY')}")
    demand(node.of("COPY") == ["--from=node-sbom /sbom.cdx.json /usr/share/sbom/tickfleet.cdx.json", LICENSES], "it has no list of what is in it")
    demand(any("useradd --uid 65532 --gid 65532" in run for run in files.of("RUN")), "the image with Node.js has no user")
    demand(any("from=node-files" in run and "python3 /sbom.py /metadata.json /files" in run for run in listed.of("RUN")), "its list is another's")


def check_python(stages, arguments):
    """Checks the image variant with Python, without running it, because its base would have to be fetched.
    tests/helm/python_image.py tests the packages that it installs."""
    build, _, package, python, *_, final = stages
    check_alike(python, final, "Python")
    demand("PATH=" not in " ".join(python.of("ENV")), "Python is not in the PATH of its image")
    bases = [base_of(stage, arguments) for stage in (build, package, python)]
    demand(bases[1] == bases[2], f"the package is built with {bases[1]} for {bases[2]}")
    release = f"-slim-{arguments['DEBIAN_RELEASE']}"
    demand(all(base.endswith(release) for base in bases), "the binary was linked to another Debian's C library")
    demand(python.of("COPY") == ["--from=build /tickfleet /usr/bin/tickfleet", LICENSES], f"the image with Python copies {python.of('COPY')}")
    steps = (
        (package, "pip install --no-cache-dir --require-hashes --requirement /requirements-build.txt"),
        (package, "pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels ."),
        (python, "pip install --no-cache-dir --require-hashes --requirement /build/requirements.txt"),
        (python, "pip install --no-cache-dir --no-deps --no-index /build/wheels/*.whl"),
        (python, "pip check"),
        (python, "useradd --uid 65532 --gid 65532"),
        (python, "python3 /build/sbom.py /build/metadata.json / /usr/share/sbom/tickfleet.cdx.json"),
    )
    for stage, step in steps:
        demand(any(step in run for run in stage.of("RUN")), f"the stage {stage.name} does not run {step!r}")
    with open(os.path.join(ROOT, "python/pyproject.toml"), encoding="utf-8") as file:
        project = file.read()
    version = re.search(r'^version = "([^"]+)"', project, re.MULTILINE)[1]
    demand(f"VERSION={version}" in final.of("ARG"), f"the package tickfleet is {version}, and the image another version")


def check_versions(final, arguments, uid):
    """Checks the versions and the user id that occur in several files."""
    with open(os.path.join(ROOT, "Cargo.toml"), encoding="utf-8") as file:
        workspace = file.read()
    version = re.search(r'^version = "([^"]+)"', workspace, re.MULTILINE)[1]
    oldest = re.search(r'^rust-version = "([^"]+)"', workspace, re.MULTILINE)[1]
    demand(f"VERSION={version}" in final.of("ARG"), f"the image's VERSION is not {version}")
    numbers = [tuple(map(int, text.split("."))) for text in (arguments["RUST_VERSION"], oldest)]
    demand(numbers[0] >= numbers[1], f"Rust {arguments['RUST_VERSION']} is older than rust-version {oldest}")
    chart = os.path.join(ROOT, "helm/tickfleet")
    with open(os.path.join(chart, "Chart.yaml"), encoding="utf-8") as file:
        demand(f'appVersion: "{version}"' in file.read(), f"the chart's appVersion is not {version}")
    with open(os.path.join(chart, "values.yaml"), encoding="utf-8") as file:
        demand(f"runAsUser: {uid}\n" in file.read(), f"the chart does not run as {uid}")


def check_context(folder):
    """Checks that the files that .dockerignore permits are a valid cargo workspace. They must include every file
    that sources include or the Dockerfile copies."""
    with open(os.path.join(ROOT, ".dockerignore"), encoding="utf-8") as file:
        kept = [line[1:].strip() for line in file if line.startswith("!")]
    for name in kept:
        source, target = os.path.join(ROOT, name), os.path.join(folder, name)
        if os.path.isdir(source):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("target", "__pycache__"))
        else:
            shutil.copyfile(source, target)
    for name in ("image/requirements.txt", "image/requirements-build.txt", "image/sbom.py", "image/licenses.py", "cli/gateway/src/console/preact.LICENSE.txt", "python/pyproject.toml"):
        demand(os.path.exists(os.path.join(folder, name)), f"the Dockerfile copies {name}, which .dockerignore hides")
    for crate in ("shared", "scheduler", "worker", "cli"):
        for place, _, names in os.walk(os.path.join(folder, crate)):
            # Images are built without tests, so the tests' files are not needed.
            if "tests" in os.path.relpath(place, folder).split(os.sep):
                continue
            for name in (name for name in names if name.endswith(".rs")):
                with open(os.path.join(place, name), encoding="utf-8") as file:
                    included = re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)', file.read())
                for path in included:
                    demand(os.path.exists(os.path.join(place, path)), f"{name} includes {path}, which .dockerignore hides")
    return metadata(folder)


def metadata(folder):
    """Returns the output of cargo metadata for this machine's platform."""
    host = subprocess.check_output(["rustc", "--print", "host-tuple"], text=True).strip()
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", host]
    return subprocess.check_output(command, cwd=folder, text=True)


# ---- the content of the image ----------------------------------------------------------------------------------------


def lay_out(binary, folder, described):
    """Lays out the files of the final stage with the Dockerfile's scripts. Returns the root folder and the SBOM."""
    root = os.path.join(folder, "root")
    subprocess.run([os.path.join(HERE, "rootfs"), binary, root], check=True)
    listing, described_path = os.path.join(folder, "sbom.cdx.json"), os.path.join(folder, "metadata.json")
    with open(described_path, "w", encoding="utf-8") as file:
        file.write(described)
    command = [sys.executable, os.path.join(HERE, "sbom.py"), described_path, root, listing]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    sources, licenses = os.path.join(folder, "licenses"), os.path.join(root, "usr/share/licenses/tickfleet")
    subprocess.run([os.path.join(HERE, "license-files"), sources], check=True)
    os.makedirs(licenses)
    command = [sys.executable, os.path.join(HERE, "licenses.py"), described_path, sources, os.path.join(licenses, "THIRD-PARTY-LICENSES.txt")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    os.makedirs(os.path.join(root, "usr/share/sbom"))
    shutil.copyfile(listing, os.path.join(root, "usr/share/sbom/tickfleet.cdx.json"))
    with open(listing, encoding="utf-8") as file:
        return root, json.load(file)


def missing_libraries(root, path):
    """Returns the libraries and the loader that a program or library needs, but that the image lacks."""
    read = subprocess.check_output(["readelf", "--dynamic", "--program-headers", "--wide", path], text=True)
    wanted = re.findall(r"\(NEEDED\).*\[(.+)\]", read)
    held = {name for _, _, names in os.walk(root) for name in names}
    lost = [name for name in wanted if name not in held]
    loader = re.search(r"interpreter: (\S+?)\]", read)
    if loader and not os.path.exists(root + loader[1]):
        lost.append(loader[1])
    return lost


def check_files(root):
    """Checks for missing and unwanted files. Returns three sizes: binary, all files, all files compressed."""
    files = [os.path.join(place, name) for place, _, names in os.walk(root) for name in names]
    programs = []
    for path in files:
        mode = os.stat(path).st_mode
        demand(not mode & 0o6000, f"{path} would run as somebody else")
        demand(not mode & 0o022, f"{path} can be written by others")
        with open(path, "rb") as file:
            if file.read(4) == b"\x7fELF":
                programs.append(path)
                lost = missing_libraries(root, path)
                demand(not lost, f"{path} needs {', '.join(lost)}")
    shells = {"sh", "bash", "dash", "ash", "busybox", "apt", "dpkg"} & {os.path.basename(path) for path in files}
    demand(not shells, f"the image holds {', '.join(shells)}")
    with open(os.path.join(root, "etc/ssl/certs/ca-certificates.crt"), encoding="utf-8") as file:
        demand(file.read().count("BEGIN CERTIFICATE") > 50, "there are no CA certificates")
    with open(os.path.join(root, "usr/share/licenses/tickfleet/THIRD-PARTY-LICENSES.txt"), encoding="utf-8") as file:
        text = file.read()
    for crate, words in (("\nredis 1.", "Redistribution and use in source"), ("\nring 0.", "Google Inc."), ("\ntokio 1.", "Tokio Contributors")):
        demand(crate in text and words in text, f"the licences lack that of {crate.strip()}")
    binary_path = os.path.join(root, "usr/bin/tickfleet")
    spoilt = [path for path in programs if os.path.basename(path).startswith("libgcc_s")]
    if spoilt:
        # This tests the check itself, which must report the missing library.
        os.rename(spoilt[0], spoilt[0] + ".away")
        demand(missing_libraries(root, binary_path), "a library was taken away, and nobody noticed")
        os.rename(spoilt[0] + ".away", spoilt[0])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
        archive.add(root, arcname="/")
    binary, total = os.path.getsize(binary_path), sum(map(os.path.getsize, files))
    demand(total - binary <= SURROUNDINGS_MAX, f"{total - binary} bytes beside the binary; at most {SURROUNDINGS_MAX} are meant")
    return binary, total, len(packed.getvalue())


def check_sbom(listing, root):
    """Checks the SBOM: its edges, components that must be listed, and components that must not.

    Returns the number of components."""
    refs = {component["bom-ref"] for component in listing["components"]} | {listing["metadata"]["component"]["bom-ref"]}
    lost = {dep for edge in listing["dependencies"] for dep in edge["dependsOn"]} - refs
    demand(not lost, f"the SBOM refers to {', '.join(sorted(lost))} and does not list them")
    names = {component["name"] for component in listing["components"]}
    for name in ("redis", "tokio", "rustls", "tickfleet-model", "libc6", "ca-certificates"):
        demand(name in names, f"the SBOM does not list {name}")
    for name in ("proptest", "insta", "tickfleet-tests", "serde_derive"):
        demand(name not in names, f"the SBOM lists {name}, which is not in the binary")
    packages = set(os.listdir(os.path.join(root, "var/lib/dpkg/status.d")))
    demand(packages <= names, f"the SBOM does not list {', '.join(packages - names)}")
    return len(listing["components"])


# ---- running it ------------------------------------------------------------------------------------------------------


def inside(arguments):
    """Becomes the image's entry point, as PID 1 of a new namespace."""
    root, uid, gid, environment, command = json.loads(arguments)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", root, root], check=True)
    # A container runtime mounts /proc in every container.
    subprocess.run(["mount", "-t", "proc", "-o", "nosuid,nodev,noexec", "proc", root + "/proc"], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
    os.chroot(root)
    os.chdir("/")
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    if ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        sys.exit("no_new_privs cannot be set")
    os.execve(command[0], command, environment)


def contained(root, image, arguments, more=None):
    """Starts the entry point with `arguments` as a container would."""
    (uid, gid), entry, environment = image
    given = json.dumps([root, uid, gid, {**environment, **(more or {})}, entry + arguments])
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable, __file__, "--inside", given]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def says(root, image, *arguments):
    process = contained(root, image, list(arguments))
    said, _ = process.communicate(timeout=PATIENCE_S)
    demand(process.returncode == 0, f"{' '.join(arguments)} ended with {process.returncode}:\n{said}")
    return said.strip()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, condition, process):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        if process.poll() is not None:
            raise Wrong(f"{what}: ended with {process.returncode}:\n{process.stdout.read() if process.stdout else ''}")
        # Servers and probes do not report that they are ready, so they are polled.
        time.sleep(0.05)
    raise Wrong(f"not within {PATIENCE_S} s: {what}")


def ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def check_status(pid, image):
    """Checks the running process in /proc: PID 1, the user, no privileges, read-only root."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    demand(status["NSpid"].split()[-1] == "1", f"it is not PID 1: {status['NSpid']}")
    demand(set(status["Uid"].split()) == {str(image[0][0])}, f"it runs as {status['Uid']}")
    demand(int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1", "it has privileges")
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8") as file:
        options = next(line.split()[5] for line in file if line.split()[4] == "/")
    demand("ro" in options.split(","), f"its root can be written: {options}")


def check_run(root, image, role, redis_port):
    """Checks that a process of the fleet starts, becomes ready as PID 1, and exits with 0 on SIGTERM.

    Returns the seconds that the exit took."""
    port = free_port()
    address = {"REDIS_URL": f"redis://{REDIS_HOST}:{redis_port}/0", "TICKFLEET_HTTP_ADDRESS": f"127.0.0.1:{port}"}
    process = contained(root, image, [role], address)
    try:
        wait_for(f"{role} is ready", lambda: ready(port), process)
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="utf-8") as file:
            pid = int(file.read().split()[0])
        check_status(pid, image)
        begun = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE_S)
        demand(process.returncode == 0, f"at SIGTERM, {role} ended with {process.returncode}:\n{said}")
        return time.monotonic() - begun
    finally:
        process.kill()


def run(root, image):
    """Runs the processes of the image, and checks them."""
    for place in ("proc", "etc"):
        os.makedirs(os.path.join(root, place), exist_ok=True)
    with open(os.path.join(root, "etc/hosts"), "w", encoding="utf-8") as file:
        file.write(f"127.0.0.1 localhost {REDIS_HOST}\n")
    print(f"runs: {says(root, image, '--version')}; {says(root, image, 'config', 'check')}")
    program = os.environ.get("TICKFLEET_REDIS_SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
    demand(program, "there is no redis-server or valkey-server to run it against")
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    redis = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir())
    try:
        wait_for("Redis listens", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, redis)
        for role in ("scheduler", "worker"):
            seconds = check_run(root, image, role, port)
            print(f"{role}: ready, PID 1, user {image[0][0]}, no privileges, read-only root; SIGTERM: exit 0 after {seconds:.2f} s")
    finally:
        redis.terminate()
        redis.wait()


def built():
    """Builds a binary in the same way as for the image. Returns its path."""
    subprocess.run(["cargo", "build", "--profile", "dist", "--locked", "--package", "tickfleet"], cwd=ROOT, check=True)
    target = json.loads(metadata(ROOT))["target_directory"]
    return os.path.join(target, "dist/tickfleet")


def main():
    if sys.argv[1:2] == ["--inside"]:
        return inside(sys.argv[2])
    if len(sys.argv) > 3 or sys.argv[1:2] in (["--help"], ["-h"]):
        sys.exit(__doc__)
    if os.geteuid() != 0:
        sys.exit("image/check.py makes namespaces and changes its root: run it as root")
    try:
        image = check_dockerfile(*dockerfile())
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            os.makedirs(os.path.join(folder, "context"))
            described = check_context(os.path.join(folder, "context"))
            binary = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else built()
            root, listing = lay_out(binary, folder, described)
            if len(sys.argv) == 3:
                shutil.copyfile(os.path.join(folder, "sbom.cdx.json"), sys.argv[2])
            sizes = check_files(root)
            print("image: %.1f MiB, of it the binary %.1f MiB; %.1f MiB compressed" % (sizes[1] / 2**20, sizes[0] / 2**20, sizes[2] / 2**20))
            print(f"SBOM: {check_sbom(listing, root)} components")
            run(root, image)
    except (Wrong, subprocess.SubprocessError) as error:
        sys.exit(str(error))
    return None


if __name__ == "__main__":
    main()
