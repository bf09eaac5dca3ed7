# syntax=docker/dockerfile:1
# The image of Tickfleet: one binary, what it is linked to, CA certificates, and nothing else. No shell.
#
#   docker build --tag registry.example.com/tickfleet:0.1.0 .
#
# Base images are pinned by version. Pin them by digest where your rules ask for it; what ends up in the image is
# listed in its own SBOM either way. `image/check` runs these steps without an engine, and tests what comes out.

ARG RUST_VERSION=1.95.0
ARG DEBIAN_RELEASE=bookworm
ARG PYTHON_VERSION=3.13

# --- The binary ------------------------------------------------------------------------------------------------------
FROM docker.io/library/rust:${RUST_VERSION}-slim-${DEBIAN_RELEASE} AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --package tickfleet \
 && cp target/release/tickfleet /tickfleet \
 && cargo metadata --format-version 1 --locked --filter-platform "$(rustc --print host-tuple)" > /metadata.json
# What else the image holds is part of the base: CA certificates, and the libraries that the binary is linked to.
RUN image/rootfs /tickfleet /rootfs

# --- The list of what is in it ---------------------------------------------------------------------------------------
FROM docker.io/library/python:${PYTHON_VERSION}-slim-${DEBIAN_RELEASE} AS sbom
COPY image/sbom.py /
COPY --from=build /metadata.json /
COPY --from=build /rootfs/ /rootfs/
RUN python3 /sbom.py /metadata.json /rootfs /sbom.cdx.json

# --- The image -------------------------------------------------------------------------------------------------------
FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Tickfleet" \
      org.opencontainers.image.description="A governed worker fleet for AI agents' tool calls, on Redis Streams" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /rootfs/ /
COPY --from=sbom /sbom.cdx.json /usr/share/sbom/tickfleet.cdx.json
ENV PATH=/usr/bin \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
# By number, so that runAsNonRoot can be checked; /etc/passwd has its name.
USER 65532:65532
WORKDIR /
EXPOSE 9090
# The first SIGTERM drains.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tickfleet"]
