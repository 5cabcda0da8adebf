# Halyard on processors. Built from the Debian package that server/packaging/build makes:
#   docker build -f server/packaging/containers/cpu.Dockerfile -t halyard:cpu target/packages/out
#   docker run -p 8000:8000 -v halyard:/var/lib/halyard halyard:cpu serve --host 0.0.0.0 --model org/repo
ARG BASE=debian:bookworm-slim
FROM ${BASE}
COPY halyard_*.deb /tmp/
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends adduser ca-certificates curl \
    && dpkg -i /tmp/halyard_*.deb \
    && usermod --uid 10001 --home /var/lib/halyard halyard && groupmod --gid 10001 halyard \
    && install -d -o 10001 -g 10001 /var/lib/halyard \
    && rm -rf /var/lib/apt/lists/* /tmp/halyard_*.deb
# Models and compiled kernels.
ENV HOME=/var/lib/halyard XDG_CACHE_HOME=/var/lib/halyard/cache HF_HOME=/var/lib/halyard/huggingface
VOLUME ["/var/lib/halyard"]
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# A model may be fetched and loaded for an hour before the port opens.
HEALTHCHECK --start-period=3600s --interval=10s --timeout=5s CMD ["curl", "--fail", "--silent", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["halyard"]
CMD ["serve", "--host", "0.0.0.0", "--platform", "cpu"]
