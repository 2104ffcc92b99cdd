# halfbox as one static binary that runs as nobody in particular, beside busybox for the health check.
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /out/halfbox ./cmd/halfbox
RUN mkdir /out/data

FROM busybox:1.37.0-musl
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/halfbox /usr/local/bin/halfbox
# A volume mounted here takes over the owner.
COPY --from=build --chown=10001:10001 /out/data /data
USER 10001:10001
# Used by the embedded engines alone; with MySQL and RocketMQ configured nothing is written.
ENV HALFBOX_DATA=/data
VOLUME /data
EXPOSE 8080 8081
# That the process answers. Whether it is ready for work is another question: /readyz.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8081/healthz"]
ENTRYPOINT ["halfbox"]
CMD ["serve"]
