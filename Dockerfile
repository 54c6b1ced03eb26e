# One image for every role: `docker run reprise bridge --help`. Bases are build arguments; whatever
# `docker build` there is takes this file, with BuildKit or without.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG RUST_IMAGE=rust:1-slim-bookworm

# What docker-compose.yml has before its replicas: `docker build --target front`. First, and of one
# file: it is built without the rest, and stays as it is while the rest changes.
FROM ${PYTHON_IMAGE} AS front
COPY reprise/front.py /front.py
USER 10001:10001
ENTRYPOINT ["python", "-u", "/front.py"]

# The wheel, with the Rust kernel in it. The kernel is bound to Python's stable ABI, so that this
# stage's Python need not be that of the image.
FROM ${RUST_IMAGE} AS wheel
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/build
WORKDIR /src
COPY constraints.txt ./
RUN /opt/build/bin/pip install --no-cache-dir -c constraints.txt setuptools setuptools-rust wheel
# The kernel alone first: Cargo finds it built when only Python has changed.
COPY pyproject.toml ./
COPY streams/kernel/native streams/kernel/native
RUN touch README.md \
    && /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /tmp/kernel . \
    && rm -r README.md build /tmp/kernel
COPY . .
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels \
    --config-settings=--build-option=--py-limited-api=cp311 .

# What it depends on, and what sends spans where the environment asks for that: built anew only when
# the list or a version has changed. Without pip: nothing is installed into it later, and it is a
# tenth of its size.
FROM ${PYTHON_IMAGE} AS dependencies
RUN python3 -m venv --without-pip /opt/reprise && python3 -m venv /opt/pip
COPY constraints.txt pyproject.toml /tmp/
RUN python3 -c 'import tomllib; \
    project = tomllib.load(open("/tmp/pyproject.toml", "rb"))["project"]; \
    print(*project["dependencies"], *project["optional-dependencies"]["otel"], sep="\n")' \
    > /tmp/requirements.txt \
    && /opt/pip/bin/pip --python /opt/reprise/bin/python install --no-cache-dir \
    -c /tmp/constraints.txt -r /tmp/requirements.txt

# The kernel is optional to the package, not to the image.
FROM dependencies AS installed
COPY --from=wheel /wheels /tmp/wheels
RUN /opt/pip/bin/pip --python /opt/reprise/bin/python install --no-cache-dir --no-deps --no-index \
    /tmp/wheels/*.whl \
    && /opt/reprise/bin/python -c \
    'import streams.kernel, sys; streams.kernel.native_available() or sys.exit("no Rust kernel")'

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 reprise \
    && useradd --uid 10001 --gid reprise --no-create-home --home-dir /var/lib/reprise reprise \
    && install -d -o reprise -g reprise -m 0750 /var/lib/reprise
COPY --from=installed /opt/reprise /opt/reprise
ENV PATH=/opt/reprise/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    REPRISE_DATA=/var/lib/reprise
USER reprise
WORKDIR /var/lib/reprise
VOLUME /var/lib/reprise
# The process is number 1 and handles SIGTERM itself: it needs no init.
ENTRYPOINT ["reprise"]
CMD ["--help"]
