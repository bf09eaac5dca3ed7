# syntax=docker/dockerfile:1
# The image of Tickfleet: one binary, its shared libraries and CA certificates, without a shell. A variant with Python
# is for Python tools, tool hosts and MCP servers that uvx runs; a variant with Node.js is for MCP servers from npm.
#
#   docker build --tag registry.example.com/tickfleet:0.1.0 .
#   docker build --tag registry.example.com/tickfleet:0.1.0-python --target python .
#   docker build --tag registry.example.com/tickfleet:0.1.0-node --target node .
#
# Base images are pinned by version. Pin them by digest if your policy requires it. The SBOM in each image lists its
# contents. `image/check.py` runs these steps without a container engine, and tests the result.

ARG RUST_VERSION=1.95.0
ARG DEBIAN_RELEASE=bookworm
ARG PYTHON_VERSION=3.13
ARG NODE_VERSION=24.11

# --- The binary ------------------------------------------------------------------------------------------------------
FROM docker.io/library/rust:${RUST_VERSION}-slim-${DEBIAN_RELEASE} AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked --package tickfleet \
 && cp target/dist/tickfleet /tickfleet \
 && cargo metadata --format-version 1 --locked --filter-platform "$(rustc --print host-tuple)" > /metadata.json \
 && image/license-files /licenses
# Collects the other files of the image from the base: CA certificates, and the shared libraries of the binary.
RUN image/rootfs /tickfleet /rootfs

# --- The SBOM --------------------------------------------------------------------------------------------------------
FROM docker.io/library/python:${PYTHON_VERSION}-slim-${DEBIAN_RELEASE} AS sbom
COPY image/sbom.py image/licenses.py cli/gateway/src/console/preact.LICENSE.txt /
COPY --from=build /metadata.json /
COPY --from=build /rootfs/ /rootfs/
COPY --from=build /licenses/ /licenses/
RUN python3 /sbom.py /metadata.json /rootfs /sbom.cdx.json \
 && python3 /licenses.py /metadata.json /licenses /THIRD-PARTY-LICENSES.txt

# --- The package `tickfleet` for tools in Python ---------------------------------------------------------------------
FROM docker.io/library/python:${PYTHON_VERSION}-slim-${DEBIAN_RELEASE} AS package
WORKDIR /src
COPY image/requirements-build.txt /
RUN pip install --no-cache-dir --require-hashes --requirement /requirements-build.txt
COPY python/ ./
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

# --- The variant with Python: --target python ------------------------------------------------------------------------
# The same Debian release as above, so that the binary finds the C library that it was linked to. This image has the
# shell and the package manager of its base.
FROM docker.io/library/python:${PYTHON_VERSION}-slim-${DEBIAN_RELEASE} AS python
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Tickfleet" \
      org.opencontainers.image.description="A governed worker fleet for AI agents' tool calls, on Redis Streams" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN --mount=type=bind,source=image/requirements.txt,target=/build/requirements.txt \
    --mount=type=bind,from=package,source=/wheels,target=/build/wheels \
    pip install --no-cache-dir --require-hashes --requirement /build/requirements.txt \
 && pip install --no-cache-dir --no-deps --no-index /build/wheels/*.whl \
 && pip check \
 && groupadd --gid 65532 tickfleet \
 && useradd --uid 65532 --gid 65532 --no-create-home --home-dir / --shell /usr/sbin/nologin tickfleet
COPY --from=build /tickfleet /usr/bin/tickfleet
COPY --from=sbom /THIRD-PARTY-LICENSES.txt /usr/share/licenses/tickfleet/
RUN --mount=type=bind,from=build,source=/metadata.json,target=/build/metadata.json \
    --mount=type=bind,source=image/sbom.py,target=/build/sbom.py \
    mkdir /usr/share/sbom \
 && python3 /build/sbom.py /build/metadata.json / /usr/share/sbom/tickfleet.cdx.json
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    MALLOC_ARENA_MAX=2
USER 65532:65532
WORKDIR /
EXPOSE 9090
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tickfleet"]

# --- The variant with Node.js: --target node -------------------------------------------------------------------------
# The same Debian release again. npm and npx come from the base.
FROM docker.io/library/node:${NODE_VERSION}-${DEBIAN_RELEASE}-slim AS node-files
RUN groupadd --gid 65532 tickfleet \
 && useradd --uid 65532 --gid 65532 --no-create-home --home-dir / --shell /usr/sbin/nologin tickfleet
COPY --from=build /tickfleet /usr/bin/tickfleet

FROM docker.io/library/python:${PYTHON_VERSION}-slim-${DEBIAN_RELEASE} AS node-sbom
COPY image/sbom.py /
COPY --from=build /metadata.json /
RUN --mount=type=bind,from=node-files,source=/,target=/files \
    python3 /sbom.py /metadata.json /files /sbom.cdx.json

FROM node-files AS node
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Tickfleet" \
      org.opencontainers.image.description="A governed worker fleet for AI agents' tool calls, on Redis Streams" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=node-sbom /sbom.cdx.json /usr/share/sbom/tickfleet.cdx.json
COPY --from=sbom /THIRD-PARTY-LICENSES.txt /usr/share/licenses/tickfleet/
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    MALLOC_ARENA_MAX=2
USER 65532:65532
WORKDIR /
EXPOSE 9090
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tickfleet"]

# --- The image -------------------------------------------------------------------------------------------------------
FROM scratch AS base
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Tickfleet" \
      org.opencontainers.image.description="A governed worker fleet for AI agents' tool calls, on Redis Streams" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /rootfs/ /
COPY --from=sbom /sbom.cdx.json /usr/share/sbom/tickfleet.cdx.json
COPY --from=sbom /THIRD-PARTY-LICENSES.txt /usr/share/licenses/tickfleet/
# By default, glibc has up to eight arenas per core, and each keeps freed memory.
ENV PATH=/usr/bin \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    MALLOC_ARENA_MAX=2
# A numeric ID, because Kubernetes cannot verify runAsNonRoot for a name. /etc/passwd has the name.
USER 65532:65532
WORKDIR /
EXPOSE 9090
# The first SIGTERM starts the drain.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tickfleet"]
