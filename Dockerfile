# The server. Build it in a checkout: docker build -t keras-bert .
# The digest is from docker-library/repo-info, for all kinds of machines. A newer one is in the output of
# docker buildx imagetools inspect python:3.13-slim-bookworm
FROM python:3.13.14-slim-bookworm@sha256:67a1e1f215ccda113cfc024e8639049257e88f273898f595b61476d128d387e8
RUN --mount=type=bind,target=/source,rw \
    pip install --no-cache-dir --only-binary=:all: --require-hashes --requirement /source/docker/server.txt \
    && pip install --no-cache-dir --no-deps --no-build-isolation /source \
    && useradd --uid 10001 --create-home server
# Kubernetes' runAsNonRoot needs the number.
USER 10001
WORKDIR /home/server
EXPOSE 8500 8501
HEALTHCHECK --start-period=60s --timeout=10s CMD ["python", "-c", "import http.client as http; \
connection = http.HTTPConnection('127.0.0.1', 8501, timeout=5); connection.request('GET', '/healthz'); \
exit(connection.getresponse().status != 200)"]
ENTRYPOINT ["keras-bert", "serve", "--host=0.0.0.0"]
