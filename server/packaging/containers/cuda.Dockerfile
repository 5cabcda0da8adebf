# Halyard on NVIDIA GPUs. The image brings NVRTC, cuBLASLt and NCCL; libcuda comes from the host's driver (nvidia-container-toolkit).
# Built from the Debian package that server/packaging/build makes:
#   docker build -f server/packaging/containers/cuda.Dockerfile -t halyard:cuda target/packages/out
#   docker run --gpus all -p 8000:8000 -v halyard:/var/lib/halyard halyard:cuda serve --host 0.0.0.0 --model org/repo
ARG BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04
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
CMD ["serve", "--host", "0.0.0.0", "--platform", "cuda"]
