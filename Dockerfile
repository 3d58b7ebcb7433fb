# The server. Build it in a checkout: docker build -t keras-bert .
FROM python:3.13-slim
RUN --mount=type=bind,target=/source,rw \
    pip install --no-cache-dir --constraint /source/constraints/tensorflow-2.21.txt "/source[serve-grpc,litert]" \
    && useradd --create-home server
USER server
WORKDIR /home/server
EXPOSE 8500 8501
ENTRYPOINT ["keras-bert", "serve", "--host=0.0.0.0"]
