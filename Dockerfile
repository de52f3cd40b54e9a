# syntax=docker/dockerfile:1
# The processor as a small image: one static binary, no cgo, not root.
#
#   docker build -t millweir .
#   docker run --rm -v "$PWD/totals.yaml:/etc/millweir/service.yaml:ro" -v totals:/var/lib/millweir \
#     -e KAFKA_BROKERS=broker-1:9092 millweir run /etc/millweir/service.yaml
#
# The target orderproducer is the producer of orders that docker-compose.yml runs.
ARG GO_VERSION=1.26
ARG ALPINE_VERSION=3.22

FROM --platform=$BUILDPLATFORM golang:${GO_VERSION}-alpine AS build
# The commit that `processor version` tells is read by git.
RUN apk add --no-cache git
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} go build -trimpath -ldflags="-s -w" -o /out/ ./cmd/processor ./examples/orderproducer

# Alpine for the certificates of public authorities and for wget, which the health check uses.
FROM alpine:${ALPINE_VERSION} AS base
RUN addgroup -S -g 10001 millweir && adduser -S -D -H -u 10001 -G millweir millweir && \
    install -d -o millweir -g millweir /var/lib/millweir
USER 10001:10001
LABEL org.opencontainers.image.source="https://github.com/millweir/millweir" \
      org.opencontainers.image.licenses="Apache-2.0"

FROM base AS orderproducer
LABEL org.opencontainers.image.title="Millweir order producer" \
      org.opencontainers.image.description="Writes orders into a topic, for trying things out"
COPY --from=build /out/orderproducer /usr/local/bin/orderproducer
ENTRYPOINT ["orderproducer"]

FROM base AS processor
LABEL org.opencontainers.image.title="Millweir" \
      org.opencontainers.image.description="Exactly-once stream processing on Kafka"
COPY LICENSE /usr/share/licenses/millweir/LICENSE
COPY --from=build /out/processor /usr/local/bin/processor
# Instance id, local state and, unless the file says otherwise, the checkpoints: keep it on a volume.
ENV MILLWEIR_DATA_DIR=/var/lib/millweir
WORKDIR /var/lib/millweir
VOLUME /var/lib/millweir
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8080/livez"]
# SIGTERM takes a last checkpoint; give it shutdown.timeout (30s) and some more before a kill.
STOPSIGNAL SIGTERM
ENTRYPOINT ["processor"]
CMD ["--help"]
