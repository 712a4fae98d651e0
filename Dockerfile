# Orloj in a container. Never built by our tests, which run the program without containers: if it
# does not build for you, that is a bug to report.

FROM rust:1.95-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake libclang-dev libcurl4-openssl-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# The caches keep the native libraries, which take about 20 minutes on two cores, between builds.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked && cp target/release/orloj /usr/local/bin/orloj

FROM debian:bookworm-slim
# curl for the health checks; TLS and OAUTHBEARER need its libraries anyway.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --create-home --home-dir /var/lib/orloj orloj
COPY --from=build /usr/local/bin/orloj /usr/local/bin/orloj
USER orloj
WORKDIR /var/lib/orloj
# The scheduler gives its partitions over within a second when asked to stop.
STOPSIGNAL SIGTERM
ENTRYPOINT ["orloj"]
