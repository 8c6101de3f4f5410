# Images from the locks: `cpu`, and `cuda` for NVIDIA GPUs. docs/how-to/installing.md says how to build and use them.
# pip's configuration, for instance an index of CPU builds of torch, comes as the secret `pip` and stays out of the image.

FROM python:3.11-slim-bookworm AS locked
LABEL org.opencontainers.image.title="Planward" \
      org.opencontainers.image.description="Post-trains language models to write PDDL plans, with VAL as the judge" \
      org.opencontainers.image.licenses="Apache-2.0"
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends git make \
 && rm -rf /var/lib/apt/lists/*
# Any user may run it, so that files in a mounted folder belong to the folder's owner; Git must trust that folder.
RUN useradd --uid 1000 --create-home planward \
 && chmod 1777 /home/planward \
 && git config --system --add safe.directory /project
# A mounted checkout runs its own code, which is the code that DVC hashes.
ENV HOME=/home/planward USER=planward PYTHONPATH=/project/src
WORKDIR /project
ENTRYPOINT ["planward"]
CMD ["--help"]
COPY requirements.lock /opt/planward/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-cache-dir --requirement /opt/planward/requirements.lock
# Extras by the names of their locks: --build-arg EXTRAS="loggers endpoints"
ARG EXTRAS=""
COPY requirements-*.lock /opt/planward/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    for name in $EXTRAS; do \
      pip install --no-cache-dir --requirement "/opt/planward/requirements-$name.lock" || exit 1; \
    done

FROM locked AS cuda
# Triton compiles launchers of kernels with gcc; the driver is the host's.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-cache-dir --requirement /opt/planward/requirements.lock --requirement /opt/planward/requirements-gpu.lock \
 && python -c 'import torch; assert torch.version.cuda, "this build of torch has no CUDA"; import torchvision'
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY pyproject.toml README.md LICENSE /opt/planward/
COPY src /opt/planward/src
RUN pip install --no-cache-dir --no-deps --no-build-isolation /opt/planward \
 && rm -rf /opt/planward/build
USER 1000

FROM locked AS cpu
COPY pyproject.toml README.md LICENSE /opt/planward/
COPY src /opt/planward/src
RUN pip install --no-cache-dir --no-deps --no-build-isolation /opt/planward \
 && rm -rf /opt/planward/build
USER 1000
