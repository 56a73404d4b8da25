# The service, without torch: docker build -t coheat .
# docs/deployment.md says how to run it; compose.yaml adds Prometheus and Grafana.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# What the virtual environment needs is compiled here: at run time nothing can be written beside it.
RUN python -m venv /opt/coheat \
    && /opt/coheat/bin/pip install --no-cache-dir --constraint constraints.txt '.[serve,postgres]' \
    && /opt/coheat/bin/pip uninstall --yes --quiet pip \
    && /opt/coheat/bin/python -m compileall -q /opt/coheat/lib

FROM python:${PYTHON}-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin coheat \
    && mkdir /state && chown coheat:coheat /state && chmod 700 /state
COPY --from=build /opt/coheat /opt/coheat
ENV PATH=/opt/coheat/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/state
USER 10001:10001
# A run of `coheat train` goes to /model, read-only; /state keeps what is written, and the keys.
VOLUME /state
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/ready', timeout=4)"]
ENTRYPOINT ["coheat"]
CMD ["serve", "/model", "--host", "0.0.0.0", "--port", "8000", "--state", "/state"]
